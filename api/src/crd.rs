//! The custom resource definitions of our kinds.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube_core::CustomResourceExt;

use crate::{
    Cluster, Component, Hypervisor,
    worker::{AddressClaim, NodeAllocation, Tombstone, WireGuardPeer},
};

/// What a management cluster needs to keep our documents, by kind.
#[must_use]
pub fn crds() -> Vec<CustomResourceDefinition> {
    vec![Cluster::crd(), Component::crd(), Hypervisor::crd()]
}

/// What a managed cluster needs to keep what Keelway knows of its workers, by kind. These go nowhere else.
#[must_use]
pub fn worker_crds() -> Vec<CustomResourceDefinition> {
    vec![AddressClaim::crd(), NodeAllocation::crd(), Tombstone::crd(), WireGuardPeer::crd()]
}
