//! Properties of decisions over random fleets, policies and histories.

use std::collections::BTreeMap;

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use keelway_fleet::{
    CandidateCluster, ClusterActivity, ClusterDrain, ClusterTaint, ContentRole, DecisionRequest, DivisionPart,
    FleetClock, FleetState, KeepReason, ObjectState, PlacementLink, PlacementOutcome, PlacementSpec, PolicySet,
    TaintEffect, decide, divide,
    invariants::{check_decision, check_works},
    placement_link, plan_works,
};
use proptest::prelude::*;
use serde_json::{Value as Json, json};

use crate::world::{ample, deployment, labelled, object, parsed, policy, report, start};

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

fn now() -> Timestamp {
    start() + SignedDuration::from_hours(1)
}

fn a_cluster(name: &'static str) -> impl Strategy<Value = CandidateCluster> {
    (0..4_u8, 0..5_u8, 0..600_i64, 0..8_u8).prop_map(move |(zone, ready, age, state)| {
        let mut cluster = labelled(name, if zone == 3 { json!({}) } else { json!({ "zone": format!("z{zone}") }) });
        match ready {
            0 => cluster.ready = None,
            1 => report(&mut cluster, "Unknown", now() - SignedDuration::from_secs(age)),
            2 => {
                report(&mut cluster, "False", start());
                report(&mut cluster, "True", now() - SignedDuration::from_secs(age));
            }
            _ => {}
        }
        cluster.is_autoscaled = zone == 1;
        cluster.is_cordoned = state == 1;
        cluster.is_leaving = state == 2;
        cluster.is_delegated = state == 4 || zone == 2;
        cluster.is_pinned = state == 5 || zone == 2;
        cluster.drain = (state == 3).then_some(ClusterDrain { max_moves: 1 });
        let effect = [TaintEffect::NoSchedule, TaintEffect::PreferNoSchedule];
        if let Some(effect) = effect.get(usize::from(state) % 4) {
            cluster.taints.push(ClusterTaint { key: "x".to_owned(), value: None, effect: *effect });
        }
        cluster
    })
}

fn clusters() -> impl Strategy<Value = BTreeMap<String, CandidateCluster>> {
    let all = NAMES.map(a_cluster);
    (all, proptest::sample::subsequence(NAMES.to_vec(), 0..=NAMES.len())).prop_map(|(all, present)| {
        let all = all.into_iter().filter(|cluster| present.contains(&cluster.name.as_str()));
        all.map(|cluster| (cluster.name.clone(), cluster)).collect()
    })
}

fn a_spread() -> impl Strategy<Value = Json> {
    let key = prop_oneof![Just("zone"), Just("kubernetes.io/metadata.name")];
    (key, 0..3_u8, 0..=100_u32).prop_map(|(key, mode, share)| {
        let (one, other) = if key == "zone" { ("z0", "z1") } else { ("a", "b") };
        let shares = json!([{ "topologyValue": one, "percentage": share }, { "topologyValue": other, "percentage": 100 - share }]);
        match mode {
            0 => json!({ "topologyKey": key }),
            1 => json!({ "topologyKey": key, "percentageSplit": shares }),
            _ => json!({ "topologyKey": key, "spreadMode": "Duplicate" }),
        }
    })
}

fn policies() -> impl Strategy<Value = PolicySet> {
    let failover = (any::<bool>(), 1..3_u8).prop_map(|(returns, moves)| {
        json!({ "after": "5m", "recovery": if returns { "Return" } else { "Stay" }, "maxMoves": moves })
    });
    let one =
        (proptest::option::of(a_spread()), 0..3_i32, proptest::option::of(0..3_u8), proptest::option::of(failover));
    proptest::collection::vec(one, 0..4).prop_map(|all| {
        PolicySet::read(all.into_iter().enumerate().map(|(index, (spread, priority, zone, failover))| {
            let mut more = json!({ "priority": priority });
            if spread.is_none() && priority == 1 {
                let order = json!({ "key": "zone", "operator": "In", "values": ["z1", "z0"] });
                more["orderedClusterSelector"] = json!({ "matchExpressions": [order] });
            }
            if let Some(spread) = spread {
                more["spreadConstraints"] = spread;
            }
            if let Some(failover) = failover {
                more["failover"] = failover;
            }
            if let Some(zone) = zone {
                more["clusterSelector"] = json!({ "matchLabels": { "zone": format!("z{zone}") } });
            }
            policy(&format!("p{index}"), more)
        }))
    })
}

fn an_object() -> impl Strategy<Value = Json> {
    let annotations = prop_oneof![
        4 => Just(json!({})),
        1 => Just(json!({ "fleet.keelway.dev/cluster": "b" })),
        1 => Just(json!({ "fleet.keelway.dev/spread-onto": "a,c" })),
    ];
    (0..24_u32, annotations, 0..4_u8).prop_map(|(replicas, annotations, kind)| {
        if kind < 2 {
            return deployment("web", replicas, json!({}), annotations);
        }
        if kind == 2 {
            let mut mounts = deployment("web", replicas, json!({}), annotations);
            mounts["spec"]["template"]["spec"]["volumes"] =
                json!([{ "persistentVolumeClaim": { "claimName": "data" } }]);
            return mounts;
        }
        let mut config = object("v1", "ConfigMap", Some("default"), "web");
        config["metadata"]["annotations"] = annotations;
        config
    })
}

/// What goes on in clusters: pods in `default`, and another object that leaves.
fn activity() -> impl Strategy<Value = BTreeMap<String, ClusterActivity>> {
    let one = (any::<bool>(), any::<bool>(), any::<bool>()).prop_map(|(has_pods, leaves, is_taken_over)| {
        let mut activity = ClusterActivity::default();
        if has_pods {
            activity.add(ContentRole::Holder, "default");
        }
        let other = PlacementLink { namespace: "default".to_owned(), name: "deployment.apps.other".to_owned() };
        activity.taken_over.extend((leaves && is_taken_over).then(|| other.clone()));
        activity.leaving.extend(leaves.then_some(other));
        activity
    });
    proptest::collection::vec(one, NAMES.len())
        .prop_map(|all| NAMES.iter().map(|&name| name.to_owned()).zip(all).collect())
}

fn a_fleet() -> impl Strategy<Value = FleetState> {
    let removed = proptest::sample::subsequence(NAMES.to_vec(), 0..2);
    (clusters(), policies(), activity(), removed, 0..8_u8).prop_map(
        |(clusters, policies, activity, removed, started)| {
            let observing_since = if started == 0 { now() } else { Timestamp::UNIX_EPOCH };
            let clock = FleetClock { now: now(), observing_since };
            let removed = removed.into_iter().filter(|name| !clusters.contains_key(*name)).map(str::to_owned).collect();
            let capacity = ample(clusters.keys().map(String::as_str));
            FleetState { clusters, removed, policies, capacity, activity, clock, ..FleetState::default() }
        },
    )
}

/// Returns the fleet as it is just before its next deadline, or much later if it has none.
fn before_deadline(fleet: FleetState) -> FleetState {
    let deadline = fleet.next_deadline().unwrap_or_else(|| now() + SignedDuration::from_hours(10_000));
    let now = deadline - SignedDuration::from_secs(1);
    FleetState { clock: FleetClock { now, ..fleet.clock }, ..fleet }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn a_division_keeps_the_sum_and_every_part_is_near_its_quota(
        total in 0..2000_u32,
        parts in proptest::collection::vec((0..=100_u32, 0..50_u32), 1..12),
    ) {
        let parts: Vec<DivisionPart> = parts.into_iter().map(|(weight, current)| DivisionPart { weight, current }).collect();
        let replicas = divide(total, &parts);
        prop_assert_eq!(replicas.iter().sum::<u32>(), total);
        let whole: u64 = parts.iter().map(|part| u64::from(part.weight)).sum();
        for (part, replicas) in parts.iter().zip(&replicas) {
            if let Some(floor) = (u64::from(total) * u64::from(part.weight)).checked_div(whole) {
                prop_assert!((floor..=floor + 1).contains(&u64::from(*replicas)), "{parts:?}: {replicas}");
            }
        }
        let settled: Vec<DivisionPart> =
            parts.iter().zip(&replicas).map(|(part, &current)| DivisionPart { current, ..*part }).collect();
        prop_assert_eq!(divide(total, &settled), replicas);
    }

    #[test]
    fn one_more_replica_moves_none_in_an_even_division(total in 0..500_u32, parts in 1..12_usize) {
        let fresh = vec![DivisionPart { weight: 1, current: 0 }; parts];
        let before = divide(total, &fresh);
        let now: Vec<DivisionPart> = before.iter().map(|&current| DivisionPart { weight: 1, current }).collect();
        let after = divide(total + 1, &now);
        prop_assert!(before.iter().zip(&after).all(|(before, after)| after >= before), "{before:?} {after:?}");
    }

    #[test]
    fn every_decision_of_a_history_is_sound(history in proptest::collection::vec((a_fleet(), an_object()), 1..6)) {
        let mut current: Option<PlacementSpec> = None;
        for (fleet, object) in history {
            let object = parsed(&object);
            // Each object has a Placement of its own.
            let own = current.as_ref().filter(|placement| placement.object.kind == object.reference.kind);
            let request = DecisionRequest { object: &object, is_autoscaled: false, current: own };
            let decision = decide(&fleet, &request);
            prop_assert_eq!(check_decision(&fleet, &request, &decision), []);
            prop_assert_eq!(&decide(&fleet, &request), &decision);
            prop_assert_eq!(&decide(&before_deadline(fleet), &request), &decision);
            if let PlacementOutcome::Place(placement) = decision.outcome {
                current = Some(placement);
            }
        }
    }

    #[test]
    fn unreadable_input_changes_and_deletes_nothing(mut fleet in a_fleet(), object in an_object()) {
        let object = parsed(&object);
        let request = DecisionRequest { object: &object, is_autoscaled: false, current: None };
        let PlacementOutcome::Place(placement) = decide(&fleet, &request).outcome else { return Ok(()) };
        let link = placement_link(&object.reference);
        let plan = plan_works(&ObjectState::Unreadable("timeout".to_owned()), false, Some(&placement), &link, &[]);
        prop_assert!(plan.orders.is_empty());
        prop_assert_eq!(check_works(Some(&placement), false, &[], &plan), []);
        if object.named_cluster().is_none() && object.spread_onto().is_empty() {
            fleet.policies.add_unreadable("newer", "unknown variant");
            let request = DecisionRequest { current: Some(&placement), ..request };
            let outcome = decide(&fleet, &request).outcome;
            prop_assert!(matches!(outcome, PlacementOutcome::Keep(KeepReason::UnknownPolicy(_))));
        }
    }
}
