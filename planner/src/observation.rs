//! What was seen, at one moment, before deciding.

use alloc::{collections::BTreeMap, string::String, vec::Vec};
use core::net::IpAddr;

pub use keelway_api::Health;
use keelway_api::{
    Time,
    documents::SecretName,
    jiff::Timestamp,
    machine::{MachineState, Seen},
    name::{ClusterId, HypervisorName, PodName},
    shared::Map,
};

use crate::Refused;

/// Everything that the decision rests on beside the documents.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Observation {
    /// Each machine of the documents.
    pub machines: Map<HypervisorName, Seen<MachineState>>,
    /// Machines that take nothing from these documents: see [`crate::refuse`]. They count as unreachable.
    pub refused: BTreeMap<HypervisorName, Refused>,
    /// The answer of each component's health check.
    pub health: BTreeMap<PodName, Health>,
    /// The digest of the bindings that stand in each managed cluster, as its API tells it; empty where there are none.
    pub bindings: BTreeMap<ClusterId, Seen<String>>,
    /// What the certificates in our Secrets say, by Secret and name.
    pub certificates: Certificates,
}

/// What certificates say, by Secret and name.
pub type Certificates = BTreeMap<(SecretName, String), CertificateSeen>;

/// What a certificate says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateSeen {
    /// The subject's common name.
    pub common_name: String,
    /// The subject's organizations.
    pub organizations: Vec<String>,
    /// DNS names that it stands for.
    pub dns_names: Vec<String>,
    /// Addresses that it stands for.
    pub addresses: Vec<IpAddr>,
    /// From when on it holds.
    pub not_before: Timestamp,
    /// When two thirds of its life are over.
    pub renew_at: Timestamp,
}

impl Observation {
    /// What a document tells, beside what the certificates of the Secrets say.
    #[must_use]
    pub fn of(document: keelway_api::Observation, certificates: Certificates) -> Self {
        let of_cluster = |(cluster, answers): (ClusterId, BTreeMap<_, _>)| {
            let named = move |(component, health)| (PodName { cluster: cluster.clone(), component }, health);
            answers.into_iter().map(named)
        };
        Self {
            machines: document.hypervisors.into_iter().collect(),
            refused: BTreeMap::new(),
            health: document.health.into_iter().flat_map(of_cluster).collect(),
            bindings: document.bindings,
            certificates,
        }
    }

    /// The same as a document, without what only the Secrets tell.
    #[must_use]
    pub fn document(self, at: Time) -> keelway_api::Observation {
        let mut document = keelway_api::Observation::at(at);
        document.hypervisors = self.machines.into_iter().map(|(name, seen)| (name, seen.into_inner())).collect();
        document.bindings = self.bindings;
        for (pod, health) in self.health {
            document.health.entry(pod.cluster).or_default().insert(pod.component, health);
        }
        document
    }

    /// The state of a machine, where it could be seen.
    pub(crate) fn machine(&self, name: &HypervisorName) -> Option<&MachineState> {
        self.machines.get(name)?.known()
    }

    /// Whether a machine tells that the documents are not the newest.
    pub(crate) fn stale(&self) -> bool {
        self.refused.values().any(Refused::is_stale)
    }

    /// Whether a component answers its health check.
    pub(crate) fn healthy(&self, component: &PodName) -> bool {
        matches!(self.health.get(component), Some(Health::Healthy))
    }
}
