//! The documents as what they mean.

use alloc::{collections::BTreeMap, vec::Vec};
use core::cell::OnceCell;

use ipnet::IpNet;
use keelway_api::{
    Documents,
    fault::Faults,
    hypervisor::HypervisorRole,
    name::{ClusterId, ClusterRef, HypervisorName},
    validated::{ValidatedCluster, ValidatedHypervisor},
};

/// Machines and clusters after validation. Components and Secrets stay in the documents.
pub struct World {
    pub(crate) machines: BTreeMap<HypervisorName, ValidatedHypervisor>,
    pub(crate) clusters: BTreeMap<ClusterRef, (ClusterId, ValidatedCluster)>,
    ranges_of_machines: OnceCell<Vec<IpNet>>,
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
        if faults.is_empty() {
            Ok(Self { machines, clusters, ranges_of_machines: OnceCell::new() })
        } else {
            Err(Faults(faults))
        }
    }

    /// Clusters that are looked after: all that are not paused.
    pub(crate) fn looked_after(&self) -> impl Iterator<Item = (&ClusterRef, &ClusterId, &ValidatedCluster)> {
        let all = self.clusters.iter().map(|(name, (id, cluster))| (name, id, cluster));
        all.filter(|(_, _, cluster)| !cluster.paused)
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
