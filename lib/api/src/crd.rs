//! The custom resource definitions of Keelway's kinds.
//!
//! They are derived from the types. This module adds what a type cannot express: the checks that an API server applies immediately. They are those
//! of [`crate::validated`], as far as rules in CEL can express them.

mod arguments;
pub mod cel;
mod class;
mod cluster;
pub mod columns;
mod component;
mod fleet;
pub mod forms;
mod hypervisor;
mod images;
mod name;
mod network;
mod restore;
pub mod schema;
mod snapshots;

use columns::Column;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube_core::CustomResourceExt;
use serde_json::{Value as Json, json};

use crate::{
    Cluster, ClusterClass, Component, Hypervisor,
    worker::{AddressClaim, CLUSTER_CONTROLLER_MANAGER, MANAGED_BY, Tombstone, WireGuardPeer, WorkerIdentity},
};

/// Returns the definitions that a management cluster needs for the documents, by kind.
#[must_use]
pub fn crds() -> Vec<CustomResourceDefinition> {
    vec![
        refined(ClusterClass::crd(), columns::CLASS, class::refine),
        refined(Cluster::crd(), columns::CLUSTER, cluster::refine),
        refined(Component::crd(), columns::COMPONENT, component::refine),
        refined(Hypervisor::crd(), columns::HYPERVISOR, hypervisor::refine),
    ]
}

/// Returns a definition with the parts that its type cannot express: columns, and what `refine` adds to the schema.
#[must_use]
pub fn refined(
    derived: CustomResourceDefinition,
    columns: &[Column],
    refine: fn(&mut Json),
) -> CustomResourceDefinition {
    // Definitions are plain data, and a test checks that each can be written and read.
    let mut json = serde_json::to_value(&derived).unwrap_or_default();
    columns::write(&mut json, columns);
    if let Some(schema) = schema(&mut json) {
        schema::normalize(schema);
        title(schema);
        refine(schema);
    }
    serde_json::from_value(json).unwrap_or(derived)
}

/// Returns the schema of the only version of a definition.
fn schema(definition: &mut Json) -> Option<&mut Json> {
    definition.pointer_mut("/spec/versions/0/schema/openAPIV3Schema")
}

/// `kubectl explain` starts with the description of the object. Derived schemas have the description of the type at `spec`, so it is moved.
fn title(schema: &mut Json) {
    let text = schema.pointer("/properties/spec/description").cloned().unwrap_or_default();
    schema["description"] = text;
    schema["properties"]["spec"]["description"] = json!("The desired state.");
}

/// Returns a definition as a manifest for `kubectl apply -f`.
#[must_use]
pub fn manifest(definition: &CustomResourceDefinition) -> String {
    let options = serde_saphyr::ser_options! { folded_wrap_chars: usize::MAX };
    let json = serde_json::to_value(definition).unwrap_or_default();
    // JSON is YAML, and writing it cannot fail.
    serde_saphyr::to_string_with_options(&json, options).unwrap_or_else(|_| format!("{json}\n"))
}

/// Returns the definitions that a managed cluster needs for its workers, by kind. No other cluster gets them.
///
/// Their label names the cluster-controller as their owner, even if another program applies them. All programs use this one field manager in
/// server-side apply, so that a field that a later release drops is removed.
#[must_use]
pub fn worker_crds() -> Vec<CustomResourceDefinition> {
    let mut all = vec![AddressClaim::crd(), Tombstone::crd(), WireGuardPeer::crd(), WorkerIdentity::crd()];
    for definition in &mut all {
        let labels = definition.metadata.labels.get_or_insert_default();
        labels.insert(MANAGED_BY.to_owned(), CLUSTER_CONTROLLER_MANAGER.to_owned());
    }
    all
}

/// The digest of [`worker_crds`]. It is a constant because each pass needs it, even a pass without work. Building the definitions from their types
/// would be more expensive.
pub const WORKER_CRDS_DIGEST: &str = "ae2ac2ed49e08c4827b7dceda2304c61178a3732ed247d3193942bb8b48552a9";
