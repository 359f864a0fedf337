//! A snapshot as it arrives: it is hashed and sealed part by part, and its database is read back from the sealed file. The plain database is never
//! stored.

use std::{
    fs::File,
    io::{self, BufReader, BufWriter, Seek, Write},
    path::Path,
};

use age::stream::StreamWriter;
use futures::{Stream, StreamExt};
use sha2::{Digest, Sha256};
use tempfile::NamedTempFile;
use tokio::{sync::mpsc, task::JoinError};

use crate::{DatabaseError, DatabaseSummary, SealError, SealingKey, check};

/// The length of the SHA-256 digest that etcd sends after the database.
pub(crate) const DIGEST: usize = 32;
/// The alignment of a database. It distinguishes a file with a digest from one without, as `etcdutl snapshot restore` does.
pub(crate) const SECTOR: u64 = 512;
/// The number of parts between the network and the file. A part has 32 KiB.
pub(crate) const PARTS: usize = 32;

/// A sealed snapshot in a temporary file, which is deleted with it unless a sink stores it.
#[derive(Debug)]
pub struct SealedSnapshot {
    pub(crate) file: NamedTempFile,
    /// The summary of the database, read back from the file.
    pub database: DatabaseSummary,
    /// The SHA-256 digest of the database, in hexadecimal digits.
    pub digest: String,
    /// The size of the file in bytes.
    pub sealed_size: u64,
    /// The SHA-256 digest of the file, in hexadecimal digits.
    pub sealed_digest: String,
}

/// What is wrong with a snapshot.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotFault {
    /// Its length is not that of a database with a digest.
    #[error("it is truncated: {0} bytes are not a database with a digest at its end")]
    Truncated(u64),
    /// The database differs from its digest.
    #[error("its SHA-256 digest is {expected}, and that of its database is {found}")]
    Digest {
        /// The digest at its end.
        expected: String,
        /// The digest of the database.
        found: String,
    },
    /// The database is damaged.
    #[error("its database is damaged")]
    Database(#[source] DatabaseError),
    /// It could not be sealed or opened.
    #[error(transparent)]
    Seal(#[from] SealError),
    /// The temporary file could not be used.
    #[error("cannot use a temporary file in the directory of snapshots")]
    File(#[from] io::Error),
    /// The thread that seals ended early, which is a bug.
    #[error("the thread that seals the snapshot ended")]
    Thread(#[source] JoinError),
}

/// A snapshot could not be received.
#[derive(Debug, thiserror::Error)]
pub enum ReceiveError<E: std::error::Error + 'static> {
    /// The member stopped sending.
    #[error("the stream of the snapshot broke off")]
    Stream(#[source] E),
    /// The snapshot cannot be used.
    #[error("the snapshot cannot be used")]
    Fault(#[from] SnapshotFault),
}

/// Receives a snapshot: the parts of a database, and then its digest. Memory holds a few parts of it at a time.
pub async fn receive<B, E>(
    parts: impl Stream<Item = Result<B, E>>,
    key: SealingKey,
    directory: &Path,
) -> Result<SealedSnapshot, ReceiveError<E>>
where
    B: AsRef<[u8]> + Send + 'static,
    E: std::error::Error + 'static,
{
    let file = temporary_file(directory).map_err(SnapshotFault::File)?;
    let (sender, receiver) = mpsc::channel::<B>(PARTS);
    let sealing = tokio::task::spawn_blocking(move || seal(file, &key, receiver));
    let mut parts = std::pin::pin!(parts);
    let mut broken = None;
    while let Some(part) = parts.next().await {
        match part {
            // The thread ends before the stream only with an error, which it returns.
            Ok(part) => {
                if sender.send(part).await.is_err() {
                    break;
                }
            }
            Err(error) => {
                broken = Some(error);
                break;
            }
        }
    }
    drop(sender);
    let sealed = sealing.await.map_err(SnapshotFault::Thread)?;
    match broken {
        Some(error) => Err(ReceiveError::Stream(error)),
        None => Ok(sealed?),
    }
}

/// Opens a file of mode 0600 that is deleted when it is dropped.
pub(crate) fn temporary_file(directory: &Path) -> io::Result<NamedTempFile> {
    tempfile::Builder::new().prefix(".keelway-snapshot-").tempfile_in(directory)
}

fn seal<B: AsRef<[u8]>>(
    file: NamedTempFile,
    key: &SealingKey,
    mut parts: mpsc::Receiver<B>,
) -> Result<SealedSnapshot, SnapshotFault> {
    let mut incoming = IncomingSnapshot::new(file.as_file().try_clone()?, key)?;
    while let Some(part) = parts.blocking_recv() {
        incoming.write(part.as_ref())?;
    }
    let ReceivedSnapshot { length, digest, sealed_size, sealed_digest } = incoming.finish()?;
    let database = read_back(file.reopen()?, key, length)?;
    Ok(SealedSnapshot { file, database, digest, sealed_size, sealed_digest })
}

/// Checks the database in a sealed file.
fn read_back(file: File, key: &SealingKey, length: u64) -> Result<DatabaseSummary, SnapshotFault> {
    let opened = key.open(BufReader::new(file))?;
    check(opened, length).map_err(SnapshotFault::Database)
}

/// Writes a snapshot to a sealed file. The last bytes are held back until the next part shows that they are not the digest.
struct IncomingSnapshot {
    output: StreamWriter<SealedFileWriter>,
    hash: Sha256,
    held: Vec<u8>,
    length: u64,
}

struct ReceivedSnapshot {
    /// The length of the database.
    length: u64,
    digest: String,
    sealed_size: u64,
    sealed_digest: String,
}

impl IncomingSnapshot {
    fn new(file: File, key: &SealingKey) -> Result<Self, SnapshotFault> {
        let file = SealedFileWriter { file: BufWriter::new(file), hash: Sha256::new(), size: 0 };
        Ok(Self { output: key.seal(file)?, hash: Sha256::new(), held: Vec::new(), length: 0 })
    }

    fn write(&mut self, part: &[u8]) -> io::Result<()> {
        self.output.write_all(part)?;
        self.length += part.len() as u64;
        self.held.extend_from_slice(part);
        let database = self.held.len().saturating_sub(DIGEST);
        self.hash.update(self.held.get(..database).unwrap_or_default());
        self.held.drain(..database);
        Ok(())
    }

    fn finish(self) -> Result<ReceivedSnapshot, SnapshotFault> {
        let length = self.length.checked_sub(DIGEST as u64).filter(|length| length.is_multiple_of(SECTOR));
        let length = length.ok_or(SnapshotFault::Truncated(self.length))?;
        let (expected, digest) = (hex(&self.held), hex(&self.hash.finalize()));
        if expected != digest {
            return Err(SnapshotFault::Digest { expected, found: digest });
        }
        let SealedFileWriter { file, hash, size } = self.output.finish()?;
        file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        Ok(ReceivedSnapshot { length, digest, sealed_size: size, sealed_digest: hex(&hash.finalize()) })
    }
}

/// A file, and the digest of what was written to it.
struct SealedFileWriter {
    file: BufWriter<File>,
    hash: Sha256,
    size: u64,
}

impl Write for SealedFileWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.hash.update(bytes.get(..written).unwrap_or_default());
        self.size += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

impl SealedSnapshot {
    /// Opens the sealed file from its start.
    pub(crate) fn reopen(&self) -> io::Result<File> {
        let mut file = self.file.reopen()?;
        file.rewind()?;
        Ok(file)
    }
}
