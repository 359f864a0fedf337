//! When the pods of a Work are ready.

use keelway_fleet::{ExistingWork, PodKinds, Work};
use serde_json::{Value as Json, json};

/// Returns whether the pods of a Work are ready, and whether some are. The agent has observed generation 7 of the object.
fn readiness(kind: &str, spec: &Json, status: &Json) -> (bool, bool) {
    let api_version = match kind {
        "Pod" | "ConfigMap" => "v1",
        "Job" => "batch/v1",
        "RayCluster" => "ray.io/v1",
        _ => "apps/v1",
    };
    let work: Work = serde_json::from_value(json!({
        "apiVersion": "fleet.keelway.dev/v1alpha1", "kind": "Work",
        "metadata": { "name": "w", "namespace": "fleet-a", "generation": 2 },
        "spec": {
            "manifest": { "apiVersion": api_version, "kind": kind, "metadata": { "name": "w" }, "spec": spec },
            "placement": { "namespace": "default", "name": "w" },
        },
        "status": {
            "observedGeneration": 2, "objectGeneration": 7, "objectStatus": status,
            "conditions": [{ "type": "Applied", "status": "True", "reason": "Applied", "message": "", "lastTransitionTime": "1970-01-01T00:00:10Z" }],
        },
    }))
    .unwrap();
    let work = ExistingWork::read(&work, &PodKinds::default()).unwrap();
    (work.pods.is_ready, work.pods.is_serving)
}

#[test]
fn replicas_are_ready_once_all_of_them_are() {
    let three = json!({ "replicas": 3 });
    let status = |generation: u64, ready: u64| json!({ "observedGeneration": generation, "replicas": 3, "readyReplicas": ready });
    assert_eq!(readiness("Deployment", &three, &status(7, 3)), (true, true));
    assert_eq!(readiness("Deployment", &three, &status(7, 2)), (false, true));
    // The status is about an earlier version of the object.
    assert_eq!(readiness("Deployment", &three, &status(6, 3)), (false, true));
    assert_eq!(readiness("StatefulSet", &three, &json!({})), (false, false));
    assert_eq!(readiness("Deployment", &json!({ "replicas": 0 }), &json!({ "observedGeneration": 7 })), (true, false));
    // An autoscaler decides on the number.
    assert_eq!(readiness("Deployment", &json!({}), &status(7, 3)), (true, true));
    assert_eq!(readiness("Deployment", &json!({}), &json!({ "observedGeneration": 7 })), (false, false));
}

#[test]
fn every_kind_with_pods_has_a_rule() {
    let daemons = |ready: u64| json!({ "observedGeneration": 7, "desiredNumberScheduled": 2, "numberReady": ready });
    assert_eq!(readiness("DaemonSet", &json!({}), &daemons(2)), (true, true));
    assert_eq!(readiness("DaemonSet", &json!({}), &daemons(1)), (false, true));
    let pod = |status: &str| json!({ "phase": "Running", "conditions": [{ "type": "Ready", "status": status }] });
    assert_eq!(readiness("Pod", &json!({}), &pod("True")), (true, true));
    assert_eq!(readiness("Pod", &json!({}), &pod("False")), (false, false));
    assert_eq!(readiness("Pod", &json!({}), &json!({ "phase": "Pending" })), (false, false));
    assert_eq!(readiness("Job", &json!({}), &json!({ "active": 1 })), (true, false));
    assert_eq!(readiness("RayCluster", &json!({}), &json!({})), (false, false));
    assert_eq!(readiness("RayCluster", &json!({}), &json!({ "state": "ready" })), (true, true));
    assert_eq!(readiness("RayCluster", &json!({}), &pod("False")), (false, false));
    assert_eq!(readiness("ConfigMap", &json!({}), &Json::Null), (true, false));
}
