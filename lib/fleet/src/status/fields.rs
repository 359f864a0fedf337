//! Lists, times and phases of several clusters.

use serde_json::{Map, Value as Json, json};

/// Joins the lists at a path of one name, without repetitions.
pub(super) fn join(status: &mut Map<String, Json>, parts: &[(&str, &Json)], path: &str) {
    let all = joined(parts, path);
    if !all.is_empty() {
        status.insert(path.trim_start_matches('/').to_owned(), Json::Array(all));
    }
}

fn joined(parts: &[(&str, &Json)], path: &str) -> Vec<Json> {
    let mut all: Vec<Json> = Vec::new();
    for item in parts.iter().filter_map(|(_, part)| part.pointer(path)?.as_array()).flatten() {
        if !all.contains(item) {
            all.push(item.clone());
        }
    }
    all
}

/// Joins the addresses of load balancers.
pub(super) fn load_balancer(status: &mut Map<String, Json>, parts: &[(&str, &Json)]) {
    let ingress = joined(parts, "/loadBalancer/ingress");
    let balancer = if ingress.is_empty() { json!({}) } else { json!({ "ingress": ingress }) };
    status.insert("loadBalancer".to_owned(), balancer);
}

// Times of API servers are in UTC and in one format, so they are ordered as texts.
fn times<'a>(parts: &'a [(&str, &Json)], field: &'a str) -> impl Iterator<Item = &'a str> {
    parts.iter().filter_map(move |(_, part)| part[field].as_str())
}

/// Sets each time to the latest.
pub(super) fn latest(status: &mut Map<String, Json>, parts: &[(&str, &Json)], fields: &[&str]) {
    for field in fields {
        status.extend(times(parts, field).max().map(|time| ((*field).to_owned(), json!(time))));
    }
}

/// Sets a time to the earliest.
pub(super) fn earliest(status: &mut Map<String, Json>, parts: &[(&str, &Json)], field: &str) {
    status.extend(times(parts, field).min().map(|time| (field.to_owned(), json!(time))));
}

/// Sets the phase to the first in an order that a cluster reports. A cluster without a report is `Pending`. Size and modes of a claim are those of
/// the first cluster.
pub(super) fn phase(status: &mut Map<String, Json>, parts: &[(&str, &Json)], order: &[&str], clusters: usize) {
    let pending = (parts.len() < clusters).then_some("Pending");
    let reported: Vec<&str> = times(parts, "phase").chain(pending).collect();
    let worst = order.iter().find(|phase| reported.contains(phase));
    status.extend(worst.map(|phase| ("phase".to_owned(), json!(phase))));
    for field in ["accessModes", "capacity"] {
        let first = parts.iter().find_map(|(_, part)| part.get(field));
        status.extend(first.map(|value| (field.to_owned(), value.clone())));
    }
}
