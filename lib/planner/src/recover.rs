//! Recovers documents that were restored from an older backup, from what the machines hold.
//!
//! Nothing is deleted, and no machine is changed. The number of each machine becomes the number that the machine holds, so the machine accepts
//! the next pass. A component that a machine holds and no document names is adopted: its document is rebuilt from the machine's config. If
//! that is not possible, the cluster is paused, because a pass would stop what the documents do not name.
//!
//! Machines do not record which members an etcd lost or got since. The member list of the store shows it, so a recovery names the stores that it
//! needs, and is repeated with what they report.

mod backup;
mod cluster;
mod cluster_store;
mod difference;
mod held;
mod keys;
mod member_list;
mod numbers;
mod pod;
mod replicas;
mod store;
mod unclear;

use alloc::{
    collections::{BTreeMap, BTreeSet},
    string::ToString,
    vec::Vec,
};

use keelway_api::{
    Documents, Time,
    machine::ObservedValue,
    name::{ClusterId, ClusterRef, HypervisorName},
    store_observation::StoreObservation,
};

pub use backup::{CompletedDocuments, complete_clusters, complete_from_backup};
pub use difference::{DifferenceKind, RecoveryDifference, Remedy};
pub(crate) use held::{AnsweringMachines, ConfigAge, HeldPod};
pub use held::{HeldConfig, HeldMachine};
pub use replicas::keep_replicas;
pub use unclear::UnclearReason;

use cluster::ClusterRecovery;
pub(crate) use pod::role_of;

/// The result of a recovery.
#[derive(Debug, Clone)]
#[must_use]
pub struct Recovery {
    /// The recovered documents, from which a pass continues.
    pub documents: Documents,
    /// The differences, those of machines first.
    pub differences: Vec<RecoveryDifference>,
    /// The clusters whose etcd may have other members than the documents record, and whose store was not observed. Observe them with these documents,
    /// and recover again.
    pub unobserved_stores: BTreeSet<ClusterId>,
}

impl Recovery {
    /// Returns whether a difference requires an action of a person.
    #[must_use]
    pub fn needs_attention(&self) -> bool {
        self.differences.iter().any(|difference| difference.kind.remedy() == Remedy::NeedsAttention)
    }
}

/// Updates documents of an older backup to match what the machines hold. It is deterministic, and current documents stay unchanged.
pub fn recover(
    documents: &Documents,
    held: &BTreeMap<HypervisorName, ObservedValue<HeldMachine>>,
    stores: &BTreeMap<ClusterId, StoreObservation>,
    now: &Time,
) -> Recovery {
    let mut differences = Vec::new();
    let mut unobserved_stores = BTreeSet::new();
    let mut recovered = documents.clone();
    numbers::share_installation(&mut recovered);
    let ages = numbers::ages(&recovered, held, &mut differences);
    let fleet = AnsweringMachines::of(held, &ages);
    numbers::realign(&mut recovered, &fleet, &mut differences);
    differences.sort_by(|one, other| one.subject.cmp(&other.subject));
    let clusters: Vec<(ClusterRef, ClusterId)> =
        recovered.clusters.iter().filter_map(|(name, cluster)| Some((name.clone(), cluster.id()?.clone()))).collect();
    for (name, id) in &clusters {
        let store = stores.get(id);
        let end = ClusterRecovery::new(&mut recovered, &fleet, (name, id), store).run(now);
        differences.extend(end.differences);
        if end.needs_store && store.is_none() {
            unobserved_stores.insert(id.clone());
        }
    }
    let known: BTreeSet<&ClusterId> = clusters.iter().map(|(_, id)| id).collect();
    for (id, machines) in fleet.clusters.iter().filter(|(id, _)| !known.contains(id)) {
        let machines = machines.iter().map(ToString::to_string).collect();
        differences.push(RecoveryDifference::of(id, DifferenceKind::UnknownCluster { machines }));
    }
    Recovery { documents: recovered, differences, unobserved_stores }
}
