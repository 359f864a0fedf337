//! Takes the snapshots that are due. They run beside the passes of their clusters, because sending a large database takes longer than a pass may.

use std::{collections::BTreeSet, time::Duration};

use futures::{StreamExt, stream::FuturesUnordered};
use keelway_api::{Documents, name::ClusterRef, snapshots::SnapshotStatus};
use keelway_planner::{is_snapshot_due, record_snapshot};
use tokio::time::sleep;

use super::InstallationReconciler;
use crate::{PassError, StoreError};

/// How often the schedules are compared with the clock, which a user may set.
const LOOK: Duration = Duration::from_secs(15);
/// The number of snapshots that are taken at one time. The others of the same minute follow.
const AT_ONCE: usize = 4;
/// How often a result is recorded again because the documents changed meanwhile.
const MOST_RECORDS: usize = 10;

impl InstallationReconciler<'_> {
    /// Takes snapshots for ever.
    pub(super) async fn snapshots(&self) {
        let mut running = FuturesUnordered::new();
        let mut taking: BTreeSet<ClusterRef> = BTreeSet::new();
        loop {
            for name in self.due_snapshots(&taking) {
                taking.insert(name.clone());
                running.push(self.take_snapshot(name));
            }
            tokio::select! {
                Some(done) = running.next() => {
                    taking.remove(&done);
                }
                () = sleep(LOOK) => {}
            }
        }
    }

    /// Returns clusters whose snapshot is due, as many as there is room for.
    fn due_snapshots(&self, taking: &BTreeSet<ClusterRef>) -> Vec<ClusterRef> {
        let now = self.now();
        let state = self.state();
        let clusters = state.documents.clusters.iter().filter(|(name, _)| !taking.contains(*name));
        let due = clusters.filter(|(_, cluster)| is_snapshot_due(cluster, now)).map(|(name, _)| name.clone());
        due.take(AT_ONCE.saturating_sub(taking.len())).collect()
    }

    /// Takes one snapshot, and records what became of it.
    async fn take_snapshot(&self, name: ClusterRef) -> ClusterRef {
        let documents = self.state().documents_of(&name);
        if let Some(cluster) = documents.clusters.get(&name) {
            let now = self.now();
            let taken = self.context.components.take_snapshot(&documents, cluster, now).await;
            if let Err(reason) = &taken {
                tracing::warn!(cluster = %name, reason, "no snapshot was taken");
            }
            if let Err(error) = self.record(&name, &taken).await {
                tracing::warn!(cluster = %name, error = keelway_base::error_chain::chain_text(&error), "cannot record a snapshot");
            }
        }
        name
    }

    /// Saves the result in the status of the cluster, whatever else changed it meanwhile.
    async fn record(&self, name: &ClusterRef, taken: &Result<SnapshotStatus, String>) -> Result<(), PassError> {
        for _ in 0..MOST_RECORDS {
            let before = self.state().documents_of(name);
            let after = self.recorded(&before, name, taken);
            if after.clusters.get(name).is_none() || self.save_part(&before, &after).await? {
                return Ok(());
            }
        }
        let cause = "the documents of the cluster keep changing".into();
        Err(PassError::Store(StoreError { operation: "save", cause }))
    }

    fn recorded(&self, before: &Documents, name: &ClusterRef, taken: &Result<SnapshotStatus, String>) -> Documents {
        let mut after = before.clone();
        if let Some(cluster) = after.clusters.get_mut(name) {
            record_snapshot(cluster, taken.clone(), self.now());
        }
        after
    }
}
