//! Snapshots of a cluster's etcd: received as a stream, verified, sealed to a key of the cluster, and stored in a sink. It knows no document, and
//! does not decide when to take a snapshot.

mod database;
mod manifest;
mod name;
mod open;
mod receive;
mod repository;
mod retention;
mod seal;
mod sink;

pub use database::{DatabaseError, DatabaseSummary, PageProblem, check};
pub use manifest::{FORMAT, SnapshotManifest, SnapshotManifestError, SnapshotOwner, SnapshotVersions};
pub use name::{SnapshotName, SnapshotNameError};
pub use open::{OpenedSnapshot, SnapshotOpenError};
pub use receive::{ReceiveError, SealedSnapshot, SnapshotFault, receive};
pub use repository::{RepositoryError, SnapshotRepository, StoredSnapshots, UnreadableSnapshot};
pub use retention::{Expiry, Retention};
pub use seal::{SealError, SealingKey, SealingKeyError};
pub use sink::{
    SinkError, SnapshotSink,
    directory::DirectorySink,
    s3::{S3Credentials, S3Settings, S3Sink},
};
