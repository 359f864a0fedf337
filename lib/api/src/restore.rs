//! The request to make the data of a cluster's etcd from a snapshot.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Cluster, cluster::LocalSecretReference, documents::SecretName, name::ClusterId, store_rebuild::RebuildSource,
};

/// A request to make the data of the cluster's etcd from a snapshot. Everything that was written since the snapshot is
/// lost. A request is executed once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RestoreSpec {
    /// The name of the snapshot, as `keelway snapshot list` prints it.
    pub snapshot: String,
    /// When the restore was requested. A request with another time is another request, also for the same snapshot.
    pub requested_at: Time,
    /// The cluster that the snapshot is of. If it is empty, the snapshot is of this cluster. It can be set only while
    /// the cluster has no etcd yet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster: Option<RestoreSource>,
}

/// Another cluster, whose snapshot is the beginning of this one. The snapshot is read from the sink of this cluster,
/// `spec.etcd.snapshots.sink`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RestoreSource {
    /// The namespace of that cluster.
    pub namespace: String,
    /// The name of that cluster.
    pub name: String,
    /// The id of that cluster, from `status.id`.
    pub id: ClusterId,
    /// A Secret in the namespace of this cluster with the keys of that one: `snapshots.agekey`, as `keelway snapshot
    /// key` prints it, and those that encrypt Secrets: `encryption-active.key`, and, if they exist,
    /// `encryption-next.key` and `encryption-previous.key`. It is needed only until this cluster is available.
    pub keys_secret: LocalSecretReference,
}

/// The entry of [`RestoreSource::keys_secret`] with the key of snapshots.
pub const SOURCE_SNAPSHOT_KEY: &str = "snapshots.agekey";
/// What the entries of [`RestoreSource::keys_secret`] begin with that encrypt Secrets.
pub const SOURCE_ENCRYPTION_KEYS: &str = "encryption-";

impl RestoreSpec {
    /// Returns whether this request was executed.
    #[must_use]
    pub fn is_executed_by(&self, source: &RebuildSource) -> bool {
        matches!(source, RebuildSource::Snapshot { requested_at, .. } if *requested_at == self.requested_at)
    }
}

impl Cluster {
    /// Returns the request to restore a snapshot, if it is neither executed nor in progress. While the cluster sleeps, it is not carried out.
    #[must_use]
    pub fn pending_restore(&self) -> Option<&RestoreSpec> {
        self.unexecuted_restore().filter(|_| !self.is_sleeping())
    }

    /// As [`Self::pending_restore`], also while the cluster sleeps.
    #[must_use]
    pub fn unexecuted_restore(&self) -> Option<&RestoreSpec> {
        let request = self.spec.etcd.restore.as_ref().filter(|_| !self.deleted() && !self.spec.paused)?;
        let Some(store) = self.status.as_ref().and_then(|status| status.etcd.as_ref()) else { return Some(request) };
        let is_executed = store.rebuilt.as_ref().is_some_and(|rebuilt| request.is_executed_by(&rebuilt.source));
        (store.rebuild.is_none() && !is_executed).then_some(request)
    }

    /// Returns the Secret with the keys of the cluster whose snapshot this one begins with.
    #[must_use]
    pub fn source_keys(&self) -> Option<SecretName> {
        let source = self.spec.etcd.restore.as_ref()?.cluster.as_ref()?;
        let name = source.keys_secret.name.clone();
        Some(SecretName { namespace: self.reference().namespace, name })
    }
}
