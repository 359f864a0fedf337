//! When the next snapshot of a store is due, and what became of the last one.

use alloc::string::String;

use keelway_api::{
    Cluster, Time,
    condition::{self, ConditionStatus, reason::ConditionReason},
    jiff::Timestamp,
    snapshots::{SnapshotFailure, SnapshotSchedule, SnapshotStatus, SnapshotsStatus},
};

use crate::verdict::verdict;

/// The condition of a Cluster whose last snapshot could not be taken. It exists only then.
const BACKED_UP: &str = "EtcdBackedUp";

/// Returns when the next snapshot of a cluster is due: at the first time of its schedule after the last attempt. A time that passes while no driver
/// runs is made up for once. None: the cluster has no schedule, or nothing to copy yet, or is paused, sleeps or is deleted.
#[must_use]
pub fn next_snapshot(cluster: &Cluster) -> Option<Timestamp> {
    let due = snapshot_due_since(cluster)?;
    let snapshots = cluster.status.as_ref()?.etcd.as_ref()?.snapshots.as_ref();
    match snapshots.and_then(|snapshots| snapshots.failure.as_ref()) {
        Some(failure) => schedule(cluster)?.next_after(failure.time.0).map(|next| next.max(due)),
        None => Some(due),
    }
}

/// Returns the first time of the schedule after the last snapshot that was stored, or else after the creation of the store. Failed attempts do not
/// change it.
#[must_use]
pub fn snapshot_due_since(cluster: &Cluster) -> Option<Timestamp> {
    let store = cluster.status.as_ref()?.etcd.as_ref()?;
    let last = store.snapshots.as_ref().and_then(|snapshots| snapshots.last.as_ref());
    schedule(cluster)?.next_after(last.map_or(store.born_at.0, |last| last.time.0))
}

fn schedule(cluster: &Cluster) -> Option<SnapshotSchedule> {
    let is_copied = cluster.is_changeable() && !cluster.spec.asleep && cluster.is_initialized();
    cluster.spec.etcd.snapshots.as_ref().filter(|_| is_copied)?.schedule()
}

/// Returns whether a snapshot of a cluster is due.
#[must_use]
pub fn is_snapshot_due(cluster: &Cluster, now: Timestamp) -> bool {
    next_snapshot(cluster).is_some_and(|due| due <= now)
}

/// Records the result of a snapshot in the status of its cluster: the snapshot, or the error.
pub fn record_snapshot(cluster: &mut Cluster, taken: Result<SnapshotStatus, String>, now: Timestamp) {
    let generation = cluster.metadata.generation;
    let Some(status) = cluster.status.as_mut() else { return };
    let Some(store) = status.etcd.as_mut() else { return };
    let before = store.snapshots.take().unwrap_or_default();
    let says = taken
        .as_ref()
        .err()
        .map(|reason| verdict(ConditionStatus::False, ConditionReason::SnapshotFailed, reason.clone()));
    store.snapshots = Some(match taken {
        Ok(last) => SnapshotsStatus { last: Some(last), failure: None },
        Err(message) => SnapshotsStatus { failure: Some(SnapshotFailure { time: Time(now), message }), ..before },
    });
    condition::set_or_remove(&mut status.conditions, BACKED_UP, says, generation, &Time(now));
}
