//! The documents as what they mean.

use alloc::{collections::BTreeMap, vec::Vec};
use core::cell::OnceCell;

use ipnet::IpNet;
use keelway_api::{
    Documents, Hypervisor, Shared,
    fault::{Fault, Faults},
    hypervisor::HypervisorRole,
    name::{ClusterId, ClusterRef, HypervisorName},
    shared::Map,
    validated::{ValidatedCluster, ValidatedHypervisor},
};

use crate::Observation;

/// Machines and clusters after validation. Components and Secrets stay in the documents.
pub struct World {
    pub(crate) machines: Shared<BTreeMap<HypervisorName, ValidatedHypervisor>>,
    pub(crate) clusters: BTreeMap<ClusterRef, (ClusterId, ValidatedCluster)>,
    ranges_of_machines: Shared<OnceCell<Vec<IpNet>>>,
}

impl World {
    /// Reads the documents. A cluster that has no id yet is left out: it is identified first.
    ///
    /// # Errors
    /// A document does not mean anything; documents that were read by [`Documents::read`] always do.
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
            Ok(Self { machines: machines.into(), clusters, ranges_of_machines: Shared::default() })
        } else {
            Err(Faults(faults))
        }
    }

    /// The same for a pass: clusters that [stand still](Observation::standing_still) are as if they were paused.
    ///
    /// # Errors
    /// As [`World::of`].
    pub fn of_pass(documents: &Documents, seen: &Observation) -> Result<Self, Faults> {
        let mut world = Self::of(documents)?;
        let still = seen.standing_still(documents);
        for (id, cluster) in world.clusters.values_mut() {
            cluster.paused |= still.contains_key(id);
        }
        Ok(world)
    }

    /// Clusters that are looked after: all that are not paused.
    pub(crate) fn looked_after(&self) -> impl Iterator<Item = (&ClusterRef, &ClusterId, &ValidatedCluster)> {
        let all = self.clusters.iter().map(|(name, (id, cluster))| (name, id, cluster));
        all.filter(|(_, _, cluster)| !cluster.paused)
    }

    /// Reads documents whose machines are mostly those of others that were read before: they are read once where they are the same.
    ///
    /// # Errors
    /// As [`World::of`].
    pub fn beside(&self, before: &Documents, documents: &Documents) -> Result<Self, Faults> {
        if !have_the_same_machines(&before.hypervisors, &documents.hypervisors) {
            return Self::of(documents);
        }
        let mut faults = Vec::new();
        let clusters = clusters(documents, &mut faults);
        let (machines, ranges_of_machines) = (self.machines.clone(), self.ranges_of_machines.clone());
        if faults.is_empty() { Ok(Self { machines, clusters, ranges_of_machines }) } else { Err(Faults(faults)) }
    }

    /// All addresses of all machines, in as few ranges as hold them and nothing else.
    pub(crate) fn ranges_of_machines(&self) -> &[IpNet] {
        self.ranges_of_machines.get_or_init(|| {
            let addresses = self.machines.values().flat_map(|machine| machine.private.iter().chain(&machine.public));
            let addresses: Vec<IpNet> = addresses.copied().map(IpNet::from).collect();
            IpNet::aggregate(&addresses)
        })
    }

    /// Machines of one role, by name.
    pub(crate) fn with_role(&self, role: HypervisorRole) -> impl Iterator<Item = &ValidatedHypervisor> {
        self.machines.values().filter(move |machine| machine.role == role)
    }
}

/// Clusters that have an id.
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

/// Whether machines mean the same to what is on them, in both: their status means nothing to that, nor whether they are to go.
#[must_use]
pub fn have_the_same_machines(
    ones: &Map<HypervisorName, Hypervisor>,
    others: &Map<HypervisorName, Hypervisor>,
) -> bool {
    let same = |((name, one), (other_name, other)): ((_, &Shared<Hypervisor>), (_, &Shared<Hypervisor>))| {
        let same_labels = || one.metadata.labels == other.metadata.labels;
        name == other_name && (one.is_one_with(other) || (one.spec == other.spec && same_labels()))
    };
    ones.is_one_with(others) || (ones.len() == others.len() && ones.iter().zip(others.iter()).all(same))
}
