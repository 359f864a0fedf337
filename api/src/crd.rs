//! The custom resource definitions of our kinds.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube_core::CustomResourceExt;

use crate::{
    Cluster, Component, Hypervisor,
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

/// A digest of [`worker_crds`]. It stands here because each pass asks for it, also one with nothing to do, for which the definitions would be
/// made from their types.
pub const WORKER_CRDS_DIGEST: &str = "e62cdf09e295dd4e25b45cb6de1ac01d58f8d64a5ca22ba9c6218f612cc769f3";
