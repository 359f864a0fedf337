//! The description of a stored snapshot.

use serde::{Deserialize, Serialize};

use crate::{DatabaseSummary, SnapshotName};

/// The format of the manifests that this release writes.
pub const FORMAT: u32 = 1;

/// The cluster that a snapshot belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotOwner {
    /// The id of the cluster.
    pub id: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// The releases and keys that a snapshot belongs to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotVersions {
    /// The Kubernetes release of the cluster.
    pub kubernetes: String,
    /// The version of the member that sent the snapshot.
    pub etcd: String,
    /// The names of the keys that encrypt Secrets in the snapshot. An API server needs one of them to read each Secret.
    pub encryption_keys: Vec<String>,
}

/// What is known of a snapshot without its key. It is stored beside the sealed database, after it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SnapshotManifest {
    /// The format of this manifest.
    pub format: u32,
    /// The name of the snapshot.
    pub name: String,
    /// The cluster.
    pub cluster: SnapshotOwner,
    /// Its releases and keys.
    pub versions: SnapshotVersions,
    /// What `etcdutl snapshot status` reports of the database.
    pub database: DatabaseSummary,
    /// The SHA-256 digest of the database, in hexadecimal digits. The snapshot ends with the same digest.
    pub digest: String,
    /// The size of the sealed file in bytes.
    pub sealed_size: u64,
    /// The SHA-256 digest of the sealed file, in hexadecimal digits.
    pub sealed_digest: String,
}

/// A manifest cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotManifestError {
    /// It is not a manifest.
    #[error("the manifest cannot be read")]
    Unreadable(#[source] serde_json::Error),
    /// A newer release wrote it.
    #[error(
        "a newer release of Keelway wrote it: its format is {0}, and this release reads format {FORMAT}; use that release"
    )]
    Newer(u32),
    /// It has another name than its file.
    #[error("its manifest names {0}")]
    Renamed(String),
    /// It belongs to another cluster.
    #[error("it belongs to the cluster {namespace}/{name} with the id {id}")]
    Foreign {
        /// The namespace of that cluster.
        namespace: String,
        /// The name of that cluster.
        name: String,
        /// The id of that cluster.
        id: String,
    },
}

impl SnapshotManifest {
    /// Reads the manifest of the snapshot with this name, of this cluster.
    pub fn parse(text: &[u8], name: &SnapshotName, owner: &SnapshotOwner) -> Result<Self, SnapshotManifestError> {
        #[derive(Deserialize)]
        struct Format {
            format: u32,
        }
        let Format { format } = serde_json::from_slice(text).map_err(SnapshotManifestError::Unreadable)?;
        if format > FORMAT {
            return Err(SnapshotManifestError::Newer(format));
        }
        let manifest: Self = serde_json::from_slice(text).map_err(SnapshotManifestError::Unreadable)?;
        if manifest.name != name.to_string() {
            return Err(SnapshotManifestError::Renamed(manifest.name));
        }
        if manifest.cluster.id != owner.id {
            let SnapshotOwner { id, namespace, name } = manifest.cluster;
            return Err(SnapshotManifestError::Foreign { namespace, name, id });
        }
        Ok(manifest)
    }

    /// Returns the manifest as text.
    pub fn to_json(&self) -> Result<Vec<u8>, serde_json::Error> {
        let mut text = serde_json::to_vec_pretty(self)?;
        text.push(b'\n');
        Ok(text)
    }
}
