//! What is in a backup: a header in JSON, which is a YAML document, then the documents as Keelway writes them.

use keelway_api::{Time, snapshots::SnapshotSinkSpec};
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

/// The format of the backups that this release writes.
pub const FORMAT: u32 = 1;

const KIND: &str = "Backup";
const SEPARATOR: &str = "\n---\n";

/// The first document of a backup.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BackupHeader {
    /// Always `Backup`.
    kind: String,
    /// The format of this backup. A release reads all earlier formats.
    format: u32,
    /// The release of Keelway that wrote it.
    pub keelway: String,
    /// When it was taken.
    pub taken_at: Time,
    /// The snapshots of each cluster that has a sink for them.
    #[serde(default)]
    pub clusters: Vec<ClusterSnapshots>,
}

/// The snapshots of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClusterSnapshots {
    /// The namespace of the cluster.
    pub namespace: String,
    /// The name of the cluster.
    pub name: String,
    /// The id of the cluster.
    pub id: String,
    /// Where the snapshots are stored.
    pub sink: SnapshotSinkSpec,
    /// The snapshots, the oldest first.
    pub snapshots: Vec<ListedSnapshot>,
    /// Why the sink could not be listed. The list then has only the last snapshot that the documents record.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// A stored snapshot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ListedSnapshot {
    /// Its name.
    pub name: String,
    /// When it was taken.
    pub time: Time,
    /// The revision of its database.
    pub revision: u64,
    /// The size of its database in bytes.
    pub size: u64,
}

/// A backup that was opened.
pub struct BackupContents {
    /// What is known of it.
    pub header: BackupHeader,
    /// The documents, Secrets included.
    pub documents: Zeroizing<String>,
}

/// An opened file is not a backup that this release can read.
#[derive(Debug, thiserror::Error)]
pub enum BackupFormatError {
    /// It is not a backup.
    #[error("its contents are not a backup of Keelway: `keelway backup` writes backups")]
    NotABackup,
    /// A newer release wrote it.
    #[error(
        "keelway {keelway} wrote it in format {format}, and this release reads formats up to {FORMAT}: use keelway {keelway} or newer"
    )]
    Newer {
        /// Its format.
        format: u32,
        /// The release that wrote it.
        keelway: String,
    },
    /// Its header has fields that this format does not have.
    #[error("its header cannot be read")]
    Header(#[source] serde_json::Error),
}

/// The fields that every format has.
#[derive(Deserialize)]
struct FormatFields {
    kind: String,
    format: u32,
    #[serde(default)]
    keelway: String,
}

impl BackupHeader {
    /// Returns the header of a backup that this release writes.
    #[must_use]
    pub fn new(keelway: &str, taken_at: Time, clusters: Vec<ClusterSnapshots>) -> Self {
        Self { kind: KIND.to_owned(), format: FORMAT, keelway: keelway.to_owned(), taken_at, clusters }
    }

    /// Returns the contents of a backup with these documents, before they are sealed.
    pub fn with_documents(&self, documents: &str) -> Result<Zeroizing<String>, serde_json::Error> {
        let header = serde_json::to_string_pretty(self)?;
        Ok(Zeroizing::new([&header, SEPARATOR, documents].concat()))
    }
}

impl BackupContents {
    /// Reads the contents of an opened backup.
    pub fn parse(contents: &[u8]) -> Result<Self, BackupFormatError> {
        let text = std::str::from_utf8(contents).map_err(|_| BackupFormatError::NotABackup)?;
        let (header, documents) = text.split_once(SEPARATOR).ok_or(BackupFormatError::NotABackup)?;
        let fields: FormatFields = serde_json::from_str(header).map_err(|_| BackupFormatError::NotABackup)?;
        if fields.kind != KIND {
            return Err(BackupFormatError::NotABackup);
        }
        if fields.format > FORMAT {
            return Err(BackupFormatError::Newer { format: fields.format, keelway: fields.keelway });
        }
        let header = serde_json::from_str(header).map_err(BackupFormatError::Header)?;
        Ok(Self { header, documents: Zeroizing::new(documents.to_owned()) })
    }
}
