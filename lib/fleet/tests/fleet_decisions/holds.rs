//! What cannot move stays in its clusters, also if a policy, an annotation or a label changes, unless people remove a cluster from the fleet.

use keelway_fleet::{ClusterActivity, ContentRole, KeepReason, PlacementOutcome, PodKinds};
use serde_json::{Value as Json, json};

use crate::{
    drains::{ONCE, VOLUMES, run_once, with_volumes},
    world::{World, cluster, deployment, labelled, object, policy},
};

fn only(name: &str) -> Json {
    json!({ "clusterSelector": { "matchLabels": { "kubernetes.io/metadata.name": name } } })
}

/// An object that runs in `a`.
fn in_a(object: &Json) -> World {
    let mut world = World::new([labelled("a", json!({ "tier": "gold" })), cluster("b")]);
    world.set_policies([policy("all", json!({}))]);
    assert_eq!(world.placed(object)[0].0, "a");
    world
}

fn stays(world: &mut World, object: &Json, obstacle: &str) {
    let clusters: Vec<String> = world.place(object).clusters.into_iter().map(|placed| placed.name).collect();
    assert_eq!(clusters, ["a"]);
    let reasons = &world.current.as_ref().unwrap().reasons;
    let reason = reasons.iter().find(|reason| reason.cluster == "a").unwrap();
    let message = format!(
        "the policy or annotation does not select the cluster any more, and {obstacle}; or select the cluster again"
    );
    assert_eq!((reason.reason.as_str(), reason.message.as_str()), ("CannotMove", message.as_str()));
    assert_eq!(world.decide(object).outcome, PlacementOutcome::Keep(KeepReason::Settled));
}

#[test]
fn an_object_that_would_lose_data_or_begin_again_stays_whatever_changes() {
    let volumes = with_volumes().map(|object| (object, VOLUMES));
    for (object, obstacle) in volumes.into_iter().chain(run_once().map(|object| (object, ONCE))) {
        // The policy selects another cluster.
        let mut world = in_a(&object);
        world.set_policies([policy("all", only("b"))]);
        stays(&mut world, &object, obstacle);
        assert_eq!(world.reason("b"), "Held");
        // It selects the cluster again.
        world.set_policies([policy("all", json!({}))]);
        world.place(&object);
        assert_eq!((world.reason("a"), world.reason("b")), ("Stays", "Outranked"));
        // Another policy decides.
        world.set_policies([policy("all", json!({})), policy("later", json!({ "priority": 1 }))]);
        assert_eq!(world.placed(&object)[0].0, "a");
        let mut first = policy("first", only("b"));
        first.spec.priority = 1;
        world.set_policies([policy("all", json!({})), first]);
        stays(&mut world, &object, obstacle);
        // An annotation names another cluster, or one that does not exist.
        for name in ["b", "z"] {
            let mut world = in_a(&object);
            let mut annotated = object.clone();
            annotated["metadata"]["annotations"] = json!({ "fleet.keelway.dev/cluster": name });
            stays(&mut world, &annotated, obstacle);
        }
        // The cluster loses its label.
        let mut world = in_a(&object);
        world.set_policies([policy("all", json!({ "clusterSelector": { "matchLabels": { "tier": "gold" } } }))]);
        assert_eq!(world.placed(&object)[0].0, "a");
        world.cluster("a").labels.remove("tier");
        stays(&mut world, &object, obstacle);
    }
}

#[test]
fn an_object_that_can_move_does() {
    let web = deployment("web", 3, json!({}), json!({}));
    let mut world = in_a(&web);
    world.set_policies([policy("all", only("b"))]);
    assert_eq!(world.placed(&web), [("b", None)]);
}

#[test]
fn the_removal_of_a_cluster_is_an_order() {
    let [object, ..] = with_volumes();
    let mut world = in_a(&object);
    world.set_policies([policy("all", only("b"))]);
    stays(&mut world, &object, VOLUMES);
    world.cluster("a").is_leaving = true;
    assert_eq!(world.placed(&object), [("b", None)]);
}

#[test]
fn an_object_that_is_created_again_is_placed_anew() {
    let [object, ..] = with_volumes();
    let mut world = in_a(&object);
    world.set_policies([policy("all", only("b"))]);
    stays(&mut world, &object, VOLUMES);
    world.current = None;
    assert_eq!(world.placed(&object), [("b", None)]);
}

/// Its replicas stay divided, follow the object, and no other cluster gets any.
#[test]
fn an_object_that_is_divided_stays_in_all_of_its_clusters() {
    let [mut object, ..] = with_volumes();
    object["spec"]["replicas"] = json!(4);
    let mut world = World::new([cluster("a"), cluster("b"), cluster("c")]);
    let among = |names: [&str; 2]| {
        let selected = json!({ "key": "kubernetes.io/metadata.name", "operator": "In", "values": names });
        policy("all", json!({ "clusterSelector": { "matchExpressions": [selected] }, "spreadConstraints": {} }))
    };
    world.set_policies([among(["a", "b"])]);
    assert_eq!(world.placed(&object), [("a", Some(2)), ("b", Some(2))]);
    world.set_policies([among(["b", "c"])]);
    assert_eq!(world.placed(&object), [("a", Some(2)), ("b", Some(2))]);
    assert_eq!((world.reason("a"), world.reason("b"), world.reason("c")), ("CannotMove", "Divided", "Held"));
    object["spec"]["replicas"] = json!(6);
    assert_eq!(world.placed(&object), [("a", Some(3)), ("b", Some(3))]);
    // A policy that lets one cluster be chosen leaves no copy either.
    world.set_policies([policy("all", json!({}))]);
    assert_eq!(world.placed(&object), [("a", Some(3)), ("b", Some(3))]);
    assert_eq!((world.reason("a"), world.reason("b")), ("Divided", "CannotMove"));
}

/// The objects that a held one needs stay with it: without its Namespace, the data would be deleted as well.
#[test]
fn what_a_held_object_needs_stays_with_it() {
    let [held, ..] = with_volumes();
    for other in [object("v1", "Namespace", None, "default"), object("v1", "ConfigMap", Some("default"), "config")] {
        let mut world = in_a(&other);
        let mut activity = ClusterActivity::default();
        activity.add(ContentRole::of(&held, &PodKinds::default()), "default");
        world.fleet.activity.insert("a".to_owned(), activity);
        world.set_policies([policy("all", only("b"))]);
        assert_eq!(world.placed(&other), [("a", None), ("b", None)]);
        assert_eq!((world.reason("a"), world.reason("b")), ("Needed", "Chosen"));
        world.fleet.activity.clear();
        assert_eq!(world.placed(&other), [("b", None)]);
    }
}

/// The Placement of a held object does not follow the state of clusters in which the object could run otherwise.
#[test]
fn a_held_object_writes_nothing_when_another_cluster_changes() {
    let [object, ..] = with_volumes();
    let mut world = in_a(&object);
    world.set_policies([policy("all", only("b"))]);
    stays(&mut world, &object, VOLUMES);
    world.report("b", "Unknown");
    assert_eq!(world.decide(&object).outcome, PlacementOutcome::Keep(KeepReason::Settled));
    world.report("b", "True");
    world.fleet.capacity.report("b", None);
    assert_eq!(world.decide(&object).outcome, PlacementOutcome::Keep(KeepReason::Settled));
}
