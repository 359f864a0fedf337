//! A stored snapshot is opened: it is verified as it was when it was stored, and its database is read part by part.

use std::{
    fs::File,
    io::{self, BufReader, Read, Seek, SeekFrom},
};

use sha2::{Digest, Sha256};
use tokio::sync::mpsc;

use crate::{
    DatabaseError, RepositoryError, SealError, SealingKey, SnapshotFault, SnapshotManifest, SnapshotManifestError,
    SnapshotName, SnapshotRepository, check,
    receive::{DIGEST, PARTS, SECTOR, hex},
};

/// The length of a part.
const PART: usize = 256 * 1024;

/// A snapshot that was verified.
pub struct OpenedSnapshot {
    /// Its description.
    pub manifest: SnapshotManifest,
    /// The length of the database with the digest at its end.
    pub length: u64,
    file: File,
    key: SealingKey,
}

/// A snapshot cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotOpenError {
    /// The sink has no such snapshot.
    #[error("it does not exist")]
    Missing,
    /// The sink failed.
    #[error(transparent)]
    Repository(#[from] RepositoryError),
    /// Its manifest cannot be used.
    #[error(transparent)]
    Manifest(#[from] SnapshotManifestError),
    /// The sealed file has another length.
    #[error("its sealed file has {found} bytes, and its manifest records {expected}")]
    Length {
        /// The length that the manifest records.
        expected: u64,
        /// The length of the file.
        found: u64,
    },
    /// The database is not the one that the manifest describes.
    #[error("its database is not the one that its manifest describes")]
    Other,
    /// Its contents cannot be used.
    #[error(transparent)]
    Fault(#[from] SnapshotFault),
}

impl SnapshotOpenError {
    /// Whether the stored file is the reason: it is the same when the file is read again, whatever the documents have meanwhile.
    #[must_use]
    pub fn is_of_stored_file(&self) -> bool {
        match self {
            Self::Length { .. } | Self::Other => true,
            Self::Fault(fault) => is_of_stored_file(fault),
            Self::Missing | Self::Repository(_) | Self::Manifest(_) => false,
        }
    }
}

fn is_of_stored_file(fault: &SnapshotFault) -> bool {
    match fault {
        SnapshotFault::Truncated(_)
        | SnapshotFault::Digest { .. }
        | SnapshotFault::Database(
            DatabaseError::NoMeta | DatabaseError::Length { .. } | DatabaseError::Page { .. } | DatabaseError::NoKeys,
        ) => true,
        SnapshotFault::Seal(error) => matches!(error, SealError::NotSealed(_)),
        SnapshotFault::Database(DatabaseError::Read(error)) | SnapshotFault::File(error) => is_damage(error),
        SnapshotFault::Thread(_) => false,
    }
}

/// Whether a sealed file was read, and its contents are damaged.
fn is_damage(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof)
}

impl SnapshotRepository {
    /// Opens a snapshot, and verifies it: its owner, its format, its length, its digest, and every page of its database.
    pub async fn open(&self, name: &SnapshotName, key: SealingKey) -> Result<OpenedSnapshot, SnapshotOpenError> {
        if !self.names().await?.contains(name) {
            return Err(SnapshotOpenError::Missing);
        }
        let manifest = self.manifest(name).await?;
        let file = self.database(name).await?;
        // The name cannot be changed in the sink without being noticed: an older snapshot has another revision.
        if manifest.database.revision != name.revision() {
            return Err(SnapshotOpenError::Other);
        }
        let verifying = tokio::task::spawn_blocking(move || verify(manifest, file, key));
        verifying.await.map_err(SnapshotFault::Thread)?
    }
}

fn verify(manifest: SnapshotManifest, file: File, key: SealingKey) -> Result<OpenedSnapshot, SnapshotOpenError> {
    let found = file.metadata().map_err(SnapshotFault::File)?.len();
    let expected = manifest.sealed_size;
    if found != expected {
        return Err(SnapshotOpenError::Length { expected, found });
    }
    let opened = || key.open(BufReader::new(rewound(&file)?)).map_err(SnapshotFault::Seal);
    let (length, digest) = digest(opened()?)?;
    let database = check(opened()?, length).map_err(SnapshotFault::Database)?;
    if digest != manifest.digest || database != manifest.database {
        return Err(SnapshotOpenError::Other);
    }
    Ok(OpenedSnapshot { manifest, length: length + DIGEST as u64, file, key })
}

fn rewound(file: &File) -> Result<File, SnapshotFault> {
    let mut file = file.try_clone()?;
    file.seek(SeekFrom::Start(0))?;
    Ok(file)
}

/// Reads a database with its digest, and returns its length and its digest.
fn digest(mut database: impl Read) -> Result<(u64, String), SnapshotFault> {
    let (mut hash, mut held, mut length) = (Sha256::new(), Vec::new(), 0_u64);
    let mut part = vec![0; PART];
    loop {
        let read = database.read(&mut part)?;
        if read == 0 {
            break;
        }
        length += read as u64;
        held.extend_from_slice(part.get(..read).unwrap_or_default());
        let before = held.len().saturating_sub(DIGEST);
        hash.update(held.get(..before).unwrap_or_default());
        held.drain(..before);
    }
    let database = length.checked_sub(DIGEST as u64).filter(|length| length.is_multiple_of(SECTOR));
    let database = database.ok_or(SnapshotFault::Truncated(length))?;
    let (expected, found) = (hex(&held), hex(&hash.finalize()));
    if expected == found { Ok((database, found)) } else { Err(SnapshotFault::Digest { expected, found }) }
}

impl OpenedSnapshot {
    /// Reads the database with its digest, as `etcdctl snapshot save` stores it. Memory holds a few parts of it at a time.
    #[must_use]
    pub fn into_parts(self) -> mpsc::Receiver<io::Result<Vec<u8>>> {
        let (sender, receiver) = mpsc::channel(PARTS);
        tokio::task::spawn_blocking(move || {
            if let Err(error) = self.send(&sender) {
                let _ = sender.blocking_send(Err(error));
            }
        });
        receiver
    }

    fn send(&self, parts: &mpsc::Sender<io::Result<Vec<u8>>>) -> io::Result<()> {
        let file = rewound(&self.file).map_err(io::Error::other)?;
        let mut database = self.key.open(BufReader::new(file)).map_err(io::Error::other)?;
        loop {
            let mut part = Vec::new();
            (&mut database).take(PART as u64).read_to_end(&mut part)?;
            // The receiver is dropped if nobody needs the rest.
            if part.is_empty() || parts.blocking_send(Ok(part)).is_err() {
                return Ok(());
            }
        }
    }
}
