//! Room is reserved until a report counts the pods, and no cluster is ever overfilled.

use k8s_openapi::jiff::Timestamp;
use keelway_fleet::{PodKinds, Work, uncounted_pods};
use serde_json::{Value as Json, json};

use crate::simulated_cluster::{CapacityBug, CapacitySimulation};

#[test]
fn no_cluster_is_overfilled_in_whatever_order_pods_arrive() {
    let (mut placed, mut refused) = (0, 0);
    for seed in 0..400 {
        let mut simulation = CapacitySimulation::new(seed, None);
        if let Err(violation) = simulation.run(120) {
            panic!("seed {seed}: {violation}");
        }
        placed += simulation.placed;
        refused += simulation.refused;
    }
    // The histories contain what they are for.
    assert!(placed > 4000 && refused > 4000, "{placed} placed, {refused} refused");
}

#[test]
fn every_planted_bug_of_capacity_is_found() {
    for bug in CapacityBug::ALL {
        let is_found = (0..400).any(|seed| CapacitySimulation::new(seed, Some(bug)).run(120).is_err());
        assert!(is_found, "{bug:?}");
    }
}

/// A Work of an object with a status, which the agent observed at second 10.
fn work(kind: &str, spec: &Json, status: &Json) -> Work {
    let group = match kind {
        "Job" | "CronJob" => "batch/v1",
        "RayCluster" => "ray.io/v1",
        _ => "apps/v1",
    };
    serde_json::from_value(json!({
        "apiVersion": "fleet.keelway.dev/v1alpha1", "kind": "Work",
        "metadata": { "name": "w", "namespace": "fleet-a", "generation": 2 },
        "spec": {
            "manifest": { "apiVersion": group, "kind": kind, "metadata": { "name": "w" }, "spec": spec },
            "placement": { "namespace": "default", "name": "w" },
        },
        "status": {
            "observedGeneration": 2, "objectGeneration": 7, "objectStatus": status,
            "observedTime": "1970-01-01T00:00:10.000000Z",
            "conditions": [{ "type": "Applied", "status": "True", "reason": "Applied", "message": "", "lastTransitionTime": "1970-01-01T00:00:10Z" }],
        },
    }))
    .unwrap()
}

fn uncounted(work: &Work, reported: i64) -> u64 {
    uncounted_pods(work, &PodKinds::default(), Timestamp::from_second(reported).ok()).number()
}

#[test]
fn a_report_counts_the_pods_that_a_status_showed_before() {
    let spec = json!({ "replicas": 5, "template": { "spec": { "containers": [] } } });
    let partly = work("Deployment", &spec, &json!({ "replicas": 3, "observedGeneration": 7 }));
    assert_eq!((uncounted(&partly, 9), uncounted(&partly, 10)), (5, 2));
    assert_eq!(uncounted_pods(&partly, &PodKinds::default(), None).number(), 5);
    let stale = work("Deployment", &spec, &json!({ "replicas": 5, "observedGeneration": 6 }));
    assert_eq!(uncounted(&stale, 20), 5);
    let mut changed = partly.clone();
    changed.metadata.generation = Some(3);
    assert_eq!(uncounted(&changed, 20), 5);
    let mut failed = partly;
    failed.status.as_mut().unwrap().conditions[0].status = "False".to_owned();
    assert_eq!(uncounted(&failed, 20), 5);
    assert_eq!(uncounted(&work("Deployment", &spec, &Json::Null), 20), 5);
}

#[test]
fn each_kind_shows_its_pods() {
    let template = json!({ "spec": { "containers": [] } });
    let daemon =
        |now: u32| json!({ "desiredNumberScheduled": 3, "currentNumberScheduled": now, "observedGeneration": 7 });
    let spec = json!({ "template": template });
    assert_eq!(uncounted(&work("DaemonSet", &spec, &daemon(2)), 20), 1);
    assert_eq!(uncounted(&work("DaemonSet", &spec, &daemon(3)), 20), 0);
    let spec = json!({ "parallelism": 4, "completions": 6, "template": template });
    assert_eq!(uncounted(&work("Job", &spec, &json!({ "active": 3, "ready": 3 })), 20), 1);
    assert_eq!(uncounted(&work("Job", &spec, &json!({ "active": 1, "succeeded": 5 })), 20), 0);
    let complete = json!({ "succeeded": 6, "conditions": [{ "type": "Complete", "status": "True" }] });
    assert_eq!(uncounted(&work("Job", &spec, &complete), 20), 0);
    let ray = json!({ "headGroupSpec": { "template": template } });
    assert_eq!(uncounted(&work("RayCluster", &ray, &json!({})), 20), 1);
    assert_eq!(uncounted(&work("RayCluster", &ray, &json!({ "state": "ready" })), 20), 0);
}
