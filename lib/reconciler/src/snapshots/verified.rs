//! Snapshots that were verified a short time ago. A restore that waits would read its whole snapshot in every pass otherwise.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use keelway_api::{Cluster, Documents, cluster::EtcdSpec, name::ClusterId};
use keelway_base::error_chain::chain_text;
use keelway_planner::RestorableSnapshot;
use keelway_snapshot::SnapshotManifest;

use super::{SnapshotError, restore};

/// The time after which a snapshot is verified again.
const VALID: Duration = Duration::from_secs(600);

/// The last verified snapshot of each cluster.
#[derive(Debug, Default)]
pub(crate) struct VerifiedSnapshots(Mutex<BTreeMap<ClusterId, VerifiedSnapshot>>);

#[derive(Debug)]
struct VerifiedSnapshot {
    /// The spec that requested it.
    spec: EtcdSpec,
    manifest: SnapshotManifest,
    at: Instant,
}

impl VerifiedSnapshots {
    /// Verifies the snapshot that the cluster's spec requests, unless that was done a short time ago, and returns what a decision depends on. The error
    /// is text for users.
    pub(crate) async fn restorable(
        &self,
        documents: &Documents,
        cluster: &Cluster,
    ) -> Result<RestorableSnapshot, String> {
        let manifest = self.manifest(documents, cluster).await.map_err(|error| chain_text(&error))?;
        let revision = manifest.database.revision;
        Ok(RestorableSnapshot { kubernetes: manifest.versions.kubernetes, etcd: manifest.versions.etcd, revision })
    }

    async fn manifest(&self, documents: &Documents, cluster: &Cluster) -> Result<SnapshotManifest, SnapshotError> {
        let id = cluster.id().ok_or(SnapshotError::NotMade)?;
        if let Some(manifest) = self.known(id, &cluster.spec.etcd) {
            restore::check_encryption_keys(documents, (cluster, id), &manifest)?;
            return Ok(manifest);
        }
        let manifest = restore::open(documents, cluster).await?.manifest;
        let verified =
            VerifiedSnapshot { spec: cluster.spec.etcd.clone(), manifest: manifest.clone(), at: Instant::now() };
        self.locked().insert(id.clone(), verified);
        Ok(manifest)
    }

    fn known(&self, id: &ClusterId, spec: &EtcdSpec) -> Option<SnapshotManifest> {
        let verified = self.locked();
        let known = verified.get(id).filter(|known| known.spec == *spec && known.at.elapsed() < VALID)?;
        Some(known.manifest.clone())
    }

    /// Forgets the snapshot of a cluster.
    pub(crate) fn forget(&self, id: &ClusterId) {
        self.locked().remove(id);
    }

    fn locked(&self) -> MutexGuard<'_, BTreeMap<ClusterId, VerifiedSnapshot>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
