//! Snapshots of the stores of clusters: taken from a member, sealed, stored, and expired.

mod due;
mod member;
pub(crate) mod restore;
mod sink;
pub(crate) mod verified;

use std::time::Duration;

use futures::stream;
use keelway_api::{
    Cluster, Documents, Time,
    documents::{ENCRYPTION_SECRET, SecretName},
    jiff::{SignedDuration, Timestamp},
    name::ClusterId,
    role::Role,
    snapshots::{SNAPSHOT_SECRET, SnapshotRetention, SnapshotStatus, SnapshotsSpec},
};
use keelway_etcd_client::{EtcdError, SnapshotStream};
use keelway_pki::{EncryptionKey, EncryptionKeyring, KeyringError, SecretData};
use keelway_snapshot::{
    Expiry, ReceiveError, RepositoryError, Retention, SealingKey, SealingKeyError, SinkError, SnapshotManifest,
    SnapshotName, SnapshotNameError, SnapshotOpenError, SnapshotRepository, SnapshotVersions, receive,
};
use tokio::time::timeout;

pub use due::take_due_snapshots;
pub use sink::snapshot_repository;

use crate::stores::Members;

/// The time limit for receiving a snapshot. The largest database has 8 GiB.
const WHOLE: Duration = Duration::from_secs(3600);

/// A snapshot could not be taken, listed or deleted.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The cluster does not exist on any machine yet.
    #[error("the cluster has not been created yet")]
    NotMade,
    /// The cluster sleeps.
    #[error("the cluster is asleep, so that no etcd member runs")]
    Asleep,
    /// The cluster has no sink.
    #[error("spec.etcd.snapshots is not set, so that there is no place for snapshots")]
    NoSink,
    /// The Secret of the sink's credentials is missing or incomplete.
    #[error("Secret {}/{} with the credentials of the S3 store has no {key}", secret.namespace, secret.name)]
    Credentials {
        /// The Secret.
        secret: SecretName,
        /// The key.
        key: &'static str,
    },
    /// No key was created yet, or it was lost.
    #[error("Secret {}/{} with the key of snapshots does not exist: run `keelway reconcile`", .0.namespace, .0.name)]
    NoKey(SecretName),
    /// The key cannot be used.
    #[error("the key of snapshots cannot be read")]
    Keyring(#[source] KeyringError),
    /// The key cannot be used.
    #[error(transparent)]
    Key(#[from] SealingKeyError),
    /// No member can send its database.
    #[error("no etcd member can send its database: {0}")]
    NoMember(String),
    /// The member refused to send its database.
    #[error("{member} does not send its database")]
    Refused {
        /// The member.
        member: String,
        /// The cause.
        #[source]
        cause: EtcdError,
    },
    /// The snapshot could not be received.
    #[error("cannot take a snapshot from {member}")]
    Receive {
        /// The member.
        member: String,
        /// The cause.
        #[source]
        cause: Box<ReceiveError<EtcdError>>,
    },
    /// The snapshot was not received in time.
    #[error("{member} did not send its database within {} s", WHOLE.as_secs())]
    TimedOut {
        /// The member.
        member: String,
    },
    /// The spec requests no restore.
    #[error("spec.etcd.restore is not set")]
    NoRequest,
    /// The name of the snapshot is not one.
    #[error(transparent)]
    Name(#[from] SnapshotNameError),
    /// The Secret with the keys of another cluster is missing or incomplete.
    #[error(
        "Secret {}/{} with the keys of the cluster that the snapshot is of has no usable {key}: `keelway snapshot key` prints it",
        secret.namespace, secret.name
    )]
    SourceKeys {
        /// The Secret.
        secret: SecretName,
        /// The key.
        key: &'static str,
    },
    /// The snapshot cannot be used.
    #[error("the snapshot {name} cannot be used")]
    Open {
        /// The snapshot.
        name: SnapshotName,
        /// The cause.
        #[source]
        cause: Box<SnapshotOpenError>,
    },
    /// The documents lack keys that encrypt Secrets in the snapshot.
    #[error(
        "Secrets in the snapshot are encrypted with {}, which the documents do not have: restore the Secret `encryption` of the cluster's own namespace from a backup",
        .0.join(", ")
    )]
    EncryptionKeys(Vec<String>),
    /// The sink failed.
    #[error(transparent)]
    Sink(#[from] SinkError),
    /// The sink failed.
    #[error(transparent)]
    Repository(#[from] RepositoryError),
}

/// A snapshot that was stored.
#[derive(Debug)]
pub struct TakenSnapshot {
    /// Its name.
    pub name: SnapshotName,
    /// Its description.
    pub manifest: SnapshotManifest,
    /// The member that sent it.
    pub member: String,
    /// The snapshots that were deleted, each with the reason.
    pub expired: Vec<(SnapshotName, Expiry)>,
    /// Why old snapshots could not be deleted.
    pub retention_failure: Option<RepositoryError>,
}

impl TakenSnapshot {
    /// Returns what the status of the cluster records.
    #[must_use]
    pub fn status(&self) -> SnapshotStatus {
        SnapshotStatus {
            name: self.name.to_string(),
            time: Time(self.name.at()),
            revision: self.name.revision(),
            size: self.manifest.database.total_size,
        }
    }
}

/// Takes a snapshot of a cluster's store from one of these members, stores it, and then deletes the snapshots that its retention does not keep.
pub(crate) async fn take(
    members: &Members,
    documents: &Documents,
    cluster: &Cluster,
    now: Timestamp,
) -> Result<TakenSnapshot, SnapshotError> {
    let id = cluster.id().ok_or(SnapshotError::NotMade)?;
    if cluster.stops_in_sleep(Role::Etcd) {
        return Err(SnapshotError::Asleep);
    }
    let spec = spec(cluster)?;
    let repository = snapshot_repository(documents, cluster)?;
    let key = snapshot_key(documents, id)?;
    let spool = repository.sink().spool().await?;
    let source = member::choose(members).await?;
    let member = source.name;
    let refused = |cause| SnapshotError::Refused { member: member.clone(), cause };
    let parts = parts(source.client.snapshot().await.map_err(refused)?);
    let received = timeout(WHOLE, receive(parts, key, &spool)).await;
    let received = received.map_err(|_| SnapshotError::TimedOut { member: member.clone() })?;
    let failed = |cause| SnapshotError::Receive { member: member.clone(), cause: Box::new(cause) };
    let sealed = received.map_err(failed)?;
    let encryption_keys = encryption_keys(documents, id);
    let versions = SnapshotVersions { kubernetes: cluster.spec.version.clone(), etcd: source.version, encryption_keys };
    let (name, manifest) = repository.store(&sealed, versions, now).await?;
    let (expired, retention_failure) = expire(&repository, &spec.retention, now).await;
    Ok(TakenSnapshot { name, manifest, member, expired, retention_failure })
}

/// Deletes the snapshots that the retention does not keep. Returns those that were deleted, and what stopped it.
async fn expire(
    repository: &SnapshotRepository,
    retention: &SnapshotRetention,
    now: Timestamp,
) -> (Vec<(SnapshotName, Expiry)>, Option<RepositoryError>) {
    let max_age = retention.max_age.map(|age| SignedDuration::from_secs(age.seconds().try_into().unwrap_or(i64::MAX)));
    let retention = Retention { keep: retention.keep, max_age };
    let names = match repository.names().await {
        Ok(names) => names,
        Err(error) => return (Vec::new(), Some(error)),
    };
    let mut deleted = Vec::new();
    for (name, reason) in retention.expired(&names, now) {
        if let Err(error) = repository.delete(&name).await {
            return (deleted, Some(error));
        }
        deleted.push((name, reason));
    }
    (deleted, None)
}

fn spec(cluster: &Cluster) -> Result<&SnapshotsSpec, SnapshotError> {
    cluster.spec.etcd.snapshots.as_ref().ok_or(SnapshotError::NoSink)
}

/// Returns the key that a cluster's snapshots are sealed to.
pub fn snapshot_key(documents: &Documents, id: &ClusterId) -> Result<SealingKey, SnapshotError> {
    let keyring = keyring(documents, &SecretName::of(id, SNAPSHOT_SECRET))?;
    Ok(SealingKey::from_bytes(keyring.active.expose())?)
}

fn keyring(documents: &Documents, name: &SecretName) -> Result<EncryptionKeyring, SnapshotError> {
    let secret = documents.secrets.get(name).ok_or_else(|| SnapshotError::NoKey(name.clone()))?;
    let data: SecretData = secret.data.iter().flatten().map(|(key, value)| (key.clone(), value.0.clone())).collect();
    EncryptionKeyring::from_secret_data(&data).map_err(SnapshotError::Keyring)
}

/// Returns the names of the keys that encrypt the cluster's Secrets at rest.
fn encryption_keys(documents: &Documents, id: &ClusterId) -> Vec<String> {
    key_names(keyring(documents, &SecretName::of(id, ENCRYPTION_SECRET)).ok())
}

fn key_names(keyring: Option<EncryptionKeyring>) -> Vec<String> {
    keyring.map(|keyring| keyring.keys().into_iter().map(EncryptionKey::name).collect()).unwrap_or_default()
}

fn parts(stream: SnapshotStream) -> impl futures::Stream<Item = Result<Vec<u8>, EtcdError>> {
    stream::try_unfold(stream, |mut stream: SnapshotStream| async move {
        let part = stream.next_part().await?;
        Ok::<_, EtcdError>(part.map(|part| (part.blob, stream)))
    })
}
