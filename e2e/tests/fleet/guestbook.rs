//! An application of several kinds that runs in every cluster of a fleet, and what faults must not change of it.

use std::collections::BTreeMap;

use keelway_e2e::{Kubectl, worker_fleet::AGNHOST};
use serde_json::{Value, json};

use crate::{
    Member,
    applies::ANNOTATED,
    workloads::{policy, serving},
};

/// The namespace of the application.
pub(crate) const NAMESPACE: &str = "guestbook";
/// The label of everything that belongs to the application. Objects that the loop of applies changes have the label [`ENTRY`] as well.
pub(crate) const PART: (&str, &str) = ("part", "guestbook");
pub(crate) const ENTRY: &str = "entry";
/// The custom resource of the application, as the agent's rights name it.
pub(crate) const VISITS: &str = "visits.guestbook.example.com";

/// Objects that are not in the loop of applies, by kind and name: the uid, and the generation if the kind has one.
type Objects = BTreeMap<[String; 2], (String, Option<i64>)>;
/// Pods by uid, and how often their containers restarted.
type Pods = BTreeMap<String, u64>;

/// What a cluster runs of the application.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Running {
    pods: Pods,
    objects: Objects,
}

/// Applies the application, and waits until it runs in two clusters.
pub(crate) fn place(fleet: &Kubectl) {
    fleet.apply(&policy(NAMESPACE, PART, "{spreadConstraints: {spreadMode: Duplicate}}"));
    fleet.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": kinds() }).to_string());
    fleet.wait("condition=Established", &[&format!("crd/{VISITS}")]);
    fleet.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": objects() }).to_string());
    for (deployment, both) in [("frontend", 4), ("leader", 2), ("follower", 4)] {
        let ready = format!("jsonpath={{.status.readyReplicas}}={both}");
        fleet.wait(&ready, &[&format!("deployment/{deployment}"), "-n", NAMESPACE]);
    }
    fleet.wait("jsonpath={.status.succeeded}=2", &["job/seed", "-n", NAMESPACE]);
}

/// Returns what a cluster runs of the application. Nothing restarts, so nothing of it changes.
pub(crate) fn running(member: &Member) -> Running {
    let get = |kinds: &str, selector: &str| {
        let all = member.cluster.kubectl.get(&[kinds, "-n", NAMESPACE, "-l", selector]);
        all["items"].as_array().unwrap().clone()
    };
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let restarts = |pod: &Value| {
        let containers = pod["status"]["containerStatuses"].as_array().unwrap();
        containers.iter().map(|container| container["restartCount"].as_u64().unwrap()).sum()
    };
    let pods = get("pods", "app").iter().map(|pod| (text(&pod["metadata"]["uid"]), restarts(pod))).collect();
    let kinds = "configmaps,deployments,services,horizontalpodautoscalers,persistentvolumeclaims,jobs";
    let objects = get(kinds, &format!("{}={},!{ENTRY}", PART.0, PART.1)).into_iter().map(|object| {
        let metadata = &object["metadata"];
        let name = [text(&object["kind"]), text(&metadata["name"])];
        // A changed annotation is another generation of a Deployment.
        let generation = metadata["generation"].as_i64().filter(|_| name[1] != ANNOTATED);
        (name, (text(&metadata["uid"]), generation))
    });
    Running { pods, objects: objects.collect() }
}

impl Running {
    /// Fails the test if a container has restarted, or something is missing.
    pub(crate) fn is_whole(&self) {
        assert_eq!(self.pods.len(), 6, "{self:?}");
        assert!(self.pods.values().all(|restarts| *restarts == 0), "{self:?}");
        assert_eq!(self.objects.len(), 10, "{self:?}");
    }
}

fn labels() -> Value {
    json!({ PART.0: PART.1 })
}

fn kinds() -> [Value; 2] {
    let schema = json!({
        "type": "object",
        "properties": { "spec": { "type": "object", "properties": { "number": { "type": "integer" } } } },
    });
    [
        json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": NAMESPACE, "labels": labels() } }),
        json!({
            "apiVersion": "apiextensions.k8s.io/v1",
            "kind": "CustomResourceDefinition",
            "metadata": { "name": VISITS, "labels": labels() },
            "spec": {
                "group": "guestbook.example.com",
                "scope": "Namespaced",
                "names": { "kind": "Visit", "plural": "visits" },
                "versions": [{
                    "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": schema },
                }],
            },
        }),
    ]
}

fn object(api_version: &str, kind: &str, name: &str, rest: &Value) -> Value {
    let mut object = json!({
        "apiVersion": api_version,
        "kind": kind,
        "metadata": { "name": name, "namespace": NAMESPACE, "labels": labels() },
    });
    object.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
    object
}

fn objects() -> Vec<Value> {
    let tiers = [("frontend", 1), ("leader", 1), ("follower", 2)];
    let deployments = tiers
        .map(|(tier, replicas)| object("apps/v1", "Deployment", tier, &json!({ "spec": serving(tier, replicas) })));
    let services = tiers.map(|(tier, _)| {
        let spec = json!({ "selector": { "app": tier }, "ports": [{ "port": 80, "targetPort": 8080 }] });
        object("v1", "Service", tier, &json!({ "spec": spec }))
    });
    let seed = json!({
        "restartPolicy": "Never",
        "containers": [{ "name": "seed", "image": AGNHOST, "command": ["/bin/bash", "-c", "exit 0"] }],
    });
    let seed = json!({ "metadata": { "labels": { "app": "seed" } }, "spec": seed });
    // Nothing measures the processor: the autoscaler sees to its smallest number, and the fleet leaves the replicas to it.
    let scale = json!({
        "scaleTargetRef": { "apiVersion": "apps/v1", "kind": "Deployment", "name": "frontend" },
        "minReplicas": 2,
        "maxReplicas": 4,
    });
    let claim = json!({ "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } });
    let rest = [
        object("v1", "ConfigMap", "settings", &json!({ "data": { "greeting": "hello" } })),
        object("autoscaling/v2", "HorizontalPodAutoscaler", "frontend", &json!({ "spec": scale })),
        object("v1", "PersistentVolumeClaim", "store", &json!({ "spec": claim })),
        object("batch/v1", "Job", "seed", &json!({ "spec": { "template": seed } })),
    ];
    deployments.into_iter().chain(services).chain(rest).collect()
}
