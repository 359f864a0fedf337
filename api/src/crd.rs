//! The custom resource definitions of our kinds.

use std::sync::LazyLock;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube_core::CustomResourceExt;

use crate::{
    Cluster, Component, Hypervisor,
    machine::sha256_hex,
    worker::{
        AddressClaim, CLUSTER_CONTROLLER_MANAGER, MANAGED_BY, NodeAllocation, Tombstone, WireGuardPeer, WorkerIdentity,
    },
};

/// What a management cluster needs to keep our documents, by kind.
#[must_use]
pub fn crds() -> Vec<CustomResourceDefinition> {
    vec![Cluster::crd(), Component::crd(), Hypervisor::crd()]
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

/// A digest of [`worker_crds`].
#[must_use]
pub fn worker_crds_digest() -> &'static str {
    static DIGEST: LazyLock<String> = LazyLock::new(|| {
        // What is made of types can be written.
        sha256_hex(&serde_json::to_vec(&worker_crds()).unwrap_or_default())
    });
    &DIGEST
}
