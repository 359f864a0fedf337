//! What a change of policies would do.

use keelway_fleet::{
    FleetDocuments, PlacedCluster, PlacementChange, PlacementSpec, PolicySet, SchedulePolicy, WorkloadCluster,
    WorkloadPlacement, placement_link,
};
use serde_json::{Value as Json, json};

use crate::world::{deployment, object, parsed, policy};

fn cluster(name: &str, region: &str) -> WorkloadCluster {
    serde_json::from_value(json!({
        "apiVersion": "fleet.keelway.dev/v1alpha1",
        "kind": "Cluster",
        "metadata": { "name": name, "labels": { "region": region } },
        "spec": {},
        "status": {
            "conditions": [{
                "type": "Ready", "status": "True", "reason": "AgentReports", "message": "",
                "lastTransitionTime": "2026-11-27T08:00:00Z",
            }],
            "capacity": { "nodes": 1, "nodeGroups": [{ "rooms": [{ "nodes": 1, "free": { "cpu": "4", "memory": "8Gi", "pods": "110" } }] }] },
        },
    }))
    .unwrap()
}

/// A Deployment whose pods request CPUs.
fn web(name: &str, replicas: u32, cpu: &str) -> Json {
    let mut web = deployment(name, replicas, json!({ "app": name }), json!({}));
    let requests = json!({ "requests": { "cpu": cpu } });
    web["spec"]["template"]["spec"] = json!({ "containers": [{ "name": "c", "resources": requests }] });
    web
}

/// A Placement of an object in one cluster.
fn placed(object: &Json, policy: &str, cluster: &str) -> WorkloadPlacement {
    let object = parsed(object);
    let link = placement_link(&object.reference);
    let placed = PlacedCluster { name: cluster.to_owned(), ..PlacedCluster::default() };
    let clusters = vec![placed];
    let policy = Some(policy.to_owned());
    let spec: PlacementSpec = serde_json::from_value(json!({ "object": object.reference })).unwrap();
    let mut placement = WorkloadPlacement::new(&link.name, PlacementSpec { policy, clusters, ..spec });
    placement.metadata.namespace = Some(link.namespace);
    placement
}

fn fleet(objects: &[Json], placements: Vec<WorkloadPlacement>) -> FleetDocuments {
    let namespace = object("v1", "Namespace", None, "default");
    FleetDocuments {
        clusters: vec![cluster("east", "us"), cluster("west", "eu")],
        placements,
        objects: objects.iter().chain([&namespace]).map(parsed).collect(),
        now: "2026-11-27T09:00:00Z".parse().unwrap(),
        ..FleetDocuments::default()
    }
}

fn in_region(region: &str) -> SchedulePolicy {
    policy("web", json!({ "clusterSelector": { "matchLabels": { "region": region } } }))
}

fn texts(changes: &[PlacementChange]) -> Vec<String> {
    let listed = |clusters: &[PlacedCluster]| {
        let one = |cluster: &PlacedCluster| match cluster.replicas {
            Some(replicas) => format!("{} {replicas}", cluster.name),
            None => cluster.name.clone(),
        };
        clusters.iter().map(one).collect::<Vec<_>>().join(", ")
    };
    let text = |change: &PlacementChange| {
        let (before, after) = (listed(&change.before.clusters), listed(&change.after.clusters));
        format!("{}: {before} -> {after}", change.object.name)
    };
    changes.iter().map(text).collect()
}

fn changes(fleet: &FleetDocuments, before: SchedulePolicy, after: SchedulePolicy) -> Vec<PlacementChange> {
    fleet.changes(&PolicySet::read([before]), &PolicySet::read([after]))
}

#[test]
fn objects_that_would_run_elsewhere_are_changes() {
    let mut named = object("v1", "ConfigMap", Some("default"), "named");
    named["metadata"]["annotations"] = json!({ "fleet.keelway.dev/cluster": "west" });
    let web = web("web", 4, "100m");
    let placements = vec![placed(&web, "web", "west")];
    let fleet = fleet(&[web, named], placements);
    assert_eq!(changes(&fleet, in_region("eu"), in_region("eu")), []);
    let moved = changes(&fleet, in_region("eu"), in_region("us"));
    assert_eq!(texts(&moved), ["web: west -> east"], "an annotation decides on the other object");
    let left = moved[0].after.reasons.iter().find(|reason| reason.cluster == "west").unwrap();
    assert_eq!(left.reason, "NotSelected");
    let split = json!([{ "topologyValue": "eu", "percentage": 75 }, { "topologyValue": "us", "percentage": 25 }]);
    let divided = policy("web", json!({ "spreadConstraints": { "topologyKey": "region", "percentageSplit": split } }));
    assert_eq!(texts(&changes(&fleet, in_region("eu"), divided)), ["web: west -> east 1, west 3"]);
}

#[test]
fn room_is_given_once() {
    let objects = [web("one", 1, "3"), web("two", 1, "3")];
    let placements = objects.iter().map(|object| placed(object, "web", "west")).collect();
    let fleet = fleet(&objects, placements);
    // The other one stays, because it has no alternative.
    assert_eq!(texts(&changes(&fleet, in_region("eu"), in_region("us"))), ["one: west -> east"]);
}

#[test]
fn what_is_pending_anyway_is_no_change() {
    let fleet = fleet(&[web("web", 1, "1")], Vec::new());
    assert_eq!(changes(&fleet, in_region("eu"), in_region("eu")), [], "both decisions place it");
    assert_eq!(texts(&changes(&fleet, in_region("nowhere"), in_region("eu"))), ["web:  -> west"]);
}
