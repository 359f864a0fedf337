//! Where snapshots are stored.

pub(crate) mod directory;
pub(crate) mod s3;

use std::{fs::File, io, path::PathBuf};

use async_trait::async_trait;

use crate::SealedSnapshot;

/// A store of files with keys such as `default/c1/0123456789abcdef/20261127T115200Z-48213.json`. A file that is there is complete.
#[async_trait]
pub trait SnapshotSink: Send + Sync {
    /// Returns where a snapshot waits until it is stored. The directory exists.
    async fn spool(&self) -> Result<PathBuf, SinkError>;
    /// Stores a sealed snapshot.
    async fn put_snapshot(&self, key: &str, snapshot: &SealedSnapshot) -> Result<(), SinkError>;
    /// Opens a sealed snapshot. The file of a store elsewhere is a temporary one, which is deleted once it is closed.
    async fn get_snapshot(&self, key: &str) -> Result<File, SinkError>;
    /// Stores a small file.
    async fn put(&self, key: &str, content: Vec<u8>) -> Result<(), SinkError>;
    /// Returns a small file.
    async fn get(&self, key: &str) -> Result<Vec<u8>, SinkError>;
    /// Returns the keys that begin with this prefix, which ends with a slash.
    async fn list(&self, prefix: &str) -> Result<Vec<String>, SinkError>;
    /// Deletes a file. A file that does not exist is no error.
    async fn delete(&self, key: &str) -> Result<(), SinkError>;
}

/// A sink failed.
#[derive(Debug, thiserror::Error)]
pub enum SinkError {
    /// A file of a directory could not be used.
    #[error("cannot {operation} {}", path.display())]
    File {
        /// What was tried.
        operation: &'static str,
        /// The path.
        path: PathBuf,
        /// The cause.
        #[source]
        cause: io::Error,
    },
    /// The settings of an S3 store cannot be used.
    #[error("the settings of the S3 store cannot be used: {0}")]
    Settings(&'static str),
    /// The S3 store could not be reached.
    #[error("cannot {operation}: no response from the S3 store")]
    Connect {
        /// The operation of the S3 API.
        operation: &'static str,
        /// The cause.
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The S3 store did not respond in time.
    #[error("cannot {operation}: the S3 store did not respond within {seconds} s")]
    TimedOut {
        /// The operation of the S3 API.
        operation: &'static str,
        /// The time limit.
        seconds: u64,
    },
    /// The S3 store refused a request.
    #[error("cannot {operation}: the S3 store returned {status} {code}")]
    Refused {
        /// The operation of the S3 API.
        operation: &'static str,
        /// The HTTP status.
        status: u16,
        /// The code of the error, such as `NoSuchBucket`.
        code: String,
    },
    /// The S3 store returned something else than its API does.
    #[error("cannot {operation}: the response of the S3 store cannot be read")]
    Response {
        /// The operation of the S3 API.
        operation: &'static str,
    },
}
