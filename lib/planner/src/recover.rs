//! Recovers documents that were restored from an older backup, from what the machines hold.
//!
//! Nothing is deleted, and no machine is changed. The number of each machine becomes the number that the machine holds, so the machine accepts
//! the next pass. A component that a machine holds and no document names is adopted: its document is rebuilt from the machine's config. If
//! that is not possible, the cluster is paused, because a pass would stop what the documents do not name.

mod cluster;
mod difference;
mod held;
mod keys;
mod numbers;
mod pod;
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
};

pub use difference::{DifferenceKind, RecoveryDifference, Remedy};
pub(crate) use held::{AnsweringMachines, ConfigAge, HeldPod};
pub use held::{HeldConfig, HeldMachine};
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
    now: &Time,
) -> Recovery {
    let mut differences = Vec::new();
    let mut recovered = documents.clone();
    numbers::share_installation(&mut recovered);
    let ages = numbers::ages(&recovered, held, &mut differences);
    let fleet = AnsweringMachines::of(held, &ages);
    numbers::realign(&mut recovered, &fleet, &mut differences);
    differences.sort_by(|one, other| one.subject.cmp(&other.subject));
    let clusters: Vec<(ClusterRef, ClusterId)> =
        recovered.clusters.iter().filter_map(|(name, cluster)| Some((name.clone(), cluster.id()?.clone()))).collect();
    for (name, id) in &clusters {
        ClusterRecovery::new(&mut recovered, &fleet, (name, id)).run(now, &mut differences);
    }
    let known: BTreeSet<&ClusterId> = clusters.iter().map(|(_, id)| id).collect();
    for (id, machines) in fleet.clusters.iter().filter(|(id, _)| !known.contains(id)) {
        let machines = machines.iter().map(ToString::to_string).collect();
        differences.push(RecoveryDifference::of(id, DifferenceKind::UnknownCluster { machines }));
    }
    Recovery { documents: recovered, differences }
}
