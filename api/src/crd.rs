//! The custom resource definitions of our kinds.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube_core::CustomResourceExt;

use crate::{Cluster, Component, Hypervisor};

/// What a management cluster needs to keep our documents, by kind.
#[must_use]
pub fn crds() -> Vec<CustomResourceDefinition> {
    vec![Cluster::crd(), Component::crd(), Hypervisor::crd()]
}
