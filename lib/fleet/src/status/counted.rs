//! Numbers of several clusters, added.

use serde_json::{Map, Value as Json, json};

pub(super) const DEPLOYMENT: [&str; 6] =
    ["replicas", "updatedReplicas", "readyReplicas", "availableReplicas", "unavailableReplicas", "terminatingReplicas"];
pub(super) const REPLICA_SET: [&str; 5] =
    ["replicas", "fullyLabeledReplicas", "readyReplicas", "availableReplicas", "terminatingReplicas"];
pub(super) const STATEFUL_SET: [&str; 5] =
    ["replicas", "readyReplicas", "currentReplicas", "updatedReplicas", "availableReplicas"];
pub(super) const DAEMON_SET: [&str; 7] = [
    "currentNumberScheduled",
    "numberMisscheduled",
    "desiredNumberScheduled",
    "numberReady",
    "updatedNumberScheduled",
    "numberAvailable",
    "numberUnavailable",
];

/// Adds numbers. A number that no cluster reports is absent.
pub(super) fn add(status: &mut Map<String, Json>, parts: &[(&str, &Json)], fields: &[&str]) {
    for field in fields {
        let numbers: Vec<i64> = parts.iter().filter_map(|(_, part)| part[*field].as_i64()).collect();
        if !numbers.is_empty() {
            status.insert((*field).to_owned(), json!(numbers.into_iter().fold(0, i64::saturating_add)));
        }
    }
}
