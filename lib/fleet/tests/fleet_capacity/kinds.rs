//! The pods that objects of each kind ask for.

use std::collections::BTreeMap;

use keelway_fleet::PodKinds;
use serde_json::{Value as Json, json};

fn template(cpu: &str) -> Json {
    json!({ "spec": pod(cpu) })
}

fn pod(cpu: &str) -> Json {
    json!({ "containers": [{ "name": "c", "resources": { "requests": { "cpu": cpu } } }] })
}

fn demand(api_version: &str, kind: &str, spec: &Json) -> String {
    PodKinds::default().demand(&json!({ "apiVersion": api_version, "kind": kind, "spec": spec })).readable()
}

#[test]
fn kinds_of_kubernetes() {
    let replicated = json!({ "replicas": 3, "template": template("1") });
    for (version, kind) in [
        ("apps/v1", "Deployment"),
        ("apps/v1", "ReplicaSet"),
        ("apps/v1", "StatefulSet"),
        ("v1", "ReplicationController"),
    ] {
        assert_eq!(demand(version, kind, &replicated), "3 pods with cpu 1 each", "{kind}");
    }
    assert_eq!(demand("apps/v1", "Deployment", &json!({ "template": template("1") })), "1 pod with cpu 1");
    assert_eq!(demand("apps/v1", "Deployment", &json!({ "replicas": 0, "template": template("1") })), "");
    assert_eq!(demand("apps/v1", "DaemonSet", &json!({ "template": template("1") })), "a pod on each node with cpu 1");
    let job = json!({ "parallelism": 4, "completions": 2, "template": template("1") });
    assert_eq!(demand("batch/v1", "Job", &job), "2 pods with cpu 1 each");
    let cron = json!({ "jobTemplate": { "spec": { "parallelism": 4, "template": template("1") } } });
    assert_eq!(demand("batch/v1", "CronJob", &cron), "4 pods with cpu 1 each");
    assert_eq!(demand("v1", "Pod", &pod("1")), "1 pod with cpu 1");
    assert_eq!(demand("v1", "ConfigMap", &json!({})), "");
}

#[test]
fn what_has_ended_asks_for_nothing() {
    let kinds = PodKinds::default();
    let complete = json!({ "conditions": [{ "type": "Complete", "status": "True" }] });
    let job =
        json!({ "apiVersion": "batch/v1", "kind": "Job", "spec": { "template": template("1") }, "status": complete });
    assert!(kinds.demand(&job).is_empty());
    let ended = json!({ "apiVersion": "v1", "kind": "Pod", "spec": pod("1"), "status": { "phase": "Succeeded" } });
    assert!(kinds.demand(&ended).is_empty());
}

#[test]
fn kinds_of_the_built_in_table() {
    let group = json!({ "replicas": 2, "numOfHosts": 3, "template": template("2") });
    let ray = json!({ "headGroupSpec": { "template": template("1") }, "workerGroupSpecs": [group, { "replicas": 1, "template": template("4") }] });
    let expected = "1 pod with cpu 1, and 6 pods with cpu 2 each, and 1 pod with cpu 4";
    assert_eq!(demand("ray.io/v1", "RayCluster", &ray), expected);
    assert_eq!(demand("ray.io/v1", "RayService", &json!({ "rayClusterConfig": ray })), expected);
    let job = json!({ "rayClusterSpec": ray, "submitterPodTemplate": template("500m") });
    assert_eq!(demand("ray.io/v1", "RayJob", &job), format!("{expected}, and 1 pod with cpu 500m"));

    let of = |template| json!({ "replicas": 2, "leaderWorkerTemplate": template });
    let both = of(json!({ "size": 4, "leaderTemplate": template("1"), "workerTemplate": template("8") }));
    let kind = |spec| demand("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", spec);
    assert_eq!(kind(&both), "2 pods with cpu 1 each, and 6 pods with cpu 8 each");
    let equal = of(json!({ "size": 1, "workerTemplate": template("8") }));
    assert_eq!(kind(&equal), "2 pods with cpu 8 each");

    let model = json!({ "predictor": { "minReplicas": 2, "model": { "resources": { "requests": { "cpu": "3" } } } } });
    assert_eq!(demand("serving.kserve.io/v1beta1", "InferenceService", &model), "2 pods with cpu 3 each");
    let nim = json!({ "replicas": 2, "resources": { "limits": { "nvidia.com/gpu": 1 } } });
    assert_eq!(demand("apps.nvidia.com/v1alpha1", "NIMService", &nim), "2 pods with nvidia.com/gpu 1 each");
}

#[test]
fn people_add_kinds_and_replace_rows() {
    let train = "- {template: [spec.worker], count: [spec.workers]}\n- {spec: spec.driver}\n";
    let rows: BTreeMap<String, String> = [
        ("Train.example.com", train),
        ("NIMService.apps.nvidia.com", "[{spec: spec}]"),
        ("Broken.example.com", "[{count: [spec.x]}]"),
        ("Kind", "[{spec: spec}]"),
    ]
    .map(|(key, row)| (key.to_owned(), row.to_owned()))
    .into();
    let (kinds, errors) = PodKinds::with_rows(&rows);
    let problems: Vec<String> = errors.iter().map(ToString::to_string).collect();
    assert_eq!(
        problems,
        [
            "Broken.example.com: there are no pods; write a list of template or spec, and count",
            "Kind: the key is not KIND.GROUP; write a list of template or spec, and count",
        ]
    );
    assert!(kinds.runs_pods("example.com", "Train") && !kinds.runs_pods("example.com", "Broken"));
    let object = json!({
        "apiVersion": "example.com/v2", "kind": "Train",
        "spec": { "workers": 3, "worker": template("1"), "driver": pod("2") },
    });
    assert_eq!(kinds.demand(&object).readable(), "3 pods with cpu 1 each, and 1 pod with cpu 2");
}
