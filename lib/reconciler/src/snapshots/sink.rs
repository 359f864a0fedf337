//! The sink of a cluster's snapshots, from its document.

use std::sync::Arc;

use keelway_api::{Cluster, Documents, Secret, name::ClusterId, snapshots::SnapshotBucket};
use keelway_snapshot::{
    DirectorySink, S3Credentials, S3Settings, S3Sink, SnapshotOwner, SnapshotRepository, SnapshotSink,
};

use super::{SnapshotError, spec};

/// Returns the snapshots of a cluster. Sends no request.
pub fn snapshot_repository(documents: &Documents, cluster: &Cluster) -> Result<SnapshotRepository, SnapshotError> {
    let id = cluster.id().ok_or(SnapshotError::NotMade)?;
    Ok(SnapshotRepository::new(of(documents, cluster)?, owner(cluster, id)))
}

/// Returns the owner of the snapshots that are taken of a cluster.
pub(super) fn owner(cluster: &Cluster, id: &ClusterId) -> SnapshotOwner {
    let reference = cluster.reference();
    SnapshotOwner { id: id.to_string(), namespace: reference.namespace, name: reference.name }
}

/// Returns the sink of a cluster. Sends no request.
pub(super) fn of(documents: &Documents, cluster: &Cluster) -> Result<Arc<dyn SnapshotSink>, SnapshotError> {
    let sink = &spec(cluster)?.sink;
    Ok(match (&sink.directory, &sink.s3) {
        (Some(directory), _) => Arc::new(DirectorySink::new(directory.path())),
        (None, Some(bucket)) => Arc::new(s3(documents, cluster, bucket)?),
        (None, None) => return Err(SnapshotError::NoSink),
    })
}

fn s3(documents: &Documents, cluster: &Cluster, bucket: &SnapshotBucket) -> Result<S3Sink, SnapshotError> {
    let settings = S3Settings {
        endpoint: bucket.endpoint.clone(),
        bucket: bucket.bucket.clone(),
        prefix: bucket.prefix.clone(),
        region: bucket.region.clone(),
    };
    let name = cluster.snapshot_credentials().ok_or(SnapshotError::NoSink)?;
    let secret = documents.user_secrets.get(&name);
    let text = |key: &'static str| {
        let value =
            secret.and_then(|secret| value(secret, key)).and_then(|value| String::from_utf8(value.to_vec()).ok());
        value.ok_or_else(|| SnapshotError::Credentials { secret: name.clone(), key })
    };
    let credentials = S3Credentials {
        access_key_id: text("accessKeyID")?,
        secret_access_key: text("secretAccessKey")?,
        authorities: secret.and_then(|secret| value(secret, "ca.crt")).map(<[u8]>::to_vec),
    };
    Ok(S3Sink::new(settings, credentials, std::env::temp_dir())?)
}

fn value<'a>(secret: &'a Secret, key: &str) -> Option<&'a [u8]> {
    secret.data.as_ref()?.get(key).map(|value| value.0.as_slice())
}
