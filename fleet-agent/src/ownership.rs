//! Field ownership, as the API server records it in `metadata.managedFields`.
//!
//! The agent does not compare values to find drift. The API server normalizes values and adds defaults, but it removes a field from the set of
//! its manager as soon as another client changes or removes it.

use std::collections::BTreeSet;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use keelway_fleet::names::AGENT_FIELD_MANAGER;
use kube::core::Status;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The path of the field that autoscalers write.
pub const REPLICAS: &str = ".spec.replicas";

/// Paths of fields in the notation of the API server's conflicts: `.spec.containers[name="web"].image`.
pub type FieldPaths = BTreeSet<String>;

/// A field that another manager owns with another value.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FieldConflict {
    /// The path of the field.
    pub field: String,
    /// The name of the manager.
    pub manager: String,
}

/// Returns the fields that the agent has applied and still owns.
#[must_use]
pub fn owned_by_agent(entries: &[ManagedFieldsEntry]) -> FieldPaths {
    let is_own = |entry: &&ManagedFieldsEntry| {
        entry.manager.as_deref() == Some(AGENT_FIELD_MANAGER)
            && entry.operation.as_deref() == Some("Apply")
            && entry.subresource.as_deref().unwrap_or_default().is_empty()
    };
    let mut paths = FieldPaths::new();
    for fields in entries.iter().filter(is_own).filter_map(|entry| entry.fields_v1.as_ref()) {
        collect(&fields.0, "", &mut paths);
    }
    paths
}

/// Adds the leaves of a set of fields. The key `.` is the item itself.
fn collect(set: &Value, path: &str, paths: &mut FieldPaths) {
    for (key, children) in set.as_object().into_iter().flatten() {
        if key == "." {
            paths.insert(path.to_owned());
            continue;
        }
        let path = format!("{path}{}", element(key));
        if children.as_object().is_none_or(serde_json::Map::is_empty) {
            paths.insert(path);
        } else {
            collect(children, &path, paths);
        }
    }
}

/// Translates one key of `fieldsV1`: `f:name`, `k:{"name":"web"}`, `v:"text"` or `i:0`.
fn element(key: &str) -> String {
    match key.split_once(':') {
        Some(("f", name)) => format!(".{name}"),
        Some(("k", keys)) => match serde_json::from_str::<Value>(keys) {
            Ok(Value::Object(keys)) => {
                let keys: Vec<String> = keys.iter().map(|(name, value)| format!("{name}={value}")).collect();
                format!("[{}]", keys.join(","))
            }
            _ => format!("[{keys}]"),
        },
        Some(("v", value)) => format!("[={value}]"),
        Some(("i", index)) => format!("[{index}]"),
        _ => format!(".{key}"),
    }
}

/// Returns the conflicts of a refused apply, or `None` if it was refused for another reason.
#[must_use]
pub fn conflicts_of(status: &Status) -> Option<Vec<FieldConflict>> {
    let causes = status.details.as_ref().filter(|_| status.code == 409)?.causes.iter();
    let conflicts: Vec<FieldConflict> = causes
        .filter(|cause| cause.reason == "FieldManagerConflict")
        .map(|cause| FieldConflict { field: cause.field.clone(), manager: manager_of(&cause.message) })
        .collect();
    (!conflicts.is_empty()).then_some(conflicts)
}

/// Returns the name in `conflict with "NAME" using apps/v1`.
fn manager_of(message: &str) -> String {
    message.split('"').nth(1).unwrap_or(message).to_owned()
}
