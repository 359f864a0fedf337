//! What was seen, at one moment, before deciding.

use alloc::{collections::BTreeMap, string::String, vec::Vec};
use core::net::IpAddr;

pub use keelway_api::ComponentHealth;
use keelway_api::{
    Documents, Time,
    documents::SecretName,
    jiff::Timestamp,
    machine::{MachineState, ObservedValue},
    name::{ClusterId, HypervisorName, PodName},
    shared::Map,
};

use crate::MachineRefusal;

/// Everything that the decision rests on beside the documents.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PassObservation {
    /// Each machine of the documents.
    pub machines: Map<HypervisorName, ObservedValue<MachineState>>,
    /// Machines that take nothing from these documents: see [`crate::refuse`]. They count as unreachable.
    pub refused: BTreeMap<HypervisorName, MachineRefusal>,
    /// The answer of each component's health check.
    pub health: BTreeMap<PodName, ComponentHealth>,
    /// The digest of the bindings that stand in each managed cluster, as its API tells it; empty where there are none.
    pub bindings: BTreeMap<ClusterId, ObservedValue<String>>,
    /// What the certificates in our Secrets say, by Secret and name.
    pub certificates: ObservedCertificates,
}

/// What certificates say, by Secret and name.
pub type ObservedCertificates = BTreeMap<(SecretName, String), CertificateSeen>;

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
    /// When its life is over.
    pub not_after: Timestamp,
}

impl PassObservation {
    /// What a document tells, beside what the certificates of the Secrets say.
    #[must_use]
    pub fn of(document: keelway_api::Observation, certificates: ObservedCertificates) -> Self {
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

    /// Whether nothing is done from these documents anywhere: more than half of the machines that answer hold later configs than the
    /// documents tell of. What fewer machines say concerns them alone, and the clusters that [stand still](Self::standing_still) for them.
    #[must_use]
    pub fn stale(&self) -> bool {
        let sound = self.machines.values().filter(|seen| seen.known().is_some()).count();
        self.stale_machines().count() > sound
    }

    /// Clusters that are left as they are, each with the machine that it stands still for: they have components on a machine that holds a
    /// later config than the documents tell of. What that machine says that it holds is no fact, so the documents alone say which these are.
    #[must_use]
    pub fn frozen_clusters<'a>(&'a self, documents: &Documents) -> BTreeMap<ClusterId, &'a HypervisorName> {
        let stale: BTreeMap<&HypervisorName, &HypervisorName> =
            self.stale_machines().map(|name| (name, name)).collect();
        if stale.is_empty() {
            return BTreeMap::new();
        }
        let here = documents.components.iter().rev();
        here.filter_map(|(pod, component)| Some((pod.cluster.clone(), *stale.get(&component.spec.hypervisor)?)))
            .collect()
    }

    fn stale_machines(&self) -> impl Iterator<Item = &HypervisorName> {
        self.refused.iter().filter(|(_, refused)| refused.is_stale()).map(|(name, _)| name)
    }

    /// Whether a component did not answer in time, and may work all the same.
    pub(crate) fn may_be_working(&self, component: &PodName) -> bool {
        matches!(self.health.get(component), Some(ComponentHealth::NoAnswer(_)))
    }

    /// Whether a component answers its health check.
    pub(crate) fn healthy(&self, component: &PodName) -> bool {
        matches!(self.health.get(component), Some(ComponentHealth::Healthy))
    }
}
