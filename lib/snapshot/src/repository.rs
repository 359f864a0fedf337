//! The snapshots of one cluster in a sink.
//!
//! A snapshot has two files: `NAME.db.age`, the sealed database, and `NAME.json`, its manifest. The manifest is written last and deleted first, so
//! that a snapshot with a manifest is complete.

use std::{fs::File, sync::Arc};

use jiff::Timestamp;

use crate::{
    SealedSnapshot, SinkError, SnapshotManifest, SnapshotManifestError, SnapshotName, SnapshotOpenError, SnapshotOwner,
    SnapshotSink, SnapshotVersions, manifest::FORMAT,
};

const DATABASE: &str = "db.age";
const MANIFEST: &str = "json";

/// The snapshots of one cluster.
#[derive(Clone)]
pub struct SnapshotRepository {
    sink: Arc<dyn SnapshotSink>,
    owner: SnapshotOwner,
}

/// What a sink has of a cluster.
#[derive(Debug, Default)]
pub struct StoredSnapshots {
    /// The complete snapshots, the oldest first.
    pub complete: Vec<(SnapshotName, SnapshotManifest)>,
    /// Snapshots whose manifest cannot be used.
    pub unreadable: Vec<UnreadableSnapshot>,
}

/// A snapshot whose manifest cannot be used.
#[derive(Debug)]
pub struct UnreadableSnapshot {
    /// Its name.
    pub name: SnapshotName,
    /// Why.
    pub error: SnapshotManifestError,
}

/// A snapshot could not be stored, listed or deleted.
#[derive(Debug, thiserror::Error)]
pub enum RepositoryError {
    /// The sink failed.
    #[error(transparent)]
    Sink(#[from] SinkError),
    /// A manifest could not be written.
    #[error("cannot write the manifest of the snapshot")]
    Manifest(#[source] serde_json::Error),
}

impl SnapshotRepository {
    /// Returns the snapshots of this cluster in this sink.
    #[must_use]
    pub fn new(sink: Arc<dyn SnapshotSink>, owner: SnapshotOwner) -> Self {
        Self { sink, owner }
    }

    /// Returns the sink.
    #[must_use]
    pub fn sink(&self) -> &dyn SnapshotSink {
        &*self.sink
    }

    /// The id distinguishes clusters that had the same name.
    fn prefix(&self) -> String {
        let SnapshotOwner { id, namespace, name } = &self.owner;
        format!("{namespace}/{name}/{id}/")
    }

    fn key(&self, name: &SnapshotName, ending: &str) -> String {
        format!("{}{name}.{ending}", self.prefix())
    }

    /// Stores a snapshot that was taken at this time, and returns its manifest.
    pub async fn store(
        &self,
        snapshot: &SealedSnapshot,
        versions: SnapshotVersions,
        at: Timestamp,
    ) -> Result<(SnapshotName, SnapshotManifest), RepositoryError> {
        let name = SnapshotName::of(at, snapshot.database.revision);
        let manifest = SnapshotManifest {
            format: FORMAT,
            name: name.to_string(),
            cluster: self.owner.clone(),
            versions,
            database: snapshot.database.clone(),
            digest: snapshot.digest.clone(),
            sealed_size: snapshot.sealed_size,
            sealed_digest: snapshot.sealed_digest.clone(),
        };
        let text = manifest.to_json().map_err(RepositoryError::Manifest)?;
        self.sink.put_snapshot(&self.key(&name, DATABASE), snapshot).await?;
        self.sink.put(&self.key(&name, MANIFEST), text).await?;
        Ok((name, manifest))
    }

    /// Returns the snapshots of the cluster.
    pub async fn list(&self) -> Result<StoredSnapshots, RepositoryError> {
        let mut stored = StoredSnapshots::default();
        for name in self.names().await? {
            let text = self.sink.get(&self.key(&name, MANIFEST)).await?;
            match SnapshotManifest::parse(&text, &name, &self.owner) {
                Ok(manifest) => stored.complete.push((name, manifest)),
                Err(error) => stored.unreadable.push(UnreadableSnapshot { name, error }),
            }
        }
        Ok(stored)
    }

    /// Returns the names of the snapshots with a manifest, the oldest first.
    pub async fn names(&self) -> Result<Vec<SnapshotName>, RepositoryError> {
        let prefix = self.prefix();
        let keys = self.sink.list(&prefix).await?;
        let name = |key: &String| key.strip_prefix(&prefix)?.strip_suffix(".json")?.parse().ok();
        let mut names: Vec<SnapshotName> = keys.iter().filter_map(name).collect();
        names.sort_unstable();
        Ok(names)
    }

    /// Returns the manifest of a snapshot.
    pub(crate) async fn manifest(&self, name: &SnapshotName) -> Result<SnapshotManifest, SnapshotOpenError> {
        let text = self.sink.get(&self.key(name, MANIFEST)).await.map_err(RepositoryError::Sink)?;
        Ok(SnapshotManifest::parse(&text, name, &self.owner)?)
    }

    /// Returns the sealed file of a snapshot.
    pub(crate) async fn database(&self, name: &SnapshotName) -> Result<File, RepositoryError> {
        Ok(self.sink.get_snapshot(&self.key(name, DATABASE)).await?)
    }

    /// Deletes a snapshot.
    pub async fn delete(&self, name: &SnapshotName) -> Result<(), RepositoryError> {
        self.sink.delete(&self.key(name, MANIFEST)).await?;
        Ok(self.sink.delete(&self.key(name, DATABASE)).await?)
    }
}
