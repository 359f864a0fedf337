//! What stays where it is.

use keelway_fleet::{ClusterTaint, KeepReason, PlacementOutcome, PolicySet, TaintEffect};
use serde_json::{Value as Json, json};

use crate::world::{World, cluster, deployment, object, policy};

fn not_ready(world: &mut World, name: &str) {
    let ready = world.cluster(name).ready.as_mut().unwrap();
    "Unknown".clone_into(&mut ready.status);
    "no report for 40 s".clone_into(&mut ready.message);
}

#[test]
fn the_first_ready_cluster_by_name_is_chosen_and_each_other_has_a_reason() {
    let mut world = World::new([cluster("a"), cluster("b"), cluster("c"), cluster("d"), cluster("e"), cluster("f")]);
    world.set_policies([policy("all", json!({}))]);
    not_ready(&mut world, "a");
    world.cluster("b").is_cordoned = true;
    let taint = |effect| ClusterTaint { key: "gpu".to_owned(), value: Some("true".to_owned()), effect };
    world.cluster("c").taints.push(taint(TaintEffect::NoSchedule));
    world.cluster("d").taints.push(taint(TaintEffect::PreferNoSchedule));
    let placement = world.place(&object("v1", "ConfigMap", Some("default"), "x"));
    let reasons: Vec<String> = placement
        .reasons
        .iter()
        .map(|reason| format!("{}: {}: {}", reason.cluster, reason.reason, reason.message))
        .collect();
    assert_eq!(
        reasons,
        [
            "a: NotReady: the cluster is not ready: no report for 40 s",
            "b: Cordoned: the cluster is cordoned (spec.unschedulable)",
            "c: Tainted: the cluster has the taint gpu=true:NoSchedule",
            "d: Outranked: e is preferred, because the cluster has a taint with the effect PreferNoSchedule",
            "e: Chosen: the best of 3 clusters that can run the object",
            "f: Outranked: e is equally suitable, and its name comes first",
        ]
    );
}

#[test]
fn a_policy_tolerates_taints() {
    let mut world = World::new([cluster("a"), cluster("b")]);
    let taint = |effect| ClusterTaint { key: "gpu".to_owned(), value: None, effect };
    world.cluster("a").taints.push(taint(TaintEffect::NoSchedule));
    world.cluster("b").taints.push(taint(TaintEffect::PreferNoSchedule));
    let config = object("v1", "ConfigMap", Some("default"), "x");
    let mut chosen = |tolerations: Json| {
        world.set_policies([policy("all", json!({ "tolerations": tolerations }))]);
        world.current = None;
        world.place(&config).clusters[0].name.clone()
    };
    assert_eq!(chosen(json!([])), "b");
    assert_eq!(chosen(json!([{ "key": "gpu", "operator": "Exists" }])), "a", "equally suitable, and first by name");
    assert_eq!(chosen(json!([{ "key": "gpu", "effect": "NoSchedule" }])), "a", "its only taint is tolerated");
    assert_eq!(chosen(json!([{ "key": "disk" }])), "b");
}

#[test]
fn an_object_stays_in_a_cluster_that_is_unreachable_cordoned_or_tainted() {
    let mut world = World::new([cluster("b")]);
    world.set_policies([policy("all", json!({}))]);
    let config = object("v1", "ConfigMap", Some("default"), "x");
    assert_eq!(world.placed(&config), [("b", None)]);
    let better = cluster("a");
    world.fleet.clusters.insert("a".to_owned(), better);
    not_ready(&mut world, "b");
    world.cluster("b").is_cordoned = true;
    assert_eq!(world.decide(&config).outcome, PlacementOutcome::Keep(KeepReason::Settled));
}

#[test]
fn an_object_moves_from_a_cluster_that_leaves_or_is_no_longer_selected() {
    let mut world = World::new([cluster("a"), cluster("b")]);
    world.set_policies([policy("all", json!({}))]);
    let config = object("v1", "ConfigMap", Some("default"), "x");
    assert_eq!(world.placed(&config), [("a", None)]);
    world.cluster("a").is_leaving = true;
    assert_eq!(world.placed(&config), [("b", None)]);
    world.cluster("a").is_leaving = false;
    assert_eq!(world.placed(&config), [("b", None)]);
    let only = json!({ "clusterSelector": { "matchLabels": { "kubernetes.io/metadata.name": "a" } } });
    world.set_policies([policy("all", only)]);
    assert_eq!(world.placed(&config), [("a", None)]);
}

#[test]
fn an_object_stays_if_no_other_cluster_can_run_it() {
    let mut world = World::new([cluster("a"), cluster("b")]);
    world.set_policies([policy("all", json!({}))]);
    let config = object("v1", "ConfigMap", Some("default"), "x");
    world.place(&config);
    world.cluster("a").is_leaving = true;
    not_ready(&mut world, "b");
    assert_eq!(world.decide(&config).outcome, PlacementOutcome::Keep(KeepReason::NoAlternative));
    // A cluster that is missing without being removed keeps the object, too.
    world.fleet.clusters.remove("a");
    assert_eq!(world.decide(&config).outcome, PlacementOutcome::Keep(KeepReason::NoAlternative));
    world.fleet.removed.insert("a".to_owned());
    assert!(world.place(&config).clusters.is_empty());
    assert_eq!(world.reason("b"), "NotReady");
}

#[test]
fn nothing_changes_while_a_policy_or_the_namespace_cannot_be_read() {
    let mut world = World::new([cluster("a"), cluster("b")]);
    world.set_policies([policy("all", json!({}))]);
    let web = deployment("web", 3, json!({}), json!({}));
    world.place(&web);
    world.fleet.policies = PolicySet::default();
    assert_eq!(world.decide(&web).outcome, PlacementOutcome::Keep(KeepReason::NoLongerSelected));
    let operator =
        json!({ "clusterSelector": { "matchExpressions": [{ "key": "tier", "operator": "Gt", "values": ["1"] }] } });
    world.fleet.policies = PolicySet::read([policy("newer", operator)]);
    let PlacementOutcome::Keep(KeepReason::UnknownPolicy(unknown)) = world.decide(&web).outcome else { panic!() };
    assert_eq!(
        unknown.to_string(),
        "the SchedulePolicy newer cannot be read: spec.clusterSelector: the operator \"Gt\" is not supported; write In, NotIn, \
         Exists or DoesNotExist"
    );
    world.set_policies([policy("shop", json!({ "namespaceSelector": { "matchLabels": { "team": "shop" } } }))]);
    world.fleet.namespaces.clear();
    assert!(matches!(world.decide(&web).outcome, PlacementOutcome::Keep(KeepReason::UnknownPolicy(_))));
}

#[test]
fn an_unknown_cluster_in_an_annotation_is_a_reason() {
    let mut world = World::new([cluster("a")]);
    let web = deployment("web", 3, json!({}), json!({ "fleet.keelway.dev/cluster": "west" }));
    assert!(world.place(&web).clusters.is_empty());
    assert_eq!((world.reason("west"), world.reason("a")), ("NotRegistered", "NotNamed"));
}

#[test]
fn a_cluster_that_joins_or_leaves_changes_a_division() {
    let mut world = World::new([cluster("a"), cluster("b")]);
    world.set_policies([policy("even", json!({ "spreadConstraints": {} }))]);
    let web = deployment("web", 9, json!({}), json!({}));
    assert_eq!(world.placed(&web), [("a", Some(5)), ("b", Some(4))]);
    world.fleet.clusters.insert("c".to_owned(), cluster("c"));
    assert_eq!(world.placed(&web), [("a", Some(3)), ("b", Some(3)), ("c", Some(3))]);
    not_ready(&mut world, "b");
    assert_eq!(world.placed(&web), [("a", Some(3)), ("b", Some(3)), ("c", Some(3))]);
    world.cluster("b").is_leaving = true;
    assert_eq!(world.placed(&web), [("a", Some(5)), ("c", Some(4))]);
}

#[test]
fn an_object_that_nothing_selects_is_still_scaled() {
    let mut world = World::new([cluster("a"), cluster("b")]);
    let shares = json!([{ "topologyValue": "a", "percentage": 75 }, { "topologyValue": "b", "percentage": 25 }]);
    world.set_policies([policy("split", json!({ "spreadConstraints": { "percentageSplit": shares } }))]);
    assert_eq!(world.placed(&deployment("web", 4, json!({}), json!({}))), [("a", Some(3)), ("b", Some(1))]);
    world.set_policies([]);
    assert_eq!(world.placed(&deployment("web", 8, json!({}), json!({}))), [("a", Some(6)), ("b", Some(2))]);
}

/// After a cluster was removed, the other clusters get its replicas. If it was the only one, the object runs nowhere, and its Placement states that.
#[test]
fn an_object_that_nothing_selects_does_not_stay_in_a_removed_cluster() {
    let mut world = World::new([cluster("a"), cluster("b")]);
    world.set_policies([policy("even", json!({ "spreadConstraints": {} }))]);
    let web = deployment("web", 4, json!({}), json!({}));
    assert_eq!(world.placed(&web), [("a", Some(2)), ("b", Some(2))]);
    world.set_policies([]);
    for (leaves, left) in [("a", vec![("b", Some(4))]), ("b", vec![])] {
        world.fleet.clusters.remove(leaves);
        world.fleet.removed.insert(leaves.to_owned());
        assert_eq!(world.placed(&web), left);
    }
}
