//! An object of an API as a document, and what beside it matters to a store.

use std::{collections::BTreeSet, path::PathBuf};

use keelway_api::{cluster, documents::SecretName, hypervisor};
use kube::core::{ApiResource, DynamicObject};
use serde_json::{Value as Json, json};

use super::verdict::ACCEPTED;
use crate::place::path_of_object;

/// What `kubectl apply` notes: the whole document, with all that a Secret holds.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Which object it is of all that had its name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Version {
    /// Grows with each write (KEP-5504). 0 where an API server tells none.
    pub(super) number: u64,
    pub(super) uid: Option<String>,
    /// What is told on it of why it does not count.
    pub(super) refused: Option<String>,
    /// Whether Keelway's finalizer keeps it there.
    pub(super) kept: bool,
}

impl Version {
    pub(super) fn of(object: &DynamicObject) -> Self {
        let number = object.metadata.resource_version.as_deref().and_then(|text| text.parse().ok());
        let conditions = object.data.pointer("/status/conditions").and_then(Json::as_array);
        let refused = conditions.into_iter().flatten().find(|condition| condition["type"] == ACCEPTED);
        let finalizers = object.metadata.finalizers.as_deref().unwrap_or_default();
        Self {
            number: number.unwrap_or_default(),
            uid: object.metadata.uid.clone(),
            refused: refused.and_then(|condition| Some(condition["message"].as_str()?.to_owned())),
            kept: finalizers.iter().any(|name| [cluster::FINALIZER, hypervisor::FINALIZER].contains(&name.as_str())),
        }
    }
}

/// Where a document of this kind would be in a directory.
pub(super) fn path(resource: &ApiResource, object: &DynamicObject) -> Option<PathBuf> {
    path_of_object(&resource.kind, object.metadata.namespace.as_deref(), object.metadata.name.as_deref()?)
}

/// Whether it is only there for others' sake: ours is done.
pub(super) fn is_released(resource: &ApiResource, object: &DynamicObject) -> bool {
    matches!(resource.kind.as_str(), "Cluster" | "Hypervisor")
        && object.metadata.deletion_timestamp.is_some()
        && !Version::of(object).kept
}

/// The document, without what an API server or a client notes for itself.
pub(super) fn text(resource: &ApiResource, object: &DynamicObject) -> Vec<u8> {
    let mut json = serde_json::to_value(object).unwrap_or_default();
    json["apiVersion"] = json!(resource.api_version);
    json["kind"] = json!(resource.kind);
    let own = matches!(resource.kind.as_str(), "Component" | "Secret");
    if let Some(metadata) = json.get_mut("metadata").and_then(Json::as_object_mut) {
        metadata.retain(|field, _| !is_noted(field, own));
        // This store's own means to keep it.
        if let Some(Json::Array(finalizers)) = metadata.get_mut("finalizers") {
            finalizers.retain(|name| name != hypervisor::FINALIZER);
        }
        if metadata.get("finalizers").is_some_and(|left| *left == json!([])) {
            metadata.remove("finalizers");
        }
        if let Some(Json::Object(annotations)) = metadata.get_mut("annotations") {
            annotations.remove(LAST_APPLIED);
        }
    }
    if let Some(Json::Array(conditions)) = json.pointer_mut("/status/conditions") {
        conditions.retain(|condition| condition["type"] != ACCEPTED);
    }
    serde_json::to_vec(&json).unwrap_or_default()
}

/// Fields of metadata that change without anybody's will; of what is Keelway's own, all that is not written by it.
fn is_noted(field: &str, own: bool) -> bool {
    let of_all = matches!(
        field,
        "managedFields" | "resourceVersion" | "selfLink" | "generateName" | "deletionGracePeriodSeconds"
    );
    of_all || own && matches!(field, "uid" | "creationTimestamp" | "generation" | "deletionTimestamp")
}

/// Secrets of users' that it refers to.
pub(super) fn references(resource: &ApiResource, object: &DynamicObject) -> BTreeSet<SecretName> {
    let text = |value: &Json| value.as_str().map(str::to_owned);
    match resource.kind.as_str() {
        "Hypervisor" => {
            let reference = object.data.pointer("/spec/endpoint/cri/secretRef");
            let found = reference.and_then(|reference| {
                Some(SecretName { namespace: text(&reference["namespace"])?, name: text(&reference["name"])? })
            });
            found.into_iter().collect()
        }
        "Cluster" => {
            let namespace = object.metadata.namespace.clone().unwrap_or_default();
            let references = object.data.pointer("/spec/images/pullSecrets").and_then(Json::as_array);
            let names = references.into_iter().flatten().filter_map(|reference| text(&reference["name"]));
            names.map(|name| SecretName { namespace: namespace.clone(), name }).collect()
        }
        _ => BTreeSet::new(),
    }
}

/// Whether something relies on it already: what is left out of these would be missed.
pub(super) fn is_relied_on(bytes: &[u8]) -> bool {
    let json: Json = serde_json::from_slice(bytes).unwrap_or_default();
    match json["kind"].as_str() {
        Some("Cluster") => json.pointer("/status/id").is_some(),
        Some("Hypervisor") => json.pointer("/status/issued").is_some(),
        Some("Component") => true,
        _ => json.pointer("/metadata/labels/keelway.dev~1cluster-id").is_some(),
    }
}
