//! `Observation`: the observed state of machines, components and clusters as a document. It contains no keys, so it can be shared.

mod text;

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    kind::{API_VERSION, DocumentKind},
    machine::{MachineState, ObservedValue},
    name::{ClusterId, ComponentName, HypervisorName},
    store_observation::StoreObservation,
};

/// The state of machines, components and clusters that a pass observed. `keelway observe` writes it, and `keelway plan --offline` plans
/// from it without any connection. It contains files as digests only.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Observation {
    /// The API group and version of the document.
    pub api_version: String,
    /// What the document is.
    pub kind: String,
    /// The time of the observation. A plan from it uses this time.
    pub timestamp: Time,
    /// The state of each Hypervisor of the documents, by name.
    #[serde(default)]
    pub hypervisors: BTreeMap<HypervisorName, ObservedValue<MachineState>>,
    /// The result of each component's health check, by cluster id and component.
    #[serde(default)]
    pub health: BTreeMap<ClusterId, BTreeMap<ComponentName, ComponentHealth>>,
    /// The digest of the bindings in each managed cluster, by cluster id. It is empty if a cluster has none.
    #[serde(default)]
    pub bindings: BTreeMap<ClusterId, ObservedValue<String>>,
    /// What the members of each store report, by cluster id. A store that was not asked is absent.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub stores: BTreeMap<ClusterId, StoreObservation>,
}

/// The result of a health check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ComponentHealth {
    /// It responds that it is healthy.
    Healthy,
    /// It responds that it is not healthy. The text is for people.
    Unhealthy(String),
    /// No response came, and the text says why: a deadline, a connection that failed, a certificate that has expired. The component may
    /// work all the same. One that hangs is stopped by its agent's liveness check.
    NoAnswer(String),
}

impl Observation {
    /// Returns an observation of nothing yet.
    #[must_use]
    pub fn at(timestamp: Time) -> Self {
        Self {
            api_version: API_VERSION.to_owned(),
            kind: DocumentKind::Observation.name().to_owned(),
            timestamp,
            hypervisors: BTreeMap::new(),
            health: BTreeMap::new(),
            bindings: BTreeMap::new(),
            stores: BTreeMap::new(),
        }
    }
}
