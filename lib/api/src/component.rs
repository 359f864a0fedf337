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

/// A schedulable unit: one replica of one role of one cluster, placed on one hypervisor. Made by Keelway, not by people.
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
    /// The Cluster document that it belongs to.
    pub cluster: ClusterRef,
    /// That cluster's id.
    pub cluster_id: ClusterId,
    /// What it does.
    pub role: Role,
    /// Which replica of its role, from 0.
    pub index: u32,
    /// The Kubernetes release that it runs as part of.
    pub version: String,
    /// The hypervisor that holds it. It never moves because a machine was added.
    pub hypervisor: HypervisorName,
    /// Ports on that machine, by name.
    pub ports: BTreeMap<String, u16>,
    /// The user and group id of its containers: one per cluster and role.
    pub user: u32,
    /// Why it is on that machine.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub placement: String,
    /// Fields of a newer release.
    #[serde(skip)]
    pub newer: Newer,
}

/// What was seen of a component.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ComponentStatus {
    /// Deprecated: as they are read, documents have it as `placement` of their spec.
    #[serde(default, skip_serializing)]
    pub(crate) placement: String,
    /// Where it is in its life.
    #[serde(default, skip_serializing_if = "ComponentStage::is_joining")]
    pub stage: ComponentStage,
    /// `Ready`: it runs and answers its health check.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "condition::list_schema")]
    pub conditions: Vec<Condition>,
    /// Fields of a newer release.
    #[serde(skip)]
    pub newer: Newer,
}

/// Where a component is in its life. Others rely on it while it serves: what is added is ready first, and what is taken away
/// is relied on by nobody any more.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ComponentStage {
    /// It was never ready yet.
    #[default]
    Joining,
    /// It was ready once.
    Serving,
    /// It is no longer wanted, and runs until no other component relies on it.
    Leaving,
    /// Its machine stops it. The document stays until the machine was seen without it, or is lost for good.
    Stopping,
}

impl ComponentStage {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
    fn is_joining(&self) -> bool {
        *self == Self::Joining
    }
}

impl Component {
    /// With its placement in its spec, where its status told of it before.
    pub(crate) fn with_placement(mut self) -> Self {
        let told = self.status.as_mut().map(|status| std::mem::take(&mut status.placement)).unwrap_or_default();
        if self.spec.placement.is_empty() {
            self.spec.placement = told;
        }
        self
    }

    /// Where it is in its life.
    #[must_use]
    pub fn stage(&self) -> ComponentStage {
        self.status.as_ref().map(|status| status.stage).unwrap_or_default()
    }

    /// Whether it is no longer wanted.
    #[must_use]
    pub fn is_leaving(&self) -> bool {
        matches!(self.stage(), ComponentStage::Leaving | ComponentStage::Stopping)
    }

    /// Whether its machine stops it. Documents of v0.1.0 have ingresses that stop as `Leaving`.
    #[must_use]
    pub fn is_stopping(&self) -> bool {
        self.stage() == ComponentStage::Stopping
            || (self.stage() == ComponentStage::Leaving && self.spec.role == Role::Ingress)
    }
}

impl ComponentSpec {
    /// Its name within its cluster.
    pub fn name(&self) -> Result<ComponentName, NameError> {
        self.role.component(self.index)
    }

    /// Its name on machines.
    pub fn pod(&self) -> Result<PodName, NameError> {
        Ok(PodName { cluster: self.cluster_id.clone(), component: self.name()? })
    }

    /// The port of this name. 0 where the document lost it, which validation refuses, or where it is one of
    /// [`Role::added_ports`] that it was not given yet.
    #[must_use]
    pub fn port(&self, name: &str) -> u16 {
        self.ports.get(name).copied().unwrap_or_default()
    }
}
