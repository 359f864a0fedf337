//! What people read about where an object runs. The snapshots are the whole text.

#![expect(clippy::unwrap_used, reason = "a test's functions fail by panicking")]

use keelway_fleet::{PlacementExplanation, PlacementSpec, PlacementStatus, WorkloadCluster};
use serde_json::{Value as Json, json};

fn cluster(name: &str, ready: &str, spec: &Json, capacity: &Json) -> WorkloadCluster {
    serde_json::from_value(json!({
        "apiVersion": "fleet.keelway.dev/v1alpha1", "kind": "Cluster", "metadata": { "name": name }, "spec": spec,
        "status": {
            "capacity": capacity,
            "conditions": [{ "type": "Ready", "status": ready, "reason": "Reporting", "message": "", "lastTransitionTime": "2026-11-27T08:00:00Z" }],
        },
    }))
    .unwrap()
}

fn clusters() -> Vec<WorkloadCluster> {
    let capacity = |nodes: u32, cpu: &str| json!({ "nodes": nodes, "free": { "cpu": cpu, "memory": "21474836480", "pods": "220" } });
    vec![
        cluster("east", "True", &json!({}), &capacity(2, "5500m")),
        cluster("north", "Unknown", &json!({ "unschedulable": true }), &capacity(1, "64")),
        cluster("west", "True", &json!({}), &Json::Null),
    ]
}

fn explained(placement: &Json, status: &Json) -> String {
    let mut placement = placement.clone();
    placement["object"] =
        json!({ "group": "apps", "version": "v1", "kind": "Deployment", "namespace": "shop", "name": "web" });
    let placement: PlacementSpec = serde_json::from_value(placement).unwrap();
    let status: Option<PlacementStatus> = serde_json::from_value(status.clone()).unwrap();
    PlacementExplanation::new(&placement, status.as_ref(), &clusters()).to_string()
}

fn reason(cluster: &str, reason: &str, message: &str) -> Json {
    json!({ "cluster": cluster, "reason": reason, "message": message })
}

fn reported(name: &str, status: &str, reason: &str, message: &str) -> Json {
    json!({ "name": name, "replicas": 3, "readyReplicas": 2, "conditions": [{
        "type": "Applied", "status": status, "reason": reason, "message": message, "lastTransitionTime": "2026-11-27T08:00:00Z",
    }] })
}

#[test]
fn an_object_that_runs() {
    let placement = json!({ "policy": "shop", "clusters": [{ "name": "east" }], "reasons": [
        reason("east", "Chosen", "the best of 2 clusters that can run the object"),
        reason("north", "Cordoned", "the cluster is cordoned (spec.unschedulable)"),
        reason("west", "Outranked", "east is equally suitable, and its name comes first"),
    ] });
    let status = json!({ "clusters": [reported("east", "True", "Applied", "")] });
    insta::assert_snapshot!(explained(&placement, &status));
}

#[test]
fn an_object_without_room() {
    let placement = json!({ "policy": "shop", "needs": "4 pods with cpu 2 each", "reasons": [
        reason("east", "NoRoom", "2 of 4 pods fit for certain on 2 nodes; the node with the most room has cpu 3500m"),
        reason("north", "Cordoned", "the cluster is cordoned (spec.unschedulable)"),
        reason("west", "UnknownRoom", "its agent has not reported what is free in the cluster"),
    ] });
    insta::assert_snapshot!(explained(&placement, &Json::Null));
}

#[test]
fn an_object_that_is_divided_and_fails_in_a_cluster() {
    let placement = json!({ "clusters": [{ "name": "east", "replicas": 3 }, { "name": "west", "replicas": 2 }], "reasons": [
        reason("east", "Divided", "3 of 5 replicas"),
        reason("south", "NotRegistered", "the fleet has no such cluster; register it, or correct the annotation of the object"),
        reason("west", "Divided", "2 of 5 replicas"),
    ] });
    let status = json!({ "clusters": [reported("east", "False", "Conflict", "kubectl owns spec.replicas")] });
    insta::assert_snapshot!(explained(&placement, &status));
}

#[test]
fn an_object_in_a_cluster_that_is_not_ready() {
    let placement = json!({ "policy": "shop", "failover": { "after": "10m" }, "clusters": [{ "name": "north" }], "reasons": [
        reason("east", "Outranked", "the object runs in north, and nothing forbids it"),
        reason("north", "Stays", "the object runs there already, and nothing forbids it"),
    ] });
    let status = json!({ "clusters": [reported("north", "True", "Applied", "")] });
    insta::assert_snapshot!(explained(&placement, &status));
}

#[test]
fn programs_read_the_same() {
    let placement = json!({ "policy": "shop", "clusters": [{ "name": "east" }], "reasons": [reason("east", "Stays", "x")],
        "object": { "group": "apps", "version": "v1", "kind": "Deployment", "namespace": "shop", "name": "web" } });
    let placement: PlacementSpec = serde_json::from_value(placement).unwrap();
    let explanation = PlacementExplanation::new(&placement, None, &clusters());
    assert_eq!(
        serde_json::to_value(&explanation).unwrap(),
        json!({
            "kind": "Deployment", "namespace": "shop", "name": "web", "policy": "shop",
            "clusters": [{
                "cluster": "east", "runs": true, "reason": "Stays", "message": "x",
                "progress": "The agent has not reported yet",
                "now": "ready, 2 nodes, free together: cpu 5500m, memory 20Gi",
            }],
        })
    );
}
