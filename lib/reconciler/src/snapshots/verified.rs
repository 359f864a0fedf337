//! Snapshots that were read a short time ago. A restore that waits would read its whole snapshot in every pass otherwise, and so would one whose snapshot
//! cannot be used.

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

/// The time after which a snapshot is read again.
const VALID: Duration = Duration::from_secs(600);

/// The last snapshot of each cluster that was read.
#[derive(Debug, Default)]
pub(crate) struct VerifiedSnapshots(Mutex<BTreeMap<ClusterId, VerifiedSnapshot>>);

#[derive(Debug)]
struct VerifiedSnapshot {
    /// The spec that requested it.
    spec: EtcdSpec,
    /// Its manifest, or the reason why its file cannot be used, as text for users.
    found: Result<SnapshotManifest, String>,
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
        let id = cluster.id().ok_or_else(|| chain_text(&SnapshotError::NotMade))?;
        let found = match self.known(id, &cluster.spec.etcd) {
            Some(found) => found,
            None => self.verify(documents, (cluster, id)).await,
        };
        let manifest = found?;
        // The documents may have got the keys since.
        let checked = restore::check_encryption_keys(documents, (cluster, id), &manifest);
        checked.map_err(|error| chain_text(&error))?;
        let revision = manifest.database.revision;
        Ok(RestorableSnapshot { kubernetes: manifest.versions.kubernetes, etcd: manifest.versions.etcd, revision })
    }

    /// Reads the snapshot, and remembers the result, unless another attempt may have another one.
    async fn verify(
        &self,
        documents: &Documents,
        (cluster, id): (&Cluster, &ClusterId),
    ) -> Result<SnapshotManifest, String> {
        let read = restore::verify(documents, cluster).await;
        let is_remembered = match &read {
            Ok(_) => true,
            Err(SnapshotError::Open { cause, .. }) => cause.is_of_stored_file(),
            Err(_) => false,
        };
        let found = read.map(|opened| opened.manifest).map_err(|error| chain_text(&error));
        if is_remembered {
            let spec = cluster.spec.etcd.clone();
            let verified = VerifiedSnapshot { spec, found: found.clone(), at: Instant::now() };
            self.locked().insert(id.clone(), verified);
        }
        found
    }

    fn known(&self, id: &ClusterId, spec: &EtcdSpec) -> Option<Result<SnapshotManifest, String>> {
        let verified = self.locked();
        let known = verified.get(id).filter(|known| known.spec == *spec && known.at.elapsed() < VALID)?;
        Some(known.found.clone())
    }

    /// Forgets the snapshot of a cluster.
    pub(crate) fn forget(&self, id: &ClusterId) {
        self.locked().remove(id);
    }

    fn locked(&self) -> MutexGuard<'_, BTreeMap<ClusterId, VerifiedSnapshot>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use keelway_api::{
        documents::{ENCRYPTION_SECRET, SecretName},
        snapshots::SNAPSHOT_SECRET,
    };
    use serde_json::json;

    use super::*;
    use crate::observe::tests::placed;

    const NAME: &str = "20261127T115200Z-5";

    #[tokio::test]
    async fn a_snapshot_whose_file_cannot_be_used_is_not_read_in_every_pass() {
        let sink = std::env::temp_dir().join(format!("keelway-verified-snapshots-{}", std::process::id()));
        let mut documents = placed();
        let mut cluster = documents.clusters.values().next().unwrap().clone();
        let id = cluster.id().unwrap().clone();
        let key = documents.secrets[&SecretName::of(&id, ENCRYPTION_SECRET)].clone();
        documents.secrets.insert(SecretName::of(&id, SNAPSHOT_SECRET), key);
        let snapshots = json!({ "sink": { "directory": { "path": sink } } });
        cluster.spec.etcd.snapshots = Some(serde_json::from_value(snapshots).unwrap());
        let request = |at: &str| serde_json::from_value(json!({ "snapshot": NAME, "requestedAt": at })).unwrap();
        cluster.spec.etcd.restore = Some(request("2026-11-27T12:30:00Z"));
        let verified = VerifiedSnapshots::default();
        let refused = async |cluster: &Cluster| verified.restorable(&documents, cluster).await.unwrap_err();
        let missing = refused(&cluster).await;
        assert!(missing.contains("it does not exist"), "{missing}");

        // A file of two bytes instead of one.
        let directory = sink.join(format!("default/c1/{id}"));
        fs::create_dir_all(&directory).unwrap();
        let manifest = json!({
            "format": 1,
            "name": NAME,
            "cluster": { "id": id, "namespace": "default", "name": "c1" },
            "versions": { "kubernetes": "1.37.0", "etcd": "3.7.0", "encryptionKeys": [] },
            "database": { "hash": 1, "revision": 5, "entries": 1, "totalSize": 1 },
            "digest": "",
            "sealedSize": 1,
            "sealedDigest": "",
        });
        fs::write(directory.join(format!("{NAME}.json")), manifest.to_string()).unwrap();
        fs::write(directory.join(format!("{NAME}.db.age")), "no").unwrap();
        let damaged = refused(&cluster).await;
        assert!(damaged.contains("its sealed file has 2 bytes"), "what is missing is looked for again: {damaged}");

        fs::remove_dir_all(&sink).unwrap();
        assert_eq!(refused(&cluster).await, damaged, "it is not read again");
        cluster.spec.etcd.restore = Some(request("2026-11-27T12:31:00Z"));
        assert_eq!(refused(&cluster).await, missing, "another request reads it");
    }
}
