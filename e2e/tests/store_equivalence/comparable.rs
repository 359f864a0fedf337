//! Documents in a form that can be compared: without ids, times, keys, and fields that an API server sets.

use std::collections::{BTreeMap, BTreeSet};

use keelway_api::{
    Documents,
    document::{DocumentName, DocumentRef},
    jiff::Timestamp,
};
use serde_json::{Value, json};

/// Fields that differ between machines or runs, or with the number of passes.
const ASIDE: [&str; 9] = [
    "id",
    "clusterId",
    "endpoint",
    "observedGeneration",
    "issued",
    "applied",
    "disk",
    "nodeInfo",
    "lastTransitionTime",
];

/// Returns each document by name.
pub(crate) fn comparable(documents: &Documents) -> BTreeMap<String, Value> {
    let ids = documents.clusters.values().filter_map(|cluster| cluster.id()).map(ToString::to_string);
    let ids: Vec<String> = ids.chain(documents.installation().map(ToString::to_string)).collect();
    let all = documents.names();
    all.map(|name| (plain(&name.to_string(), &ids), reduced(of(documents, &name), &ids))).collect()
}

fn of(documents: &Documents, name: &DocumentName) -> Value {
    let (labels, content) = match documents.get(name).unwrap() {
        DocumentRef::ClusterClass(document) => (json!(document.metadata.labels), json!([document.spec])),
        DocumentRef::Hypervisor(document) => (json!(document.metadata.labels), json!([document.spec, document.status])),
        DocumentRef::Cluster(document) => (json!(document.metadata.labels), json!([document.spec, document.status])),
        DocumentRef::Component(document) => (json!(document.metadata.labels), json!([document.spec, document.status])),
        DocumentRef::Secret(document) => {
            let entries: BTreeSet<&String> = document.data.iter().flatten().map(|(entry, _)| entry).collect();
            (json!(document.metadata.labels), json!([document.type_, entries]))
        }
    };
    json!([Some(labels).filter(|labels| *labels != json!({})), content])
}

fn reduced(value: Value, ids: &[String]) -> Value {
    match value {
        Value::Object(fields) => {
            let fields = fields.into_iter().filter(|(name, value)| !ASIDE.contains(&name.as_str()) && !value.is_null());
            fields.map(|(name, value)| (plain(&name, ids), reduced(value, ids))).collect()
        }
        Value::Array(items) => items.into_iter().map(|item| reduced(item, ids)).collect(),
        Value::String(text) if text.parse::<Timestamp>().is_ok() => json!("TIME"),
        Value::String(text) if is_digest(&text) => json!("DIGEST"),
        Value::String(text) => json!(plain(&text, ids)),
        Value::Null | Value::Bool(_) | Value::Number(_) => value,
    }
}

/// Returns whether a text is the digest of a key. Keys differ between runs.
fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn plain(text: &str, ids: &[String]) -> String {
    ids.iter().fold(text.to_owned(), |text, id| text.replace(id.as_str(), "ID"))
}

/// Prints the documents that differ.
pub(crate) fn tell(found: &BTreeMap<String, Value>, expected: &BTreeMap<String, Value>) {
    let names: BTreeSet<&String> = found.keys().chain(expected.keys()).collect();
    for name in names.into_iter().filter(|name| found.get(*name) != expected.get(*name)) {
        let text = |of: Option<&Value>| of.map_or_else(|| "none".to_owned(), |value| format!("{value}"));
        println!("{name}\n- {}\n+ {}", text(expected.get(name)), text(found.get(name)));
    }
}
