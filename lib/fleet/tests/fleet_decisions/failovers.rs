//! Objects leave a cluster that is not ready for the time that their policy states, and return if it says so.

use k8s_openapi::jiff::SignedDuration;
use keelway_fleet::{
    ClusterActivity, ClusterDrain, ContentRole, DecisionRequest, FleetClock, KeepReason, PlacementLink,
    PlacementOutcome, PodKinds, decide, invariants::check_decision, placement_link,
};
use serde_json::{Value as Json, json};

use crate::world::{World, cluster, deployment, object, parsed, policy};

/// `failover.after` in seconds.
const AFTER: i64 = 300;

fn web() -> Json {
    let mut web = deployment("web", 4, json!({}), json!({}));
    web["spec"]["template"]["spec"]["containers"] = json!([{ "resources": { "requests": { "cpu": "2" } } }]);
    web
}

fn stay() -> Json {
    json!({ "failover": {} })
}

fn back() -> Json {
    json!({ "failover": { "recovery": "Return" } })
}

/// An object that runs in `a`, and three clusters that have been ready for a day.
fn world(object: &Json, policy_fields: Json) -> World {
    let mut world = World::new([cluster("a"), cluster("b"), cluster("c")]);
    world.wait(86_400);
    world.set_policies([policy("all", policy_fields)]);
    assert_eq!(world.placed(object)[0].0, "a");
    world
}

/// The same after `a` was not ready for so many seconds.
fn silent(object: &Json, policy_fields: Json, seconds: i64) -> World {
    let mut world = world(object, policy_fields);
    world.report("a", "Unknown");
    world.wait(seconds);
    world
}

fn message<'a>(world: &'a World, cluster: &str) -> &'a str {
    let mut reasons = world.current.iter().flat_map(|placement| &placement.reasons);
    reasons.find(|reason| reason.cluster == cluster).map_or("none", |reason| &reason.message)
}

fn leaving(others: impl IntoIterator<Item = PlacementLink>) -> ClusterActivity {
    let mut activity = ClusterActivity::default();
    activity.leaving.extend(others);
    activity
}

fn settled(world: &World, object: &Json) {
    assert_eq!(world.decide(object).outcome, PlacementOutcome::Keep(KeepReason::Settled));
}

#[test]
fn an_object_leaves_a_lost_cluster_after_the_time_and_stays_in_the_new_one() {
    let mut world = silent(&web(), stay(), AFTER - 1);
    settled(&world, &web());
    assert_eq!(world.fleet.next_deadline(), Some(world.fleet.clock.now + SignedDuration::from_secs(1)));
    world.wait(1);
    assert_eq!(world.placed(&web()), [("b", None)]);
    assert_eq!((world.reason("a"), world.reason("b")), ("Lost", "Chosen"));
    assert_eq!(message(&world, "a"), "the cluster has not been ready since 2026-11-28T08:00:00Z");
    assert_eq!(world.fleet.next_deadline(), None);
    settled(&world, &web());
    world.report("a", "True");
    world.wait(2 * AFTER);
    settled(&world, &web());
}

#[test]
fn without_failover_nothing_leaves() {
    let world = silent(&web(), json!({}), 100 * AFTER);
    settled(&world, &web());
    assert_eq!(world.fleet.next_deadline(), None);
}

#[test]
fn a_cluster_that_returns_in_time_keeps_its_objects() {
    let mut world = silent(&web(), stay(), AFTER - 1);
    world.report("a", "True");
    world.wait(1);
    world.report("a", "Unknown");
    world.wait(AFTER - 1);
    settled(&world, &web());
    // The time counts from the last change of the condition.
    world.report("a", "False");
    world.wait(AFTER - 1);
    settled(&world, &web());
    world.wait(1);
    assert_eq!(world.placed(&web()), [("b", None)]);
}

#[test]
fn an_object_returns_once_the_cluster_has_been_ready_for_the_time() {
    let mut world = silent(&web(), back(), AFTER);
    assert_eq!(world.placed(&web()), [("b", None)]);
    assert_eq!(world.current.as_ref().unwrap().lost_clusters, ["a"]);
    settled(&world, &web());
    world.report("a", "True");
    assert_eq!(world.placed(&web()), [("b", None)]);
    assert_eq!(message(&world, "a"), "the object returns at 2026-11-28T08:10:00Z if the cluster is ready until then");
    settled(&world, &web());
    // A cluster that is not ready again in between begins anew.
    world.wait(AFTER - 1);
    world.report("a", "Unknown");
    world.place(&web());
    assert_eq!(world.reason("a"), "Lost");
    world.report("a", "True");
    world.wait(AFTER - 1);
    assert_eq!(world.placed(&web()), [("b", None)]);
    world.wait(1);
    assert_eq!(world.placed(&web()), [("a", None)]);
    assert!(world.current.as_ref().unwrap().lost_clusters.is_empty());
    assert_eq!(message(&world, "b"), "the object returns to a, which is ready again");
    settled(&world, &web());
}

#[test]
fn an_object_returns_only_to_a_cluster_with_room_and_in_its_turn() {
    let mut world = silent(&web(), back(), AFTER);
    world.place(&web());
    world.report("a", "True");
    world.wait(AFTER);
    world.fleet.capacity.report("a", None);
    assert_eq!(world.placed(&web()), [("b", None)]);
    assert_eq!(world.reason("a"), "UnknownRoom");
    settled(&world, &web());
    // A replica of the controller that has just begun does not know that the cluster is ready.
    world.fleet.clock.observing_since = world.fleet.clock.now;
    settled(&world, &web());
    world.fleet.clock.observing_since = FleetClock::default().observing_since;
    world.fleet.capacity = crate::world::ample(["a", "b", "c"]);
    let others =
        ["1", "2", "3", "4"].map(|name| placement_link(&parsed(&deployment(name, 1, json!({}), json!({}))).reference));
    world.fleet.activity.insert("b".to_owned(), leaving(others));
    assert_eq!(world.decide(&web()).waits.keys().collect::<Vec<_>>(), ["b"]);
    world.fleet.activity.clear();
    assert_eq!(world.placed(&web()), [("a", None)]);
}

#[test]
fn an_object_that_no_other_cluster_can_run_stays_and_says_so() {
    let mut world = silent(&web(), stay(), AFTER);
    world.cluster("b").is_cordoned = true;
    world.cluster("c").is_cordoned = true;
    assert_eq!(world.placed(&web()), [("a", None)]);
    assert_eq!(world.reason("a"), "CannotMove");
    let stays = "the cluster has not been ready since 2026-11-28T08:00:00Z, and no other cluster can run the object";
    assert_eq!(message(&world, "a"), stays);
    settled(&world, &web());
    // A replica of the controller that has just begun does not judge.
    world.fleet.clock.observing_since = world.fleet.clock.now;
    settled(&world, &web());
    world.fleet.clock.observing_since = FleetClock::default().observing_since;
    world.cluster("c").is_cordoned = false;
    assert_eq!(world.placed(&web()), [("c", None)]);

    let mut claims = object("apps/v1", "StatefulSet", Some("default"), "db");
    claims["spec"] = json!({ "replicas": 1, "volumeClaimTemplates": [{ "metadata": { "name": "data" } }] });
    for object in [claims, object("batch/v1", "Job", Some("default"), "once")] {
        let mut world = silent(&object, stay(), AFTER);
        assert_eq!(world.placed(&object)[0].0, "a");
        assert_eq!(world.reason("a"), "CannotMove");
        world.report("a", "True");
        world.place(&object);
        assert_eq!(world.reason("a"), "Stays");
    }
}

#[test]
fn an_annotation_and_a_copy_in_every_cluster_have_no_failover() {
    let named = deployment("web", 4, json!({}), json!({ "fleet.keelway.dev/cluster": "a" }));
    settled(&silent(&named, stay(), AFTER), &named);
    let everywhere = json!({ "spreadConstraints": {}, "failover": {} });
    let account = object("v1", "ServiceAccount", Some("default"), "web");
    settled(&silent(&account, everywhere, AFTER), &account);
}

#[test]
fn the_replicas_of_a_lost_cluster_go_to_the_others_until_it_has_been_ready_for_the_time() {
    let mut world = silent(&web(), json!({ "spreadConstraints": {}, "failover": {} }), AFTER);
    let before = world.current.clone();
    assert_eq!(world.placed(&web()), [("b", Some(2)), ("c", Some(2))]);
    settled(&world, &web());
    world.report("a", "True");
    assert_eq!(world.placed(&web()), [("b", Some(2)), ("c", Some(2))]);
    assert_eq!(world.reason("a"), "Recovering");
    world.wait(AFTER);
    assert_eq!(world.placed(&web()), [("a", Some(1)), ("b", Some(2)), ("c", Some(1))]);
    assert!(world.current.as_ref().unwrap().lost_clusters.is_empty());
    settled(&world, &web());
    // All of them have room, or none leaves.
    world.current = before;
    world.report("a", "Unknown");
    world.wait(AFTER);
    world.fleet.capacity.report("c", None);
    world.place(&web());
    assert_eq!(world.reason("a"), "CannotMove");
}

#[test]
fn nothing_leaves_while_most_clusters_are_not_ready() {
    let mut world = silent(&web(), stay(), 0);
    for name in ["b", "c"] {
        world.report(name, "Unknown");
    }
    world.wait(10 * AFTER);
    settled(&world, &web());
    // One cluster is ready, and may be chosen.
    world.report("c", "True");
    assert_eq!(world.placed(&web()), [("c", None)]);

    let mut world = World::new(["a", "b", "c", "d", "e"].map(cluster));
    world.wait(86_400);
    world.set_policies([policy("all", stay())]);
    world.place(&web());
    for name in ["a", "b", "c"] {
        world.report(name, "Unknown");
    }
    world.wait(AFTER);
    settled(&world, &web());
    world.report("b", "True");
    assert_eq!(world.placed(&web()), [("b", None)]);
}

#[test]
fn a_controller_that_has_just_begun_waits_for_the_agents() {
    let mut world = silent(&web(), stay(), 10 * AFTER);
    world.fleet.clock.observing_since = world.fleet.clock.now;
    settled(&world, &web());
    assert_eq!(world.fleet.next_deadline(), Some(world.fleet.clock.now + SignedDuration::from_secs(40)));
    world.wait(40);
    assert_eq!(world.placed(&web()), [("b", None)]);
}

#[test]
fn an_object_waits_for_its_turn_until_others_are_ready_elsewhere() {
    let mut world = silent(&web(), json!({ "failover": { "maxMoves": 1 } }), AFTER);
    let other = placement_link(&parsed(&deployment("other", 1, json!({}), json!({}))).reference);
    world.fleet.activity.insert("a".to_owned(), leaving([other.clone()]));
    let decision = world.decide(&web());
    assert_eq!(decision.outcome, PlacementOutcome::Keep(KeepReason::Settled));
    assert_eq!(decision.waits.keys().collect::<Vec<_>>(), ["a"]);
    // The agent of the lost cluster cannot delete the other object. It is ready elsewhere, and that is enough.
    world.fleet.activity.get_mut("a").unwrap().taken_over.insert(other);
    assert_eq!(world.placed(&web()), [("b", None)]);
}

#[test]
fn a_drained_cluster_that_is_lost_does_not_wait_for_its_agent() {
    let mut world = silent(&web(), stay(), AFTER);
    world.cluster("a").drain = Some(ClusterDrain { max_moves: 1 });
    let other = placement_link(&parsed(&deployment("other", 1, json!({}), json!({}))).reference);
    let mut activity = leaving([other.clone()]);
    activity.taken_over.insert(other);
    world.fleet.activity.insert("a".to_owned(), activity);
    assert_eq!(world.placed(&web()), [("b", None)]);
    assert_eq!(world.reason("a"), "Lost");
}

#[test]
fn what_has_no_pods_leaves_after_those_that_may_need_it() {
    for fields in [stay(), back()] {
        let config = object("v1", "ConfigMap", Some("default"), "config");
        let mut world = silent(&config, fields.clone(), AFTER);
        let mut busy = ClusterActivity::default();
        busy.add(ContentRole::of(&web(), &PodKinds::default()), "default");
        world.fleet.activity.insert("a".to_owned(), busy.clone());
        assert_eq!(world.placed(&config), [("a", None), ("b", None)]);
        assert_eq!((world.reason("a"), world.reason("b")), ("Needed", "Chosen"));
        settled(&world, &config);
        // The agent returns and deletes the pods, which run in `b` now.
        world.fleet.activity.insert("b".to_owned(), busy.clone());
        world.report("a", "True");
        assert_eq!(world.placed(&config), [("a", None), ("b", None)]);
        world.fleet.activity.remove("a");
        assert_eq!(world.placed(&config), [("b", None)]);
        settled(&world, &config);
        world.wait(AFTER);
        if fields == stay() {
            settled(&world, &config);
            continue;
        }
        // It returns before the pods do.
        assert_eq!(world.placed(&config), [("a", None), ("b", None)]);
        settled(&world, &config);
        world.fleet.activity.insert("a".to_owned(), busy);
        world.fleet.activity.remove("b");
        assert_eq!(world.placed(&config), [("a", None)]);
        settled(&world, &config);
    }
}

#[test]
fn a_decision_that_overlooks_an_outage_of_the_fleet_is_a_violation() {
    let mut world = silent(&web(), stay(), AFTER);
    let object = parsed(&web());
    let request = DecisionRequest { object: &object, is_autoscaled: false, current: world.current.as_ref() };
    let blind = decide(&world.fleet, &request);
    assert!(matches!(blind.outcome, PlacementOutcome::Place(_)));
    for name in ["b", "c"] {
        let now = world.fleet.clock.now;
        crate::world::report(world.fleet.clusters.get_mut(name).unwrap(), "Unknown", now);
    }
    let violations = check_decision(&world.fleet, &request, &blind);
    assert!(violations.iter().any(|violation| violation.invariant == "failover is patient"), "{violations:?}");
}
