//! The numbers of Placements and Works in the metrics.

#![expect(clippy::unwrap_used, reason = "a test's functions fail by panicking")]

use std::collections::BTreeMap;

use keelway_fleet::{Work, WorkloadPlacement};
use keelway_fleet_controller::{
    FleetMetrics,
    placement::{CensusState, FleetCensus},
};
use prometheus_client::{encoding::text::encode, registry::Registry};
use serde_json::{Value, json};

fn work(status: &Value) -> CensusState {
    let work: Work = serde_json::from_value(json!({
        "apiVersion": "fleet.keelway.dev/v1alpha1",
        "kind": "Work",
        "metadata": { "name": "configmap.core.shop.a", "generation": 2 },
        "spec": { "manifest": {}, "placement": { "namespace": "shop", "name": "configmap.core.a" } },
        "status": status,
    }))
    .unwrap();
    CensusState::of_work(&work)
}

fn condition(status: &str) -> Value {
    json!([{ "type": "Applied", "status": status, "reason": "R", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" }])
}

#[test]
fn a_work_counts_as_applied_only_if_its_last_generation_is() {
    assert_eq!(work(&json!({})), CensusState::Pending);
    assert_eq!(work(&json!({ "observedGeneration": 1, "conditions": condition("True") })), CensusState::Pending);
    assert_eq!(work(&json!({ "observedGeneration": 2, "conditions": condition("True") })), CensusState::Applied);
    assert_eq!(work(&json!({ "observedGeneration": 2, "conditions": condition("False") })), CensusState::Failed);
}

#[test]
fn one_failed_cluster_makes_a_placement_failed() {
    let placement = |clusters: Value, status: Value| {
        let placement: WorkloadPlacement = serde_json::from_value(json!({
            "apiVersion": "fleet.keelway.dev/v1alpha1",
            "kind": "Placement",
            "metadata": { "name": "configmap.core.a", "generation": 1 },
            "spec": { "object": { "version": "v1", "kind": "ConfigMap", "name": "a" }, "clusters": clusters },
            "status": status,
        }))
        .unwrap();
        CensusState::of_placement(&placement)
    };
    let two = json!([{ "name": "east" }, { "name": "west" }]);
    let status = |east: &str, west: &str, all: &str| {
        let clusters =
            [("east", east), ("west", west)].map(|(name, is)| json!({ "name": name, "conditions": condition(is) }));
        json!({ "observedGeneration": 1, "clusters": clusters, "conditions": condition(all) })
    };
    assert_eq!(placement(json!([]), json!({})), CensusState::Unscheduled);
    assert_eq!(placement(two.clone(), json!({})), CensusState::Pending);
    assert_eq!(placement(two.clone(), status("True", "False", "False")), CensusState::Failed);
    assert_eq!(placement(two, status("True", "True", "True")), CensusState::Applied);
}

#[test]
fn an_object_that_nobody_has_submitted_is_no_failure() {
    let condition = |status: &str, reason: &str| json!([{ "type": "Applied", "status": status, "reason": reason, "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z" }]);
    let placement = |status: &str, reason: &str| {
        let conditions = condition(status, reason);
        let placement: WorkloadPlacement = serde_json::from_value(json!({
            "apiVersion": "fleet.keelway.dev/v1alpha1",
            "kind": "Placement",
            "metadata": { "name": "job.batch.a", "generation": 1 },
            "spec": {
                "object": { "group": "batch", "version": "v1", "kind": "Job", "name": "a" },
                "clusters": [{ "name": "east", "delegated": true }],
            },
            "status": { "observedGeneration": 1, "clusters": [{ "name": "east", "conditions": conditions }], "conditions": conditions },
        }))
        .unwrap();
        CensusState::of_placement(&placement)
    };
    let reported =
        |status: &str, reason: &str| work(&json!({ "observedGeneration": 2, "conditions": condition(status, reason) }));
    assert_eq!(placement("False", "NotSubmitted"), CensusState::Delegated);
    assert_eq!(placement("True", "Tracked"), CensusState::Applied);
    assert_eq!(placement("False", "Forbidden"), CensusState::Failed);
    assert_eq!(reported("False", "NotSubmitted"), CensusState::Pending);
    assert_eq!(reported("True", "Tracked"), CensusState::Applied);
    assert_eq!(reported("False", "Forbidden"), CensusState::Failed);
}

#[test]
fn a_removed_cluster_leaves_the_metrics() {
    let mut registry = Registry::default();
    let metrics = FleetMetrics::new(&mut registry);
    let scrape = || {
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        text
    };
    let of = |clusters: &[&str]| {
        let states = BTreeMap::from([(CensusState::Failed, 2)]);
        let works = clusters.iter().map(|cluster| ((*cluster).to_owned(), states.clone())).collect();
        FleetCensus { works, pending: 3, ..FleetCensus::default() }
    };
    metrics.set_census(&of(&["east", "west"]));
    let both = scrape();
    for line in [
        "keelway_fleet_controller_works{cluster=\"west\",state=\"Failed\"} 2",
        "keelway_fleet_controller_works{cluster=\"east\",state=\"Applied\"} 0",
        "keelway_fleet_controller_placements{state=\"Unscheduled\"} 0",
        "keelway_fleet_controller_pending_objects 3",
    ] {
        assert!(both.contains(line), "{line}:\n{both}");
    }
    metrics.set_census(&of(&["east"]));
    let one = scrape();
    assert!(one.contains("cluster=\"east\"") && !one.contains("cluster=\"west\""), "{one}");
}
