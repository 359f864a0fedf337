//! The status of an object, merged from its clusters.

use keelway_api::{Time, jiff::Timestamp};
use keelway_fleet::{
    ClusterReport, ManifestError, WorkPlan, WorkStatus, WorkWait, merged_status, object_status, placement_status,
};
use serde_json::{Value as Json, json};

use crate::world::{World, cluster, deployment, object, parsed, policy};

fn reported(status: &Json) -> WorkStatus {
    serde_json::from_value(json!({
        "conditions": [{ "type": "Applied", "status": "True", "reason": "Applied", "message": "", "lastTransitionTime": "2026-11-27T08:00:00Z" }],
        "objectGeneration": 1,
        "objectStatus": status,
    }))
    .unwrap()
}

/// Merges the statuses of clusters `a`, `b`, ...
fn merge(object: &Json, statuses: &[Json]) -> Option<Json> {
    let works: Vec<WorkStatus> = statuses.iter().map(reported).collect();
    let names = ["a", "b", "c"];
    let reports: Vec<ClusterReport<'_>> =
        works.iter().zip(names).map(|(status, cluster)| ClusterReport { cluster, status, is_current: true }).collect();
    merged_status(&parsed(object), &reports)
}

fn condition(kind: &str, status: &str, message: &str) -> Json {
    json!({ "type": kind, "status": status, "reason": format!("Is{status}"), "message": message, "lastTransitionTime": "2026-11-27T08:00:00Z" })
}

#[test]
fn replicas_are_added_and_conditions_name_their_clusters() {
    let mut web = deployment("web", 10, json!({}), json!({}));
    web["metadata"]["generation"] = json!(4);
    let part = |ready: u32, available: &str| {
        json!({ "observedGeneration": 1, "replicas": 5, "readyReplicas": ready, "availableReplicas": ready, "updatedReplicas": 5,
                "conditions": [condition("Available", available, "minimum")] })
    };
    let merged = merge(&web, &[part(5, "True"), part(5, "True")]).unwrap();
    assert_eq!((&merged["replicas"], &merged["readyReplicas"]), (&json!(10), &json!(10)));
    assert_eq!(merged["observedGeneration"], 4);
    assert_eq!(merged["conditions"][0]["status"], "True");
    assert_eq!(merged["conditions"][0]["message"], "a: minimum; b: minimum");
    let merged = merge(&web, &[part(5, "True"), part(2, "False")]).unwrap();
    assert_eq!(merged["readyReplicas"], 7);
    assert_eq!(
        (&merged["conditions"][0]["status"], &merged["conditions"][0]["reason"]),
        (&json!("False"), &json!("IsFalse"))
    );
    let merged = merge(&web, &[part(5, "True"), json!({ "observedGeneration": 0, "replicas": 5 })]).unwrap();
    assert_eq!(merged["conditions"][0]["status"], "Unknown");
    assert_eq!(merged["observedGeneration"], 3);
}

#[test]
fn a_failure_in_one_cluster_is_a_failure() {
    let web = deployment("web", 2, json!({}), json!({}));
    let failed = json!({ "replicas": 0, "conditions": [condition("ReplicaFailure", "True", "quota")] });
    let merged = merge(&web, &[json!({ "replicas": 1 }), failed]).unwrap();
    assert_eq!(
        (&merged["conditions"][0]["status"], &merged["conditions"][0]["reason"]),
        (&json!("True"), &json!("IsTrue"))
    );
}

#[test]
fn an_object_in_one_cluster_has_its_status() {
    let status = json!({ "loadBalancer": { "ingress": [{ "ip": "192.0.2.1" }] }, "x": 1 });
    assert_eq!(merge(&object("v1", "Service", Some("default"), "web"), std::slice::from_ref(&status)), Some(status));
    let custom = object("example.com/v1", "Thing", Some("default"), "x");
    assert_eq!(merge(&custom, &[json!({ "phase": "Up" })]), Some(json!({ "phase": "Up" })));
    assert_eq!(merge(&custom, &[]), None);
}

#[test]
fn addresses_of_load_balancers_are_joined() {
    let one = json!({ "loadBalancer": { "ingress": [{ "ip": "192.0.2.1" }] } });
    let other = json!({ "loadBalancer": { "ingress": [{ "hostname": "lb.example.com" }, { "ip": "192.0.2.1" }] } });
    let none = json!({ "loadBalancer": {} });
    for (version, kind) in [("v1", "Service"), ("networking.k8s.io/v1", "Ingress")] {
        let merged = merge(&object(version, kind, Some("default"), "web"), &[one.clone(), other.clone(), none.clone()]);
        let all = json!({ "loadBalancer": { "ingress": [{ "ip": "192.0.2.1" }, { "hostname": "lb.example.com" }] } });
        assert_eq!(merged, Some(all));
    }
}

#[test]
fn a_job_is_complete_once_it_is_complete_everywhere() {
    let job = object("batch/v1", "Job", Some("default"), "import");
    let done = json!({ "succeeded": 1, "startTime": "2026-11-27T08:00:00Z", "completionTime": "2026-11-27T08:05:00Z",
                       "conditions": [condition("Complete", "True", "")] });
    let later = json!({ "succeeded": 2, "startTime": "2026-11-27T08:01:00Z", "completionTime": "2026-11-27T08:09:00Z",
                        "conditions": [condition("Complete", "True", "")] });
    let merged = merge(&job, &[done.clone(), later]).unwrap();
    assert_eq!(merged["succeeded"], 3);
    assert_eq!(
        (&merged["startTime"], &merged["completionTime"]),
        (&json!("2026-11-27T08:00:00Z"), &json!("2026-11-27T08:09:00Z"))
    );
    assert_eq!(merged["conditions"][0]["status"], "True");
    let running = json!({ "active": 1, "startTime": "2026-11-27T08:01:00Z" });
    let merged = merge(&job, &[done, running]).unwrap();
    assert_eq!((merged.get("completionTime"), &merged["conditions"][0]["status"]), (None, &json!("Unknown")));
}

/// An API server refuses a status of a Job that goes back, as a whole.
#[test]
fn the_status_of_a_job_only_goes_forward() {
    let mut job = object("batch/v1", "Job", Some("default"), "import");
    let first = json!({ "active": 1, "failed": 2, "startTime": "2026-11-27T08:01:00Z" });
    job["status"] = merge(&job, &[first.clone(), json!({})]).unwrap();
    assert_eq!(job["status"]["startTime"], "2026-11-27T08:01:00Z");
    let done = json!({ "succeeded": 1, "startTime": "2026-11-27T08:00:00Z", "completionTime": "2026-11-27T08:00:30Z",
                       "conditions": [condition("Complete", "True", ""), condition("SuccessCriteriaMet", "True", "")] });
    let merged = merge(&job, &[done.clone(), done.clone()]).unwrap();
    let fields = ["startTime", "completionTime", "failed", "succeeded"].map(|field| &merged[field]);
    let late = json!("2026-11-27T08:01:00Z");
    assert_eq!(fields, [&late, &late, &json!(2), &json!(2)]);

    // A complete Job stays so, whatever a cluster reports that runs it later.
    job["status"] = merged.clone();
    assert_eq!(merge(&job, &[done, first]), Some(merged));
}

#[test]
fn a_job_has_failed_once_it_has_ended_everywhere() {
    let job = object("batch/v1", "Job", Some("default"), "import");
    let failed = json!({ "failed": 1, "startTime": "2026-11-27T08:00:00Z",
                         "conditions": [condition("FailureTarget", "True", ""), condition("Failed", "True", "")] });
    let kinds = |status: &serde_json::Value| {
        let conditions = status["conditions"].as_array().unwrap().iter();
        conditions
            .filter(|condition| condition["status"] == "True")
            .map(|condition| condition["type"].clone())
            .collect::<Vec<_>>()
    };
    let merged = merge(&job, &[failed.clone(), json!({ "active": 1, "startTime": "2026-11-27T08:00:00Z" })]).unwrap();
    assert_eq!((kinds(&merged), &merged["active"]), (vec![json!("FailureTarget")], &json!(1)));
    let merged = merge(&job, &[failed.clone(), failed]).unwrap();
    assert_eq!(kinds(&merged), [json!("Failed"), json!("FailureTarget")]);
}

#[test]
fn other_kinds() {
    let set = merge(
        &object("apps/v1", "DaemonSet", Some("default"), "x"),
        &[
            json!({ "desiredNumberScheduled": 2, "numberReady": 1 }),
            json!({ "desiredNumberScheduled": 3, "numberReady": 3 }),
        ],
    );
    assert_eq!(set, Some(json!({ "desiredNumberScheduled": 5, "numberReady": 4 })));
    let cron = merge(
        &object("batch/v1", "CronJob", Some("default"), "x"),
        &[
            json!({ "lastScheduleTime": "2026-11-27T08:00:00Z", "active": [{ "name": "x-1" }] }),
            json!({ "lastScheduleTime": "2026-11-27T08:05:00Z" }),
        ],
    );
    assert_eq!(cron, Some(json!({ "active": [{ "name": "x-1" }], "lastScheduleTime": "2026-11-27T08:05:00Z" })));
    let claim = merge(
        &object("v1", "PersistentVolumeClaim", Some("default"), "x"),
        &[json!({ "phase": "Bound", "accessModes": ["ReadWriteOnce"] }), json!({ "phase": "Pending" })],
    );
    assert_eq!(claim, Some(json!({ "phase": "Pending", "accessModes": ["ReadWriteOnce"] })));
    let pod = merge(
        &object("v1", "Pod", Some("default"), "x"),
        &[json!({ "phase": "Running" }), json!({ "phase": "Failed" })],
    );
    assert_eq!(pod, Some(json!({ "phase": "Failed" })));
}

#[test]
fn the_status_of_a_placement_names_what_is_missing() {
    let now = Time("2026-11-27T08:00:00Z".parse::<Timestamp>().unwrap());
    let mut world = World::new([cluster("a"), cluster("b")]);
    world.set_policies([policy("even", json!({ "spreadConstraints": {} }))]);
    let web = deployment("web", 4, json!({}), json!({}));
    let placement = world.place(&web);
    let work = reported(&json!({ "replicas": 2, "readyReplicas": 2 }));
    let report = ClusterReport { cluster: "a", status: &work, is_current: true };
    let status = placement_status(&placement, Some(3), &[report], &WorkPlan::default(), None, &now);
    assert_eq!((status.clusters[0].replicas, status.clusters[0].ready_replicas), (Some(2), Some(2)));
    assert_eq!((status.clusters[1].replicas, status.clusters[1].ready_replicas), (None, None));
    let condition = |kind: &str| status.conditions.iter().find(|condition| condition.type_ == kind).unwrap();
    assert_eq!(condition("Applied").message, "not applied in b; status.clusters has the reasons");
    assert_eq!(condition("Scheduled").message, "a, b");
    let merged = object_status(&parsed(&web), &placement, &[report]).unwrap();
    assert_eq!((&merged["replicas"], merged.get("observedGeneration")), (&json!(2), None));
    let complete =
        json!({ "observedGeneration": 1, "replicas": 2, "conditions": [{ "type": "Available", "status": "True" }] });
    let work = reported(&complete);
    let report = ClusterReport { cluster: "a", status: &work, is_current: true };
    let merged = object_status(&parsed(&web), &placement, &[report]).unwrap();
    assert_eq!((&merged["observedGeneration"], &merged["conditions"][0]["status"]), (&json!(0), &json!("Unknown")));
    let nowhere = keelway_fleet::PlacementSpec { clusters: vec![], reasons: vec![], ..placement.clone() };
    let status = placement_status(&nowhere, Some(4), &[], &WorkPlan::default(), Some(&status), &now);
    assert!(status.conditions.iter().all(|condition| condition.status == "False" && condition.reason == "NoCluster"));
}

#[test]
fn the_status_of_a_placement_says_why_a_cluster_has_no_work_as_decided() {
    let time = |text: &str| Time(text.parse::<Timestamp>().unwrap());
    let (before, after) = (time("2026-11-27T08:00:00Z"), time("2026-11-27T09:00:00Z"));
    let mut world = World::new([cluster("a")]);
    world.set_policies([policy("one", json!({}))]);
    let placement = world.place(&object("v1", "ConfigMap", Some("default"), "x"));
    // The agent has applied what the object was before it grew.
    let work = reported(&json!({}));
    let report = [ClusterReport { cluster: "a", status: &work, is_current: false }];
    let too_large = WorkWait::Manifest(ManifestError::TooLarge { cluster: "a".to_owned(), size: 2_000_000 });
    let works = WorkPlan { orders: vec![], waiting: vec![too_large] };
    let status = placement_status(&placement, Some(1), &report, &works, None, &before);
    let [applied] = status.clusters[0].conditions.as_slice() else { panic!("{status:?}") };
    assert_eq!((applied.status.as_str(), applied.reason.as_str()), ("False", "TooLarge"));
    assert_eq!(status.conditions.iter().find(|one| one.type_ == "Applied").unwrap().status, "False");
    let again = placement_status(&placement, Some(1), &report, &works, Some(&status), &after);
    assert_eq!(again, status, "a fault that stays is written once");
    let report = [ClusterReport { is_current: true, ..report[0] }];
    let corrected = placement_status(&placement, Some(1), &report, &WorkPlan::default(), Some(&status), &after);
    assert_eq!(corrected.clusters[0].conditions, work.conditions);
    assert!(corrected.conditions.iter().all(|condition| condition.status == "True"));
}

/// Returns the message of the condition `Scheduled` of a stored Placement.
fn scheduled(world: &World) -> String {
    let placement = world.current.as_ref().unwrap();
    let now = Time(Timestamp::UNIX_EPOCH);
    let status = placement_status(placement, Some(1), &[], &WorkPlan::default(), None, &now);
    let scheduled = status.conditions.into_iter().find(|condition| condition.type_ == "Scheduled").unwrap();
    assert_eq!((scheduled.status.as_str(), scheduled.reason.as_str()), ("True", "Scheduled"));
    scheduled.message
}

#[test]
fn a_placement_in_one_cluster_states_why_it_is_there() {
    let mut world = World::new([cluster("a"), cluster("b")]);
    world.set_policies([policy("all", json!({}))]);
    world.place(&deployment("web", 2, json!({}), json!({})));
    assert_eq!(scheduled(&world), "a: the best of 2 clusters that can run the object");
    world.set_policies([policy("all", json!({ "spreadConstraints": {} }))]);
    world.place(&deployment("web", 2, json!({}), json!({})));
    assert_eq!(scheduled(&world), "a, b", "spec.reasons has the others");
}
