//! What a pass observes before it decides.

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
    store_observation::StoreObservation,
};

use crate::{MachineRefusal, RestorableSnapshot, UpgradePreflight};

/// Everything that a decision depends on besides the documents and the time.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PassObservation {
    /// The state of each machine of the documents.
    pub machines: Map<HypervisorName, ObservedValue<MachineState>>,
    /// Machines that accept nothing from these documents ([`crate::refuse`]). They count as unreachable.
    pub refused: BTreeMap<HypervisorName, MachineRefusal>,
    /// The result of each component's health check.
    pub health: BTreeMap<PodName, ComponentHealth>,
    /// The digest of the bindings in each managed cluster, as its API server reports it. Empty: the cluster has no bindings.
    pub bindings: BTreeMap<ClusterId, ObservedValue<String>>,
    /// What the members of each store report. A store that was not asked in this pass is absent.
    pub stores: BTreeMap<ClusterId, StoreObservation>,
    /// What was found of the snapshot of each restore that is requested. The error is text for users.
    pub restores: BTreeMap<ClusterId, Result<RestorableSnapshot, String>>,
    /// Which Secrets were written again, in each cluster whose encryption key is rotated.
    pub rewrites: BTreeMap<ClusterId, ObservedValue<SecretRewrite>>,
    /// What the workers of each cluster whose kubernetes authority is rotated report, or the agents of a fleet.
    pub trust: BTreeMap<ClusterId, ObservedValue<Vec<ObservedTrust>>>,
    /// What was found in each cluster whose upgrade to another minor version is about to begin.
    pub preflights: BTreeMap<ClusterId, UpgradePreflight>,
    /// The contents of the certificates in our Secrets, by Secret and name.
    pub certificates: ObservedCertificates,
}

/// Which Secrets of a cluster were written again with an encryption key. The cluster itself records it, so that a restored store has the record of its
/// own data.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SecretRewrite {
    /// The name of the key. Empty: none was.
    pub key: String,
    /// The number of Secrets that were written.
    pub rewritten: u64,
    /// Whether all were written that existed when the key came into use.
    pub is_complete: bool,
}

/// What a worker reports about the authorities of its cluster, in annotations of its Node, or a fleet agent, in annotations of its Lease.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ObservedTrust {
    /// The name of the worker, or of the agent's cluster.
    pub name: String,
    /// Whether its Node, or its Cluster in the fleet, is ready.
    pub is_ready: bool,
    /// The digest of the authorities that it trusts. None: it reports none, as in earlier releases.
    pub trusted: Option<String>,
    /// The key identifiers of the authorities that issued its certificates, in hexadecimal digits.
    pub issuers: Option<String>,
}

/// The contents of certificates, by Secret and name.
pub type ObservedCertificates = BTreeMap<(SecretName, String), CertificateSeen>;

/// The contents of a certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateSeen {
    /// The subject's common name.
    pub common_name: String,
    /// The subject's organizations.
    pub organizations: Vec<String>,
    /// DNS names that it is valid for.
    pub dns_names: Vec<String>,
    /// Addresses that it is valid for.
    pub addresses: Vec<IpAddr>,
    /// The start of its validity.
    pub not_before: Timestamp,
    /// When two thirds of its lifetime are over.
    pub renew_at: Timestamp,
    /// The end of its validity.
    pub not_after: Timestamp,
    /// Its subject key identifier. Authorities have one.
    pub key_id: Option<Vec<u8>>,
    /// Its authority key identifier: the subject key identifier of the authority that signed it (RFC 5280, section 4.2.1.1).
    pub authority_key_id: Option<Vec<u8>>,
}

impl CertificateSeen {
    /// Whether this generation of an authority signed it. None: the authority cannot be read, so nothing says otherwise.
    pub(crate) fn is_signed_by(&self, authority: Option<&Self>) -> bool {
        let key_id = authority.and_then(|authority| authority.key_id.as_ref());
        key_id.is_none_or(|key_id| self.authority_key_id.as_ref() == Some(key_id))
    }
}

impl PassObservation {
    /// Builds the observation from a [`keelway_api::Observation`] and the certificates of the Secrets.
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
            stores: document.stores,
            restores: BTreeMap::new(),
            rewrites: BTreeMap::new(),
            trust: BTreeMap::new(),
            preflights: BTreeMap::new(),
            certificates,
        }
    }

    /// Returns the observation as a document. The document does not contain what comes from Secrets.
    #[must_use]
    pub fn document(self, at: Time) -> keelway_api::Observation {
        let mut document = keelway_api::Observation::at(at);
        document.hypervisors = self.machines.into_iter().map(|(name, seen)| (name, seen.into_inner())).collect();
        document.bindings = self.bindings;
        document.stores = self.stores;
        for (pod, health) in self.health {
            document.health.entry(pod.cluster).or_default().insert(pod.component, health);
        }
        document
    }

    /// The state of a machine, if the machine was observed.
    pub(crate) fn machine(&self, name: &HypervisorName) -> Option<&MachineState> {
        self.machines.get(name)?.known()
    }

    /// Returns whether the documents are stale, so that nothing is done on any machine: more than half of the machines that respond hold a later
    /// config than the documents record. If fewer machines do, only they and the [frozen clusters](Self::frozen_clusters) are affected.
    #[must_use]
    pub fn stale(&self) -> bool {
        let sound = self.machines.values().filter(|seen| seen.known().is_some()).count();
        self.stale_machines().count() > sound
    }

    /// Clusters that stay unchanged, each with the machine that freezes it: a component of the cluster is placed on a machine that holds a later
    /// config than the documents record. A stale machine's report of what it holds is not trusted, so only the documents decide which clusters.
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

    /// Whether the health check of a component got no response. The component may still be working.
    pub(crate) fn may_be_working(&self, component: &PodName) -> bool {
        matches!(self.health.get(component), Some(ComponentHealth::NoAnswer(_)))
    }

    /// Whether the health check of a component succeeded.
    pub(crate) fn healthy(&self, component: &PodName) -> bool {
        matches!(self.health.get(component), Some(ComponentHealth::Healthy))
    }
}
