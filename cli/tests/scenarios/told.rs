//! The difference between two worlds, one line for each field. Keys, digests and records of passes are left out.

use std::collections::BTreeMap;

use serde_json::Value;

use super::world::World;

/// Fields that are derived from others.
const FOLLOWING: [&str; 10] = [
    "conditions",
    "issued",
    "applied",
    "digest",
    "formats",
    "sha256",
    "files",
    "images",
    "timestamp",
    "observedGeneration",
];
/// More lines than a person reads.
const MOST_LINES: usize = 60;

/// Returns the lines that were removed, with `-`, and those that were added, with `+`.
pub(super) fn difference(before: &World, after: &World) -> String {
    let (old, new) = (lines(before), lines(after));
    let mut found: Vec<String> = Vec::new();
    let mut paths: Vec<&String> = old.keys().chain(new.keys()).collect();
    paths.sort();
    paths.dedup();
    for path in paths {
        let (was, is) = (old.get(path), new.get(path));
        if was != is {
            found.extend(was.map(|value| format!("- {path}: {value}")));
            found.extend(is.map(|value| format!("+ {path}: {value}")));
        }
    }
    if found.is_empty() {
        found.push("nothing".to_owned());
    }
    let more = found.len().saturating_sub(MOST_LINES);
    found.truncate(MOST_LINES);
    if more > 0 {
        found.push(format!(".. and {more} more"));
    }
    found.join("\n") + "\n"
}

fn lines(world: &World) -> BTreeMap<String, String> {
    let documents = &world.documents;
    let mut lines = BTreeMap::new();
    for (name, document) in &documents.classes {
        flatten(&format!("ClusterClass {name}"), &serde_json::to_value(document).unwrap(), &mut lines);
    }
    for (name, document) in &documents.hypervisors {
        flatten(&format!("Hypervisor {name}"), &serde_json::to_value(document).unwrap(), &mut lines);
    }
    for (name, document) in &documents.clusters {
        flatten(&format!("Cluster {name}"), &serde_json::to_value(document).unwrap(), &mut lines);
    }
    for (pod, document) in &documents.components {
        let name = format!("Component {}/{}", document.spec.cluster, pod.component);
        let stage = document.stage();
        let ports: Vec<&str> = document.spec.ports.keys().map(String::as_str).collect();
        lines.insert(name, format!("{stage:?} on {} with {}", document.spec.hypervisor, ports.join(", ")));
    }
    for (name, secret) in &documents.secrets {
        let keys: Vec<&String> = secret.data.iter().flatten().map(|(key, _)| key).collect();
        lines.insert(format!("Secret {}/{}", name.namespace, name.name), format!("{keys:?}").replace('"', ""));
    }
    flatten("seen", &serde_json::to_value(world.look()).unwrap(), &mut lines);
    lines.insert("seen at".to_owned(), world.now.to_string());
    lines
}

fn flatten(path: &str, value: &Value, lines: &mut BTreeMap<String, String>) {
    let mut below = |name: &str, value: &Value| {
        if !FOLLOWING.contains(&name) {
            flatten(&format!("{path}.{name}"), value, lines);
        }
    };
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| below(name, value)),
        Value::Array(items) if items.iter().all(|item| !item.is_object()) => {
            lines.insert(path.to_owned(), value.to_string().replace('"', ""));
        }
        Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                let name = title(item).unwrap_or_else(|| index.to_string());
                flatten(&format!("{path}[{name}]"), item, lines);
            }
        }
        Value::Null => {}
        // A digest of permissions changes with every permission that a release adds.
        Value::String(text) if is_digest(text) => drop(lines.insert(path.to_owned(), "a digest".to_owned())),
        Value::String(text) => drop(lines.insert(path.to_owned(), text.clone())),
        Value::Bool(_) | Value::Number(_) => drop(lines.insert(path.to_owned(), value.to_string())),
    }
}

fn is_digest(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|c| c.is_ascii_hexdigit())
}

/// Returns what identifies a sandbox or a container.
fn title(item: &Value) -> Option<String> {
    let text = |field: &str| item.get(field)?.as_str().map(ToOwned::to_owned);
    let pod = item.get("pod").map(|pod| format!("{}/{}", pod["cluster"], pod["component"]).replace('"', ""));
    pod.or_else(|| Some(format!("{} of {}", text("name")?, text("sandbox")?)))
}
