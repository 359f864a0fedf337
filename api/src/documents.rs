//! The documents of a world: typed, by name, and in the order in which they were read.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Secret;

use crate::{
    Cluster, Component, Hypervisor,
    machine::CLUSTER_LABEL,
    name::{ClusterId, ClusterRef, HypervisorName, PodName},
};

/// Where a Secret is found: namespace and name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SecretName {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
}

/// Everything that one `keelway` command reads or writes.
///
/// Maps hold what Keelway works with; documents of others are kept byte for byte in their place.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Documents {
    /// Machines.
    pub hypervisors: BTreeMap<HypervisorName, Hypervisor>,
    /// Clusters.
    pub clusters: BTreeMap<ClusterRef, Cluster>,
    /// Components of all clusters.
    pub components: BTreeMap<PodName, Component>,
    /// Our Secrets: those with the label `keelway.dev/cluster-id`.
    pub secrets: BTreeMap<SecretName, Secret>,
    /// The order of reading. What is not in it is written after it, by kind and name.
    pub(crate) places: Vec<Place>,
}

/// What stands at one place of the input.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Place {
    /// A machine.
    Hypervisor(HypervisorName),
    /// A cluster.
    Cluster(ClusterRef),
    /// A component.
    Component(PodName),
    /// A Secret of ours.
    Secret(SecretName),
    /// A document of somebody else's, with its own separator line where it had one.
    Foreign(String),
}

impl SecretName {
    /// The name of a Secret of this cluster.
    #[must_use]
    pub fn of(cluster: &ClusterId, name: &str) -> Self {
        Self {
            namespace: cluster.namespace(),
            name: name.to_owned(),
        }
    }
}

/// Whether a Secret is one of ours.
#[must_use]
pub fn is_ours(secret: &Secret) -> bool {
    secret
        .metadata
        .labels
        .as_ref()
        .is_some_and(|labels| labels.contains_key(CLUSTER_LABEL))
}

impl Documents {
    /// The components of one cluster, by name.
    pub fn components_of<'a>(
        &'a self,
        id: &'a ClusterId,
    ) -> impl Iterator<Item = (&'a PodName, &'a Component)> {
        self.components
            .iter()
            .filter(move |(name, _)| name.cluster == *id)
    }

    /// Takes away everything of one cluster: its document, its components, its Secrets.
    pub fn remove_cluster(&mut self, reference: &ClusterRef, id: &ClusterId) {
        let namespace = id.namespace();
        self.clusters.remove(reference);
        self.components.retain(|name, _| name.cluster != *id);
        self.secrets.retain(|name, _| name.namespace != namespace);
    }

    /// Whether there is nothing at all in it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.hypervisors.is_empty()
            && self.clusters.is_empty()
            && self.components.is_empty()
            && self.secrets.is_empty()
            && self.places.is_empty()
    }

    /// Every place in writing order: as read, then what is new by kind and name.
    pub(crate) fn in_order(&self) -> Vec<Place> {
        let known: BTreeSet<&Place> = self.places.iter().collect();
        let present = self
            .hypervisors
            .keys()
            .cloned()
            .map(Place::Hypervisor)
            .chain(self.clusters.keys().cloned().map(Place::Cluster))
            .chain(self.components.keys().cloned().map(Place::Component))
            .chain(self.secrets.keys().cloned().map(Place::Secret))
            .filter(|place| !known.contains(place));
        self.places.iter().cloned().chain(present).collect()
    }
}
