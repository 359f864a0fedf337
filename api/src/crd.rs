//! The custom resource definitions of our kinds.
//!
//! They are derived from the types. What a type cannot say is added to them: what an API server is to refuse at once, which is what
//! [`crate::validated`] refuses, as far as rules in CEL can tell.

mod arguments;
mod cel;
mod class;
mod cluster;
mod columns;
mod component;
mod forms;
mod hypervisor;
mod name;
mod network;
mod schema;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube_core::CustomResourceExt;
use serde_json::{Value as Json, json};

use columns::Column;

use crate::{
    Cluster, ClusterClass, Component, Hypervisor,
    worker::{
        AddressClaim, CLUSTER_CONTROLLER_MANAGER, MANAGED_BY, NodeAllocation, Tombstone, WireGuardPeer, WorkerIdentity,
    },
};

/// What a management cluster needs to keep our documents, by kind.
#[must_use]
pub fn crds() -> Vec<CustomResourceDefinition> {
    vec![
        refined(ClusterClass::crd(), columns::CLASS, class::refine),
        refined(Cluster::crd(), columns::CLUSTER, cluster::refine),
        refined(Component::crd(), columns::COMPONENT, component::refine),
        refined(Hypervisor::crd(), columns::HYPERVISOR, hypervisor::refine),
    ]
}

/// One definition with what its type cannot say.
fn refined(derived: CustomResourceDefinition, columns: &[Column], refine: fn(&mut Json)) -> CustomResourceDefinition {
    // Definitions are plain data: a test of each finds out where they would not be written or read.
    let mut json = serde_json::to_value(&derived).unwrap_or_default();
    columns::write(&mut json, columns);
    if let Some(schema) = schema(&mut json) {
        schema::normalize(schema);
        title(schema);
        refine(schema);
    }
    serde_json::from_value(json).unwrap_or(derived)
}

/// The schema of a definition's one version.
fn schema(definition: &mut Json) -> Option<&mut Json> {
    definition.pointer_mut("/spec/versions/0/schema/openAPIV3Schema")
}

/// What `kubectl explain` begins with is what the type says, which derived schemas have at `spec`.
fn title(schema: &mut Json) {
    let text = schema.pointer("/properties/spec/description").cloned().unwrap_or_default();
    schema["description"] = text;
    schema["properties"]["spec"]["description"] = json!("What is wanted.");
}

/// A definition as a manifest, which `kubectl apply -f` takes.
#[must_use]
pub fn manifest(definition: &CustomResourceDefinition) -> String {
    let options = serde_saphyr::ser_options! { folded_wrap_chars: usize::MAX };
    let json = serde_json::to_value(definition).unwrap_or_default();
    // JSON is YAML, and writing it cannot fail.
    serde_saphyr::to_string_with_options(&json, options).unwrap_or_else(|_| format!("{json}\n"))
}

/// What a managed cluster needs to keep what Keelway knows of its workers, by kind. These go nowhere else.
///
/// They are the cluster-controller's, as their label says, also where somebody else applies them: by one owner of their fields in
/// server-side apply, so that a field goes that a later release has no more.
#[must_use]
pub fn worker_crds() -> Vec<CustomResourceDefinition> {
    let mut all =
        vec![AddressClaim::crd(), NodeAllocation::crd(), Tombstone::crd(), WireGuardPeer::crd(), WorkerIdentity::crd()];
    for definition in &mut all {
        let labels = definition.metadata.labels.get_or_insert_default();
        labels.insert(MANAGED_BY.to_owned(), CLUSTER_CONTROLLER_MANAGER.to_owned());
    }
    all
}

/// A digest of [`worker_crds`]. It stands here because each pass asks for it, also one with nothing to do, for which the definitions would be
/// made from their types.
pub const WORKER_CRDS_DIGEST: &str = "e62cdf09e295dd4e25b45cb6de1ac01d58f8d64a5ca22ba9c6218f612cc769f3";
