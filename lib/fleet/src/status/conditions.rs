//! Conditions of several clusters, merged by type.

use alloc::collections::BTreeMap;

use serde_json::{Map, Value as Json, json};

/// Conditions that report something wrong if they are `True`. Of all others, `True` is good.
const NEGATIVE: [&str; 4] = ["ReplicaFailure", "Failed", "FailureTarget", "DisruptionTarget"];

/// Returns the merged conditions. The worst status counts, and the message names each cluster.
///
/// A cluster that does not report a condition counts as `Unknown`, or `False` if the condition reports something wrong.
pub(super) fn merge(parts: &[(&str, &Json)], clusters: usize) -> Vec<Json> {
    let mut by_type: BTreeMap<&str, Vec<(&str, &Json)>> = BTreeMap::new();
    for (cluster, status) in parts {
        for condition in status["conditions"].as_array().into_iter().flatten() {
            by_type.entry(text(condition, "type")).or_default().push((cluster, condition));
        }
    }
    by_type.into_iter().map(|(kind, reported)| merge_one(kind, &reported, reported.len() < clusters)).collect()
}

fn text<'a>(condition: &'a Json, field: &str) -> &'a str {
    condition[field].as_str().unwrap_or_default()
}

fn merge_one(kind: &str, reported: &[(&str, &Json)], is_partial: bool) -> Json {
    let order = if NEGATIVE.contains(&kind) { ["True", "Unknown", "False"] } else { ["False", "Unknown", "True"] };
    let missing = if NEGATIVE.contains(&kind) { "False" } else { "Unknown" };
    let has = |status: &&str| {
        (is_partial && missing == *status) || reported.iter().any(|(_, condition)| text(condition, "status") == *status)
    };
    let status = order.into_iter().find(has).unwrap_or("Unknown");
    let deciding: Vec<&Json> = reported
        .iter()
        .map(|(_, condition)| *condition)
        .filter(|condition| text(condition, "status") == status)
        .collect();
    let mut merged = Map::new();
    merged.insert("type".to_owned(), json!(kind));
    merged.insert("status".to_owned(), json!(status));
    for time in ["lastProbeTime", "lastUpdateTime", "lastTransitionTime"] {
        // Times of API servers are in UTC and in one format, so they are ordered as texts.
        let latest = reported.iter().filter_map(|(_, condition)| condition[time].as_str()).max();
        merged.extend(latest.map(|latest| (time.to_owned(), json!(latest))));
    }
    let reason = deciding.first().map_or("NotReported", |condition| text(condition, "reason"));
    if !reason.is_empty() {
        merged.insert("reason".to_owned(), json!(reason));
    }
    let messages = reported.iter().filter(|(_, condition)| !text(condition, "message").is_empty());
    let mut messages: Vec<String> =
        messages.map(|(cluster, condition)| format!("{cluster}: {}", text(condition, "message"))).collect();
    if is_partial {
        messages.push("some clusters have not reported yet".to_owned());
    }
    if !messages.is_empty() {
        merged.insert("message".to_owned(), json!(messages.join("; ")));
    }
    Json::Object(merged)
}
