//! Which cluster is chosen by what is free, and what people read if none is.

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use keelway_fleet::{
    ClusterReport, KeepReason, PlacementOutcome, PlacementSpec, PodKinds, PolicySet, WorkPlan, placement_link,
    placement_status,
};
use serde_json::{Value as Json, json};

use crate::world::{World, cluster, deployment, labelled, object, parsed, policy};

/// Nodes with 4 CPUs each.
fn report(world: &mut World, cluster: &str, nodes: u32) {
    let report = json!({ "nodes": nodes, "nodeGroups": [{ "rooms": [{ "nodes": nodes, "free": { "cpu": "4", "memory": "8Gi", "pods": "110" } }] }] });
    world.fleet.capacity.report(cluster, Some(&serde_json::from_value(report).unwrap()));
}

/// A Deployment whose pods request CPUs.
fn web(name: &str, replicas: u32, cpu: &str) -> Json {
    let mut web = deployment(name, replicas, json!({}), json!({}));
    let requests = json!({ "requests": { "cpu": cpu } });
    web["spec"]["template"]["spec"] = json!({ "containers": [{ "name": "c", "resources": requests }] });
    web
}

/// Decides on a new object, and reserves what it asks for.
fn place(world: &mut World, object: &Json) -> PlacementSpec {
    world.current = None;
    let placement = world.place(object);
    let demand = world.fleet.pod_kinds.demand(object);
    let demands = placement.clusters.iter().map(|cluster| (cluster.name.clone(), demand.clone()));
    let link = placement_link(&parsed(object).reference);
    world.fleet.capacity.reserve(&link, &demands.collect());
    placement
}

/// The cluster that was chosen.
fn chosen(placement: &PlacementSpec) -> Option<&str> {
    placement.clusters.first().map(|cluster| cluster.name.as_str())
}

fn world() -> World {
    let mut world = World::new([cluster("a"), cluster("b"), cluster("c")]);
    world.set_policies([policy("all", json!({}))]);
    world.fleet.capacity = keelway_fleet::CapacityLedger::default();
    world
}

fn message(placement: &PlacementSpec) -> String {
    let none: [ClusterReport<'_>; 0] = [];
    let status = placement_status(placement, None, &none, &WorkPlan::default(), None, &Time(Timestamp::UNIX_EPOCH));
    let scheduled = status.conditions.into_iter().find(|condition| condition.type_ == "Scheduled").unwrap();
    format!("{} {}: {}", scheduled.status, scheduled.reason, scheduled.message)
}

#[test]
fn twenty_deployments_at_once_do_not_overfill_a_cluster() {
    let mut world = world();
    report(&mut world, "a", 2);
    report(&mut world, "b", 3);
    report(&mut world, "c", 1);
    let mut placed: Vec<String> = Vec::new();
    for number in 0..20 {
        let placement = place(&mut world, &web(&format!("web-{number}"), 1, "2"));
        placed.push(self::chosen(&placement).unwrap_or("none").to_owned());
    }
    let number = |name: &str| placed.iter().filter(|placed| *placed == name).count();
    assert_eq!([number("a"), number("b"), number("c"), number("none")], [4, 6, 2, 8]);
}

#[test]
fn an_object_without_room_is_pending_with_the_reason_of_each_cluster() {
    let mut world = world();
    report(&mut world, "a", 2);
    place(&mut world, &web("first", 1, "3"));
    let report = json!({ "nodes": 5, "nodeGroups": [
        { "taints": [{ "key": "gpu", "effect": "NoSchedule" }], "rooms": [{ "nodes": 3, "free": { "cpu": "64", "pods": "110" } }] },
        { "labels": { "zone": "b" }, "rooms": [{ "nodes": 2, "free": { "cpu": "1500m", "memory": "8Gi", "pods": "110" } }] },
    ] });
    world.fleet.capacity.report("b", Some(&serde_json::from_value(report).unwrap()));
    let placement = place(&mut world, &web("second", 2, "3"));
    assert_eq!(
        message(&placement),
        "False NoRoom: the object asks for 2 pods with cpu 3 each, and no cluster that may run it has room: \
         a: 1 of 2 pods fit for certain on 2 nodes; the node with the most room has cpu 4; another pod is on its way there; \
         b: 0 of 2 pods fit for certain on 5 nodes, 3 of which have taints that the pods do not tolerate; the node with the most room has cpu 1500m; \
         c: its agent has not reported what is free in the cluster"
    );
}

#[test]
fn a_pending_object_is_chosen_again_when_there_is_room_and_writes_nothing_before() {
    let mut world = world();
    report(&mut world, "a", 1);
    let big = web("big", 3, "4");
    assert!(place(&mut world, &big).clusters.is_empty());
    assert_eq!(world.decide(&big).outcome, PlacementOutcome::Keep(KeepReason::Settled));
    report(&mut world, "a", 2);
    assert_eq!(world.decide(&big).outcome, PlacementOutcome::Keep(KeepReason::Settled));
    report(&mut world, "a", 3);
    assert_eq!(world.placed(&big), [("a", None)]);
    assert_eq!(world.current.as_ref().unwrap().needs, None);
    // It asks for less, and still does not fit: that is written.
    world.current = None;
    report(&mut world, "a", 1);
    world.place(&big);
    let smaller = web("big", 2, "4");
    assert!(matches!(world.decide(&smaller).outcome, PlacementOutcome::Place(_)));
}

#[test]
fn what_runs_does_not_move_because_a_cluster_is_full() {
    let mut world = world();
    report(&mut world, "b", 1);
    let first = web("first", 1, "4");
    assert_eq!(world.placed(&first), [("b", None)]);
    report(&mut world, "a", 9);
    report(&mut world, "b", 0);
    assert_eq!(world.decide(&first).outcome, PlacementOutcome::Keep(KeepReason::Settled));
    let more = web("first", 9, "4");
    assert_eq!(world.decide(&more).outcome, PlacementOutcome::Keep(KeepReason::Settled));
    // It stays in a cluster that leaves if no other one has room.
    report(&mut world, "a", 0);
    world.cluster("b").is_leaving = true;
    assert_eq!(world.decide(&first).outcome, PlacementOutcome::Keep(KeepReason::NoAlternative));
}

/// The order of the policy is filled, then objects go to the next cluster. Nothing moves back.
#[test]
fn clusters_are_filled_in_the_order_of_the_policy() {
    let mut world = world();
    let order = json!([{ "key": "kubernetes.io/metadata.name", "operator": "In", "values": ["c", "a"] }]);
    world.set_policies([policy("fill", json!({ "orderedClusterSelector": { "matchExpressions": order } }))]);
    for name in ["a", "b", "c"] {
        report(&mut world, name, 1);
    }
    let mut chosen = Vec::new();
    for number in 0..5 {
        let placement = place(&mut world, &web(&format!("web-{number}"), 1, "2"));
        chosen.push(self::chosen(&placement).unwrap_or("none").to_owned());
    }
    assert_eq!(chosen, ["c", "c", "a", "a", "none"]);
    assert_eq!((world.reason("b"), world.reason("c")), ("NotOrdered", "NoRoom"));
    // The first cluster has room again: what runs elsewhere stays, and what waits is placed there.
    let waits = web("web-4", 1, "2");
    report(&mut world, "c", 2);
    assert_eq!(world.placed(&waits), [("c", None)]);
    let mut other = world.current.clone().unwrap();
    "a".clone_into(&mut other.clusters[0].name);
    world.current = Some(other.clone());
    assert_eq!(world.place(&waits).clusters, other.clusters);
}

#[test]
fn a_value_of_the_order_is_a_group_of_clusters() {
    let provider = |name: &str, provider: &str| labelled(name, json!({ "fleet.keelway.dev/provider": provider }));
    let mut world = World::new([provider("a", "cloud"), provider("b", "own"), provider("c", "own")]);
    let order = json!([{ "key": "fleet.keelway.dev/provider", "operator": "In", "values": ["own", "cloud"] }]);
    world.set_policies([policy("burst", json!({ "orderedClusterSelector": { "matchExpressions": order } }))]);
    assert_eq!(world.placed(&web("web", 1, "1")), [("b", None)]);
    let reasons = &world.current.as_ref().unwrap().reasons;
    assert_eq!(reasons[0].message, "b comes first in spec.orderedClusterSelector");
    assert_eq!(reasons[2].message, "b is equally suitable, and its name comes first");
}

#[test]
fn an_order_of_a_person_needs_no_room() {
    let mut world = world();
    let mut named = web("named", 1, "4");
    named["metadata"]["annotations"] = json!({ "fleet.keelway.dev/cluster": "c" });
    assert_eq!(world.placed(&named), [("c", None)]);
    world.current = None;
    world.fleet.policies = PolicySet::read([policy("all", json!({ "spreadConstraints": {} }))]);
    assert_eq!(world.placed(&web("spread", 3, "4")), [("a", Some(1)), ("b", Some(1)), ("c", Some(1))]);
    // An object without pods needs no room either.
    world.current = None;
    world.fleet.policies = PolicySet::read([policy("all", json!({}))]);
    assert_eq!(world.placed(&object("v1", "ConfigMap", Some("default"), "x")), [("a", None)]);
}

#[test]
fn pods_that_arrive_first_do_not_take_the_room_of_larger_ones() {
    let mut world = world();
    report(&mut world, "a", 2);
    assert!(chosen(&place(&mut world, &web("large", 2, "3"))).is_some());
    // One CPU is left on each node. A pod of 2 CPUs would fit only on a node that a large pod needs, and so would two pods of one CPU.
    assert!(chosen(&place(&mut world, &web("medium", 1, "2"))).is_none());
    assert_eq!(world.reason("a"), "NoRoom");
    assert!(chosen(&place(&mut world, &web("small", 2, "1"))).is_none());
    assert!(chosen(&place(&mut world, &web("small", 1, "1"))).is_some());
}

#[test]
fn pods_without_requests_take_no_room_of_others() {
    let mut world = world();
    report(&mut world, "a", 2);
    // A node has 110 places for pods, and two for pods of 2 CPUs.
    assert!(chosen(&place(&mut world, &web("idle", 50, "0"))).is_some());
    assert!(chosen(&place(&mut world, &web("web", 4, "2"))).is_some());
    assert!(chosen(&place(&mut world, &web("more", 1, "2"))).is_none());
}

#[test]
fn an_object_that_no_cluster_may_run_does_not_lack_room() {
    let mut world = world();
    world.set_policies([policy("all", json!({ "clusterSelector": { "matchLabels": { "region": "none" } } }))]);
    let text = message(&place(&mut world, &web("web", 1, "1")));
    assert!(text.starts_with("False NoCluster: "), "{text}");
}

#[test]
fn a_daemon_set_needs_room_on_each_node() {
    let mut world = world();
    report(&mut world, "a", 2);
    let mut daemon = web("daemon", 1, "2");
    daemon["kind"] = json!("DaemonSet");
    assert_eq!(place(&mut world, &daemon).clusters.len(), 1);
    daemon["metadata"]["name"] = json!("other");
    daemon["spec"]["template"]["spec"]["containers"][0]["resources"]["requests"]["cpu"] = json!("3");
    assert!(place(&mut world, &daemon).clusters.is_empty());
}

#[test]
fn pods_that_avoid_each_other_need_a_node_each() {
    let mut world = world();
    report(&mut world, "a", 2);
    let mut apart = web("apart", 3, "1");
    let rule =
        json!({ "topologyKey": "kubernetes.io/hostname", "labelSelector": { "matchLabels": { "app": "apart" } } });
    apart["spec"]["template"]["spec"]["affinity"] =
        json!({ "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [rule] } });
    assert!(place(&mut world, &apart).clusters.is_empty());
    apart["spec"]["replicas"] = json!(2);
    assert_eq!(place(&mut world, &apart).clusters.len(), 1);
}

/// The decision takes the demand from the table of kinds.
#[test]
fn a_custom_kind_needs_room_for_all_of_its_pods() {
    let mut world = world();
    report(&mut world, "a", 2);
    let template = json!({ "spec": { "containers": [{ "resources": { "requests": { "cpu": "2" } } }] } });
    let mut ray = object("ray.io/v1", "RayCluster", Some("default"), "ray");
    ray["spec"] = json!({ "headGroupSpec": { "template": template }, "workerGroupSpecs": [{ "replicas": 4, "template": template }] });
    assert!(place(&mut world, &ray).clusters.is_empty());
    ray["spec"]["workerGroupSpecs"][0]["replicas"] = json!(3);
    assert_eq!(place(&mut world, &ray).clusters.len(), 1);
    assert!(PodKinds::default().runs_pods("ray.io", "RayCluster"));
}

#[test]
fn a_cluster_that_adds_nodes_is_chosen_if_no_cluster_has_room() {
    let mut world = world();
    for name in ["a", "b", "c"] {
        report(&mut world, name, 1);
    }
    world.cluster("b").is_autoscaled = true;
    world.cluster("c").is_autoscaled = true;
    let reason = |placement: &PlacementSpec, cluster: &str| {
        let reason = placement.reasons.iter().find(|reason| reason.cluster == cluster).unwrap();
        format!("{}: {}", reason.reason, reason.message)
    };
    assert_eq!(chosen(&place(&mut world, &web("fits", 1, "3"))), Some("a"));
    assert_eq!(chosen(&place(&mut world, &web("fits-too", 1, "3"))), Some("b"), "while one has room, none has to grow");
    assert_eq!(chosen(&place(&mut world, &web("fits-as-well", 1, "3"))), Some("c"));
    let grows = place(&mut world, &web("grows", 4, "3"));
    assert_eq!(chosen(&grows), Some("b"));
    assert_eq!(
        reason(&grows, "b"),
        "Grows: no cluster is known to have room for the object, and this one adds nodes (spec.autoscaled)"
    );
    assert!(reason(&grows, "a").starts_with("NoRoom: "));
    assert_eq!(reason(&grows, "c"), "Outranked: b is equally suitable, and its name comes first");
    // Also a cluster without a node.
    report(&mut world, "b", 0);
    world.cluster("c").is_autoscaled = false;
    assert_eq!(chosen(&place(&mut world, &web("first", 1, "3"))), Some("b"));
    world.cluster("b").is_cordoned = true;
    assert_eq!(chosen(&place(&mut world, &web("waits", 1, "3"))), None);
}
