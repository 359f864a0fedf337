//! The status of a Job. API servers refuse a status that goes back, or that contradicts itself, as a whole.

use serde_json::{Map, Value as Json, json};

use super::{
    counted,
    fields::{earliest, latest},
};

const COUNTS: [&str; 5] = ["active", "succeeded", "failed", "ready", "terminating"];
/// Numbers that never decrease, also if a cluster leaves.
const GROWING: [&str; 2] = ["succeeded", "failed"];
/// Conditions that end a Job.
const ENDS: [&str; 2] = ["Complete", "Failed"];
/// Conditions that stay once they are `True`.
const LASTING: [&str; 2] = ["FailureTarget", "SuccessCriteriaMet"];

/// Adds the numbers of several clusters. A Job starts when the first does, and it is complete when the last is.
pub(super) fn merge(status: &mut Map<String, Json>, parts: &[(&str, &Json)], clusters: usize) {
    counted::add(status, parts, &COUNTS);
    earliest(status, parts, "startTime");
    let complete = parts.iter().filter(|(_, part)| part["completionTime"].is_string()).count();
    if complete == clusters {
        latest(status, parts, &["completionTime"]);
    }
}

/// Removes the condition `Failed` while a cluster has not ended its Job: a failed Job has no active pods. `FailureTarget` reports the failure until then.
pub(super) fn defer_failure(status: &mut Map<String, Json>, parts: &[(&str, &Json)], clusters: usize) {
    let ended = parts.iter().filter(|(_, part)| is_ended(part)).count();
    if ended < clusters
        && let Some(conditions) = status.get_mut("conditions").and_then(Json::as_array_mut)
    {
        conditions.retain(|condition| condition["type"] != "Failed");
    }
}

/// Keeps what must not change of the status before.
pub(super) fn only_forward(status: &mut Map<String, Json>, before: &Json) {
    if let Some(fields) = before.as_object().filter(|_| is_ended(before)) {
        status.clone_from(fields);
        return;
    }
    for field in GROWING {
        let number = |value: Option<&Json>| value.and_then(Json::as_i64).unwrap_or_default();
        let most = number(status.get(field)).max(number(before.get(field)));
        if most > 0 {
            status.insert(field.to_owned(), json!(most));
        }
    }
    if before["startTime"].is_string() {
        status.insert("startTime".to_owned(), before["startTime"].clone());
    }
    // Times of API servers are in UTC and in one format, so they are ordered as texts.
    let [start, end] = ["startTime", "completionTime"].map(|field| status.get(field).and_then(Json::as_str));
    if let (Some(start), Some(end)) = (start, end) {
        let end = json!(start.max(end));
        status.insert("completionTime".to_owned(), end);
    }
    for kind in LASTING.into_iter().filter(|kind| is_true(before, kind)) {
        let mut conditions = status.get("conditions").and_then(Json::as_array).cloned().unwrap_or_default();
        conditions.retain(|condition| condition["type"] != kind);
        let last = before["conditions"].as_array().into_iter().flatten().find(|condition| condition["type"] == kind);
        conditions.extend(last.cloned());
        status.insert("conditions".to_owned(), Json::Array(conditions));
    }
}

fn is_ended(status: &Json) -> bool {
    ENDS.iter().any(|kind| is_true(status, kind))
}

fn is_true(status: &Json, kind: &str) -> bool {
    let conditions = status["conditions"].as_array();
    conditions.into_iter().flatten().any(|condition| condition["type"] == kind && condition["status"] == "True")
}
