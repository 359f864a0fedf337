//! Objects leave a cluster that is being drained, if another one can run them.

use keelway_fleet::{
    ClusterActivity, ClusterDrain, ContentRole, DecisionRequest, KeepReason, PlacementOutcome, PodKinds, decide,
    invariants::check_decision, placement_link,
};
use serde_json::{Value as Json, json};

use crate::world::{World, cluster, deployment, object, parsed, policy};

const DRAIN: Option<ClusterDrain> = Some(ClusterDrain { max_moves: 1 });

fn web() -> Json {
    let mut web = deployment("web", 3, json!({}), json!({}));
    web["spec"]["template"]["spec"]["containers"] = json!([{ "resources": { "requests": { "cpu": "2" } } }]);
    web
}

/// An object that runs in `a`, which is being drained.
fn drained(object: &Json) -> World {
    let mut world = World::new([cluster("a"), cluster("b")]);
    world.set_policies([policy("all", json!({}))]);
    assert_eq!(world.placed(object)[0].0, "a");
    world.cluster("a").drain = DRAIN;
    world
}

fn stays(world: &mut World, object: &Json, message: &str) {
    assert_eq!(world.placed(object)[0].0, "a");
    let reasons = &world.current.as_ref().unwrap().reasons;
    let reason = reasons.iter().find(|reason| reason.cluster == "a").unwrap();
    assert_eq!((reason.reason.as_str(), reason.message.as_str()), ("CannotMove", message));
    assert_eq!(world.decide(object).outcome, PlacementOutcome::Keep(KeepReason::Settled));
}

#[test]
fn an_object_moves_to_a_cluster_with_room_and_does_not_return() {
    let mut world = drained(&web());
    assert_eq!(world.placed(&web()), [("b", None)]);
    assert_eq!((world.reason("a"), world.reason("b")), ("Draining", "Chosen"));
    world.cluster("a").drain = None;
    assert_eq!(world.placed(&web()), [("b", None)]);
}

#[test]
fn nothing_new_is_placed_in_a_drained_cluster() {
    let mut world = drained(&web());
    world.current = None;
    assert_eq!(world.placed(&web()), [("b", None)]);
    assert_eq!(world.reason("a"), "Draining");
}

#[test]
fn an_object_that_fits_nowhere_else_stays_until_it_fits() {
    let mut world = drained(&web());
    let room = |cpu: &str| {
        let rooms = json!([{ "nodes": 1, "free": { "cpu": cpu, "memory": "8Gi", "pods": "110" } }]);
        serde_json::from_value(json!({ "nodeGroups": [{ "rooms": rooms }] })).unwrap()
    };
    world.fleet.capacity.report("b", Some(&room("4")));
    stays(&mut world, &web(), "the cluster is being drained, and no other cluster can run the object");
    assert_eq!(world.reason("b"), "NoRoom");
    // Another amount is no news.
    world.fleet.capacity.report("b", Some(&room("3")));
    assert_eq!(world.decide(&web()).outcome, PlacementOutcome::Keep(KeepReason::Settled));
    world.fleet.capacity.report("b", Some(&room("6")));
    assert_eq!(world.placed(&web()), [("b", None)]);
}

#[test]
fn an_object_that_stayed_has_its_usual_reason_after_the_drain() {
    let mut world = drained(&web());
    world.cluster("b").is_cordoned = true;
    stays(&mut world, &web(), "the cluster is being drained, and no other cluster can run the object");
    world.cluster("a").drain = None;
    world.place(&web());
    assert_eq!(world.reason("a"), "Stays");
}

/// Objects with data in their cluster.
pub(crate) fn with_volumes() -> [Json; 3] {
    let mut claims = object("apps/v1", "StatefulSet", Some("default"), "db");
    claims["spec"] = json!({ "replicas": 1, "volumeClaimTemplates": [{ "metadata": { "name": "data" } }] });
    let mut mounts = web();
    mounts["spec"]["template"]["spec"]["volumes"] =
        json!([{ "name": "data", "persistentVolumeClaim": { "claimName": "data" } }]);
    [claims, mounts, object("v1", "PersistentVolumeClaim", Some("default"), "data")]
}

/// Objects that run to completion.
pub(crate) fn run_once() -> [Json; 2] {
    let mut pod = object("v1", "Pod", Some("default"), "once");
    pod["spec"] = json!({ "restartPolicy": "Never" });
    [object("batch/v1", "Job", Some("default"), "once"), pod]
}

/// Why objects with data cannot move, and what to do.
pub(crate) const VOLUMES: &str = "the object has volumes, whose data would not move with it; copy the data, delete the object, and create it again \
                                  once its Placement is gone";
/// Why objects that run to completion cannot move, and what to do.
pub(crate) const ONCE: &str = "the object would begin again elsewhere; wait until it is finished, or delete it, and create it again once its \
                               Placement is gone";

#[test]
fn an_object_that_would_lose_data_or_begin_again_stays() {
    for object in with_volumes() {
        stays(&mut drained(&object), &object, &format!("the cluster is being drained, and {VOLUMES}"));
    }
    for object in run_once() {
        stays(&mut drained(&object), &object, &format!("the cluster is being drained, and {ONCE}"));
    }
    // A StatefulSet without claims moves.
    let mut stateless = object("apps/v1", "StatefulSet", Some("default"), "cache");
    stateless["spec"] = json!({ "replicas": 1, "volumeClaimTemplates": [] });
    assert_eq!(drained(&stateless).placed(&stateless)[0].0, "b");
}

#[test]
fn an_object_that_nothing_selects_stays_and_says_so() {
    let mut world = drained(&web());
    world.set_policies([]);
    world.place(&web());
    assert_eq!(world.reason("a"), "CannotMove");
    assert_eq!(world.decide(&web()).outcome, PlacementOutcome::Keep(KeepReason::NoLongerSelected));
    world.cluster("a").drain = None;
    world.place(&web());
    assert_eq!(world.reason("a"), "Stays");
}

#[test]
fn an_annotation_keeps_an_object_in_its_cluster() {
    let mut named = web();
    named["metadata"]["annotations"] = json!({ "fleet.keelway.dev/cluster": "a" });
    stays(&mut drained(&named), &named, "the cluster is being drained, and no other cluster can run the object");
}

#[test]
fn an_object_waits_for_its_turn() {
    let mut world = drained(&web());
    let other = deployment("other", 1, json!({}), json!({}));
    let activity = world.fleet.activity.entry("a".to_owned()).or_default();
    activity.leaving.insert(placement_link(&parsed(&other).reference));
    let decision = world.decide(&web());
    assert_eq!(decision.outcome, PlacementOutcome::Keep(KeepReason::Settled));
    assert_eq!(decision.waits.keys().collect::<Vec<_>>(), ["a"]);
    // What has no pods does not wait.
    let config = object("v1", "ConfigMap", Some("default"), "config");
    let own = world.current.take();
    world.cluster("a").drain = None;
    world.place(&config);
    world.cluster("a").drain = DRAIN;
    assert_eq!(world.placed(&config), [("b", None)]);
    world.current = own;
    world.cluster("a").drain = Some(ClusterDrain { max_moves: 2 });
    assert_eq!(world.placed(&web()), [("b", None)]);
    // An object that is on its way does not wait for itself.
    world.fleet.activity.get_mut("a").unwrap().leaving = [placement_link(&parsed(&web()).reference)].into();
    world.cluster("a").drain = DRAIN;
    assert_eq!(world.decide(&web()).outcome, PlacementOutcome::Keep(KeepReason::Settled));
}

#[test]
fn the_replicas_of_a_drained_cluster_go_to_the_others_if_they_have_room() {
    let mut world = World::new([cluster("a"), cluster("b"), cluster("c")]);
    world.set_policies([policy("even", json!({ "spreadConstraints": {} }))]);
    let mut six = web();
    six["spec"]["replicas"] = json!(6);
    assert_eq!(world.placed(&six), [("a", Some(2)), ("b", Some(2)), ("c", Some(2))]);
    world.cluster("a").drain = DRAIN;
    let before = world.current.clone();
    assert_eq!(world.placed(&six), [("b", Some(3)), ("c", Some(3))]);
    world.current = before;
    world.fleet.capacity.report("c", None);
    stays(&mut world, &six, "the cluster is being drained, and c has no room for the replicas");
}

/// A cluster in which these objects run.
fn activity(objects: &[&Json]) -> ClusterActivity {
    let mut activity = ClusterActivity::default();
    for object in objects {
        let role = ContentRole::of(object, &PodKinds::default());
        activity.add(role, object["metadata"]["namespace"].as_str().unwrap_or_default());
    }
    activity
}

#[test]
fn what_has_no_pods_runs_in_both_clusters_until_nothing_needs_it() {
    let config = object("v1", "ConfigMap", Some("default"), "config");
    let elsewhere = object("apps/v1", "Deployment", Some("shop"), "web");
    let mut world = drained(&config);
    world.fleet.activity.insert("a".to_owned(), activity(&[&config, &web(), &elsewhere]));
    assert_eq!(world.placed(&config), [("a", None), ("b", None)]);
    assert_eq!((world.reason("a"), world.reason("b")), ("Needed", "Chosen"));
    // If the drain ends, the object stays where it is needed.
    world.cluster("a").drain = None;
    world.fleet.activity.insert("b".to_owned(), activity(&[&web()]));
    assert_eq!(world.placed(&config), [("a", None), ("b", None)]);
    world.cluster("a").drain = DRAIN;
    world.fleet.activity.insert("a".to_owned(), activity(&[&config, &elsewhere]));
    assert_eq!(world.placed(&config), [("b", None)]);
}

#[test]
fn a_namespace_leaves_last() {
    let namespace = object("v1", "Namespace", None, "default");
    let config = object("v1", "ConfigMap", Some("default"), "config");
    let mut world = drained(&namespace);
    world.fleet.activity.insert("a".to_owned(), activity(&[&namespace, &config]));
    assert_eq!(world.placed(&namespace), [("a", None), ("b", None)]);
    world.fleet.activity.insert("a".to_owned(), activity(&[&namespace]));
    assert_eq!(world.placed(&namespace), [("b", None)]);
}

#[test]
fn the_last_pods_of_a_namespace_free_the_others() {
    let mut counted = activity(&[&web(), &web(), &object("v1", "Namespace", None, "default")]);
    let role = ContentRole::of(&web(), &PodKinds::default());
    assert_eq!([counted.remove(role, "default"), counted.remove(role, "default")], [false, true]);
    assert!(!counted.needs(ContentRole::Other, Some("default")) && !counted.needs(ContentRole::Container, None));
}

#[test]
fn a_decision_that_overlooks_what_is_needed_is_a_violation() {
    let config = object("v1", "ConfigMap", Some("default"), "config");
    let mut world = drained(&config);
    let object = parsed(&config);
    let request = DecisionRequest { object: &object, is_autoscaled: false, current: world.current.as_ref() };
    let blind = decide(&world.fleet, &request);
    world.fleet.activity.insert("a".to_owned(), activity(&[&config, &web()]));
    let violations = check_decision(&world.fleet, &request, &blind);
    assert!(violations.iter().any(|violation| violation.invariant == "what is needed stays"), "{violations:?}");
}
