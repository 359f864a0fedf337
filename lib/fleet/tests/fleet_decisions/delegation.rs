//! Objects whose cluster the fleet chooses, and that another orchestrator submits there.

use keelway_api::{Time, jiff::Timestamp};
use keelway_fleet::{
    CandidateCluster, ClusterDrain, ClusterReport, ClusterTaint, DecisionRequest, KeepReason, PlacementExplanation,
    PlacementOutcome, PlacementStatus, PodKinds, PolicySet, TaintEffect, TargetLabel, WorkPlan, WorkStatus,
    WorkloadCluster, decide, invariants::check_decision, placement_status,
};
use serde_json::{Value as Json, json};

use crate::world::{World, cluster, deployment, object, parsed, policy};

fn delegated(name: &str) -> CandidateCluster {
    CandidateCluster { is_delegated: true, ..cluster(name) }
}

fn web() -> Json {
    deployment("web", 3, json!({}), json!({}))
}

/// Returns the status of a Placement whose agent reports this of the object in `a`.
fn status(world: &World, reason: Option<(&str, &str)>) -> PlacementStatus {
    let reported: Option<WorkStatus> = reason.map(|(status, reason)| {
        serde_json::from_value(json!({ "conditions": [{
            "type": "Applied", "status": status, "reason": reason, "message": "", "lastTransitionTime": "2026-11-27T08:00:00Z",
        }] }))
        .unwrap()
    });
    let report = reported.as_ref().map(|status| ClusterReport { cluster: "a", status, is_current: true });
    let placement = world.current.as_ref().unwrap();
    let now = Time(Timestamp::UNIX_EPOCH);
    placement_status(placement, Some(1), report.as_slice(), &WorkPlan::default(), None, &now)
}

fn reason<'a>(status: &'a PlacementStatus, kind: &str) -> (&'a str, &'a str) {
    let condition = status.conditions.iter().find(|condition| condition.type_ == kind).unwrap();
    (&condition.status, &condition.reason)
}

#[test]
fn the_object_names_the_chosen_cluster_and_waits_for_the_orchestrator() {
    let mut world = World::new([delegated("a"), cluster("b")]);
    world.set_policies([policy("all", json!({}))]);
    assert_eq!(world.placed(&web()), [("a", None)]);
    let placement = world.current.clone().unwrap();
    assert_eq!(placement.delegated_to(), Some("a"));
    let kinds = PodKinds::default();
    let needed = |object: &Json| TargetLabel::needed(&parsed(object), &placement, &kinds);
    assert_eq!(needed(&web()), Some(TargetLabel::Set("a".to_owned())));
    let labelled = deployment("web", 3, json!({ "fleet.keelway.dev/target-cluster": "a" }), json!({}));
    assert_eq!(needed(&labelled), None);
    // The fleet changes nothing of objects without pods.
    assert_eq!(needed(&object("v1", "Secret", Some("default"), "s")), None);

    let waits = status(&world, Some(("False", "NotSubmitted")));
    assert_eq!(reason(&waits, "Scheduled"), ("True", "Delegated"));
    assert_eq!(reason(&waits, "Applied"), ("False", "NotSubmitted"));
    assert_eq!(reason(&status(&world, None), "Applied"), ("False", "NotSubmitted"));
    let tracked = status(&world, Some(("True", "Tracked")));
    assert_eq!(reason(&tracked, "Scheduled"), ("True", "Delegated"));
    assert_eq!(reason(&tracked, "Applied"), ("True", "Tracked"));

    let documents: Vec<WorkloadCluster> = Vec::new();
    let text = PlacementExplanation::new(&placement, Some(&waits), &documents).to_string();
    assert!(text.contains("It is delegated: another orchestrator submits it in a."), "{text}");
    assert!(text.contains("It is not there yet (NotSubmitted)"), "{text}");
}

#[test]
fn an_annotation_delegates_as_well() {
    let mut world = World::new([delegated("a"), cluster("b")]);
    let named = deployment("web", 3, json!({}), json!({ "fleet.keelway.dev/cluster": "a" }));
    assert_eq!(world.placed(&named), [("a", None)]);
    assert_eq!(world.current.unwrap().delegated_to(), Some("a"));
}

#[test]
fn an_object_that_is_spread_is_refused() {
    for spread in [json!({}), json!({ "spreadMode": "Duplicate" })] {
        let mut world = World::new([delegated("a")]);
        world.set_policies([policy("all", json!({ "spreadConstraints": spread }))]);
        assert_eq!(world.placed(&web()), []);
        assert_eq!(world.reason("a"), "SpreadRefused");
        let refused = status(&world, None);
        assert_eq!(reason(&refused, "Scheduled"), ("False", "SpreadRefused"));
        let message = &refused.conditions.iter().find(|condition| condition.type_ == "Scheduled").unwrap().message;
        assert!(
            message.contains("--orchestration-enabled=false") && message.contains("spreadConstraints"),
            "{message}"
        );
        // The other clusters run all replicas.
        world.fleet.clusters.insert("b".to_owned(), cluster("b"));
        let replicas = spread.get("spreadMode").is_none().then_some(3);
        assert_eq!(world.placed(&web()), [("b", replicas)]);
        assert!(!world.current.unwrap().is_delegated());
    }
    let mut world = World::new([delegated("a"), cluster("b")]);
    let onto = deployment("web", 3, json!({}), json!({ "fleet.keelway.dev/spread-onto": "a,b" }));
    assert_eq!(world.placed(&onto), [("b", Some(3))]);
    assert_eq!(world.reason("a"), "SpreadRefused");
}

#[test]
fn a_check_finds_a_delegated_cluster_with_a_part() {
    let spread = [policy("all", json!({ "spreadConstraints": {} }))];
    let mut world = World::new([cluster("a"), cluster("b")]);
    world.set_policies(spread);
    let object = parsed(&web());
    let request = DecisionRequest { object: &object, is_autoscaled: false, current: None };
    let decision = decide(&world.fleet, &request);
    world.cluster("a").is_delegated = true;
    let found = check_decision(&world.fleet, &request, &decision);
    for invariant in ["no delegated cluster has a part", "delegation is recorded"] {
        assert!(found.iter().any(|violation| violation.invariant == invariant), "{invariant}: {found:?}");
    }
}

#[test]
fn a_placement_follows_the_flag_of_the_agent() {
    let mut world = World::new([cluster("a")]);
    world.set_policies([policy("all", json!({}))]);
    world.place(&web());
    assert!(!world.current.as_ref().unwrap().is_delegated());
    world.cluster("a").is_delegated = true;
    assert!(world.place(&web()).is_delegated());
    // So it does if nothing selects the object any more.
    world.fleet.policies = PolicySet::default();
    world.cluster("a").is_delegated = false;
    let placement = world.place(&web());
    assert!(!placement.is_delegated());
    let labelled = deployment("web", 3, json!({ "fleet.keelway.dev/target-cluster": "a" }), json!({}));
    let needed = TargetLabel::needed(&parsed(&labelled), &placement, &PodKinds::default());
    assert_eq!(needed, Some(TargetLabel::Remove));
    assert_eq!(world.decide(&web()).outcome, PlacementOutcome::Keep(KeepReason::NoLongerSelected));
}

#[test]
fn a_move_changes_the_cluster_that_the_object_names() {
    let mut world = World::new([delegated("a"), delegated("b")]);
    world.set_policies([policy("all", json!({}))]);
    assert_eq!(world.placed(&web()), [("a", None)]);
    world.cluster("a").drain = Some(ClusterDrain { max_moves: 1 });
    assert_eq!(world.placed(&web()), [("b", None)]);
    assert_eq!(world.current.unwrap().delegated_to(), Some("b"));
}

#[test]
fn failover_moves_nothing_away_from_a_pinned_cluster() {
    const AFTER: i64 = 300;
    for (is_pinned, expected) in [(true, "a"), (false, "b")] {
        let mut world = World::new([cluster("a"), cluster("b")]);
        world.wait(86_400);
        world.cluster("a").is_pinned = is_pinned;
        world.set_policies([policy("all", json!({ "failover": { "recovery": "Return" } }))]);
        assert_eq!(world.placed(&web()), [("a", None)]);
        world.report("a", "Unknown");
        world.wait(AFTER);
        assert_eq!(world.placed(&web()), [(expected, None)]);
    }
}

#[test]
fn nothing_returns_from_a_pinned_cluster() {
    const AFTER: i64 = 300;
    let mut world = World::new([cluster("a"), cluster("b")]);
    world.wait(86_400);
    world.set_policies([policy("all", json!({ "failover": { "recovery": "Return" } }))]);
    world.place(&web());
    world.report("a", "Unknown");
    world.wait(AFTER);
    assert_eq!(world.placed(&web()), [("b", None)]);
    world.cluster("b").is_pinned = true;
    world.report("a", "True");
    world.wait(AFTER);
    assert_eq!(world.placed(&web()), [("b", None)]);
    world.cluster("b").is_pinned = false;
    assert_eq!(world.placed(&web()), [("a", None)]);
}

#[test]
fn a_cluster_is_read_with_the_flags_of_its_agent() {
    let read = |status: Json| {
        let document = json!({
            "apiVersion": "fleet.keelway.dev/v1alpha1", "kind": "Cluster", "metadata": { "name": "a" }, "spec": {}, "status": status,
        });
        let cluster = CandidateCluster::read(&serde_json::from_value(document).unwrap());
        (cluster.is_delegated, cluster.is_pinned)
    };
    // An agent of an earlier release reports no flags.
    assert_eq!(read(json!({})), (false, false));
    assert_eq!(read(json!({ "orchestrationEnabled": true, "reschedulingEnabled": true })), (false, false));
    assert_eq!(read(json!({ "orchestrationEnabled": false })), (true, false));
    assert_eq!(read(json!({ "orchestrationEnabled": false, "reschedulingEnabled": false })), (true, true));
}

#[test]
fn a_cluster_is_read_with_what_people_set() {
    let taint = json!({ "key": "gpu", "value": "true", "effect": "NoSchedule" });
    let read = |mut metadata: Json, spec: Json| {
        metadata["name"] = json!("a");
        let document = json!({ "apiVersion": "fleet.keelway.dev/v1alpha1", "kind": "Cluster", "metadata": metadata, "spec": spec });
        CandidateCluster::read(&serde_json::from_value(document).unwrap())
    };
    let plain = read(json!({}), json!({}));
    assert_eq!((plain.is_autoscaled, plain.is_cordoned, plain.drain, plain.is_leaving), (false, false, None, false));
    assert_eq!((plain.taints, plain.ready), (vec![], None));
    assert_eq!(plain.labels.get("kubernetes.io/metadata.name").map(String::as_str), Some("a"));
    let labelled = json!({ "labels": { "tier": "gold" }, "deletionTimestamp": "2026-11-27T08:00:00Z" });
    let set = json!({ "autoscaled": true, "unschedulable": true, "drain": { "maxMoves": 2 }, "taints": [taint] });
    let set = read(labelled, set);
    assert_eq!((set.is_autoscaled, set.is_cordoned, set.is_leaving), (true, true, true));
    assert_eq!(set.drain, Some(ClusterDrain { max_moves: 2 }));
    let [ClusterTaint { key, value, effect }] = set.taints.as_slice() else { panic!("{:?}", set.taints) };
    assert_eq!((key.as_str(), value.as_deref(), *effect), ("gpu", Some("true"), TaintEffect::NoSchedule));
    assert_eq!(set.labels.get("tier").map(String::as_str), Some("gold"));
    // Without a number, as many objects move at a time as by default.
    assert_eq!(read(json!({}), json!({ "drain": {} })).drain, Some(ClusterDrain { max_moves: 4 }));
}
