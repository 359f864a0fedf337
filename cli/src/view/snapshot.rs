//! The view of snapshots.

use keelway_api::{Time, jiff::Timestamp};
use keelway_snapshot::{SnapshotManifest, SnapshotName};
use serde_json::{Value as Json, json};

use super::{TableRow, age, size};

/// A snapshot of a cluster's etcd.
pub(crate) struct SnapshotView {
    pub(crate) name: SnapshotName,
    pub(crate) manifest: SnapshotManifest,
    pub(crate) now: Timestamp,
}

impl TableRow for SnapshotView {
    const HEADER: &'static [&'static str] =
        &["NAME", "AGE", "REVISION", "SIZE", "HASH", "KUBERNETES", "ETCD", "ENCRYPTION KEYS"];
    const NARROW: usize = 4;

    fn cells(&self) -> Vec<String> {
        let SnapshotManifest { database, versions, .. } = &self.manifest;
        vec![
            self.name.to_string(),
            age(Some(&Time(self.name.at())), self.now),
            database.revision.to_string(),
            size(database.total_size),
            // As `etcdutl snapshot status` prints it.
            format!("{:x}", database.hash),
            versions.kubernetes.clone(),
            versions.etcd.clone(),
            versions.encryption_keys.join(","),
        ]
    }
}

impl SnapshotView {
    pub(crate) fn json(&self) -> Json {
        let SnapshotManifest { cluster, database, versions, digest, sealed_size, sealed_digest, .. } = &self.manifest;
        json!({
            "apiVersion": "keelway.dev/v1alpha1",
            "kind": "Snapshot",
            "metadata": {"name": self.name.to_string(), "creationTimestamp": Time(self.name.at())},
            "status": {
                "cluster": cluster,
                "database": database,
                "versions": versions,
                "digest": digest,
                "sealedSize": sealed_size,
                "sealedDigest": sealed_digest,
            },
        })
    }
}
