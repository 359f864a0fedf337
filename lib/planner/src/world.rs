//! The documents after validation.

use alloc::{collections::BTreeMap, vec::Vec};
use core::cell::OnceCell;

use ipnet::IpNet;
use keelway_api::{
    Documents, Hypervisor, Shared,
    fault::{Fault, Faults},
    name::{ClusterId, ClusterRef, HypervisorName},
    shared::Map,
    validated::{ValidatedCluster, ValidatedHypervisor},
};

use crate::{
    PassObservation,
    hosting::HostingNamespace,
    minted::{self, UnusableSecrets},
};

/// Machines and clusters after validation. Components and Secrets stay in the documents.
pub struct ValidatedDocuments {
    pub(crate) machines: Shared<BTreeMap<HypervisorName, ValidatedHypervisor>>,
    pub(crate) clusters: BTreeMap<ClusterRef, (ClusterId, ValidatedCluster)>,
    /// Clusters that lack an authority or key, or hold another one than was minted for them.
    unusable: BTreeMap<ClusterRef, UnusableSecrets>,
    ranges_of_machines: Shared<OnceCell<Vec<IpNet>>>,
    /// Where the control plane runs, if it does not run on machines.
    hosting: Option<HostingNamespace>,
}

impl ValidatedDocuments {
    /// Validates the documents. A cluster without an id is left out: [`crate::identify()`] assigns the id first.
    ///
    /// # Errors
    /// A document is invalid. Documents that [`Documents::read`] returned are valid.
    pub fn of(documents: &Documents) -> Result<Self, Faults> {
        let mut faults = Vec::new();
        let mut machines = BTreeMap::new();
        for (name, document) in &documents.hypervisors {
            match ValidatedHypervisor::parse(document) {
                Ok(machine) => {
                    machines.insert(name.clone(), machine);
                }
                Err(found) => faults.extend(found),
            }
        }
        let clusters = clusters(documents, &mut faults);
        if faults.is_empty() {
            let unusable = unusable(documents, &clusters);
            let ranges_of_machines = Shared::default();
            Ok(Self { machines: machines.into(), clusters, unusable, ranges_of_machines, hosting: None })
        } else {
            Err(Faults(faults))
        }
    }

    /// Validates the documents for a pass: [frozen](PassObservation::frozen_clusters) clusters count as paused.
    ///
    /// # Errors
    /// As [`Self::of`].
    pub fn of_pass(documents: &Documents, seen: &PassObservation) -> Result<Self, Faults> {
        let mut world = Self::of(documents)?;
        let still = seen.frozen_clusters(documents);
        for (id, cluster) in world.clusters.values_mut() {
            cluster.paused |= still.contains_key(id);
        }
        Ok(world)
    }

    /// Replaces the machines by those that stand for a Kubernetes cluster.
    pub(crate) fn hosted(
        self,
        hosting: HostingNamespace,
        machines: BTreeMap<HypervisorName, ValidatedHypervisor>,
    ) -> Self {
        Self { machines: machines.into(), hosting: Some(hosting), ..self }
    }

    /// Where the control plane runs, if it does not run on machines.
    pub(crate) fn hosting(&self) -> Option<&HostingNamespace> {
        self.hosting.as_ref()
    }

    /// Clusters that are reconciled: those that are not paused and have every authority and key that was minted for them.
    pub(crate) fn reconciled_clusters(&self) -> impl Iterator<Item = (&ClusterRef, &ClusterId, &ValidatedCluster)> {
        let all = self.clusters.iter().map(|(name, (id, cluster))| (name, id, cluster));
        all.filter(|(name, _, cluster)| !cluster.paused && !self.unusable.contains_key(*name))
    }

    /// Returns the authorities and keys of a cluster that cannot be used. None: all are usable.
    pub(crate) fn unusable(&self, name: &ClusterRef) -> Option<&UnusableSecrets> {
        self.unusable.get(name)
    }

    /// Validates documents, and reuses the machines of `self`, which were validated from `before`, if the Hypervisors mean the same.
    ///
    /// # Errors
    /// As [`Self::of`].
    pub fn reusing_machines(&self, before: &Documents, documents: &Documents) -> Result<Self, Faults> {
        if !have_the_same_machines(&before.hypervisors, &documents.hypervisors) {
            return Self::of(documents);
        }
        let mut faults = Vec::new();
        let clusters = clusters(documents, &mut faults);
        let (machines, ranges_of_machines) = (self.machines.clone(), self.ranges_of_machines.clone());
        if !faults.is_empty() {
            return Err(Faults(faults));
        }
        let unusable = unusable(documents, &clusters);
        Ok(Self { machines, clusters, unusable, ranges_of_machines, hosting: None })
    }

    /// The addresses of all machines, as the fewest ranges that contain them and no other address.
    pub(crate) fn ranges_of_machines(&self) -> &[IpNet] {
        self.ranges_of_machines.get_or_init(|| {
            let machines = self.machines.values();
            let addresses =
                machines.flat_map(|machine| machine.private.iter().chain(&machine.public).chain(&machine.bind));
            let addresses: Vec<IpNet> = addresses.copied().map(IpNet::from).collect();
            IpNet::aggregate(&addresses)
        })
    }
}

/// Clusters without an id are left out.
fn clusters(documents: &Documents, faults: &mut Vec<Fault>) -> BTreeMap<ClusterRef, (ClusterId, ValidatedCluster)> {
    let mut clusters = BTreeMap::new();
    for (name, document) in &documents.clusters {
        let Some(id) = document.id() else { continue };
        match ValidatedCluster::of_class(document, documents) {
            Ok(cluster) => {
                clusters.insert(name.clone(), (id.clone(), cluster));
            }
            Err(found) => faults.extend(found),
        }
    }
    clusters
}

/// The authorities and keys that cannot be used. Clusters whose authorities and keys are all usable are left out.
fn unusable(
    documents: &Documents,
    clusters: &BTreeMap<ClusterRef, (ClusterId, ValidatedCluster)>,
) -> BTreeMap<ClusterRef, UnusableSecrets> {
    let each = clusters.iter().filter_map(|(name, (id, _))| {
        let unusable = minted::unusable(documents, id, documents.clusters.get(name)?);
        (!unusable.is_empty()).then(|| (name.clone(), unusable))
    });
    each.collect()
}

/// Returns whether the Hypervisors have the same specs and labels. Status and deletion do not affect the components on a machine.
#[must_use]
pub fn have_the_same_machines(
    ones: &Map<HypervisorName, Hypervisor>,
    others: &Map<HypervisorName, Hypervisor>,
) -> bool {
    let same = |((name, one), (other_name, other)): ((_, &Shared<Hypervisor>), (_, &Shared<Hypervisor>))| {
        let same_labels = || one.metadata.labels == other.metadata.labels;
        name == other_name && (one.ptr_eq(other) || (one.spec == other.spec && same_labels()))
    };
    ones.ptr_eq(others) || (ones.len() == others.len() && ones.iter().zip(others.iter()).all(same))
}
