//! `Component`: one part of a cluster on one hypervisor.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Newer, condition,
    name::{ClusterId, ClusterRef, ComponentName, HypervisorName, NameError, PodName},
    role::Role,
};

/// One replica of one role of one cluster, placed on one hypervisor. Keelway creates Components; users do not.
#[derive(CustomResource, Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    crates(kube_core = "kube_core"),
    group = "keelway.dev",
    version = "v1alpha1",
    kind = "Component",
    namespaced,
    status = "ComponentStatus",
    category = "keelway",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ComponentSpec {
    /// The Cluster of the component.
    pub cluster: ClusterRef,
    /// The id of the cluster.
    pub cluster_id: ClusterId,
    /// The role of the component.
    pub role: Role,
    /// The index of the replica within its role, from 0.
    pub index: u32,
    /// The Kubernetes release that the component runs.
    pub version: String,
    /// The hypervisor on which the component is placed. Adding a machine never moves it.
    pub hypervisor: HypervisorName,
    /// The component's ports on that machine, by name.
    pub ports: BTreeMap<String, u16>,
    /// The user and group id of its containers. Each cluster and role has its own.
    pub user: u32,
    /// The reason why the component is on that machine.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub placement: String,
    /// Fields of a newer release.
    #[serde(skip)]
    pub newer: Newer,
}

/// The observed state of a component.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ComponentStatus {
    /// Deprecated. When a document is read, this moves to `spec.placement`.
    #[serde(default, skip_serializing)]
    pub(crate) placement: String,
    /// The stage of the component.
    #[serde(default, skip_serializing_if = "ComponentStage::is_joining")]
    pub stage: ComponentStage,
    /// `Ready`: the component runs and passes its health check.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "condition::list_schema")]
    pub conditions: Vec<Condition>,
    /// Fields of a newer release.
    #[serde(skip)]
    pub newer: Newer,
}

/// The stage of a component. Other components depend on it only while it is `Serving`: an added component must be ready first, and a
/// component is removed only when nothing depends on it any more.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ComponentStage {
    /// The component has not been ready yet.
    #[default]
    Joining,
    /// The component has been ready once.
    Serving,
    /// The component is no longer needed. It runs until no other component depends on it.
    Leaving,
    /// The machine stops the component. The document is kept until the machine is observed without it, or is lost.
    Stopping,
}

impl ComponentStage {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
    fn is_joining(&self) -> bool {
        *self == Self::Joining
    }
}

impl Component {
    /// Moves the placement from the status to the spec.
    pub(crate) fn with_placement(mut self) -> Self {
        let recorded = self.status.as_mut().map(|status| std::mem::take(&mut status.placement)).unwrap_or_default();
        if self.spec.placement.is_empty() {
            self.spec.placement = recorded;
        }
        self
    }

    /// The stage of the component.
    #[must_use]
    pub fn stage(&self) -> ComponentStage {
        self.status.as_ref().map(|status| status.stage).unwrap_or_default()
    }

    /// Returns whether it is no longer needed.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        matches!(self.stage(), ComponentStage::Leaving | ComponentStage::Stopping)
    }

    /// Returns whether its machine stops it. In documents of v0.1.0, ingresses that stop are `Leaving`.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.stage() == ComponentStage::Stopping
            || (self.stage() == ComponentStage::Leaving && self.spec.role == Role::Ingress)
    }
}

impl ComponentSpec {
    /// Returns its name within its cluster.
    pub fn name(&self) -> Result<ComponentName, NameError> {
        self.role.component(self.index)
    }

    /// Returns its name on machines.
    pub fn pod(&self) -> Result<PodName, NameError> {
        Ok(PodName { cluster: self.cluster_id.clone(), component: self.name()? })
    }

    /// Returns the port with this name. Returns 0 if the document lacks it, which validation refuses, or if it is one of
    /// [`Role::added_ports`] and not assigned yet.
    #[must_use]
    pub fn port(&self, name: &str) -> u16 {
        self.ports.get(name).copied().unwrap_or_default()
    }
}
