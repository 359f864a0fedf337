//! `keelway cluster inject --from-snapshot`: what a new cluster takes from the one whose snapshot it begins with.

use std::collections::BTreeMap;

use keelway_api::{
    ByteString, Cluster, Documents, Secret,
    cluster::{ClusterSpec, LocalSecretReference, NetworkSpec, VpnSpec},
    documents::{ENCRYPTION_SECRET, SecretName},
    name::{ClusterId, ClusterRef},
    restore::{RestoreSource, RestoreSpec, SOURCE_ENCRYPTION_KEYS, SOURCE_SNAPSHOT_KEY},
};
use keelway_reconciler::snapshot_key;

use super::{cluster_restore, named::missing_document_error};
use crate::exit::CommandFailure;

/// The cluster whose snapshot a new cluster begins with.
pub(super) struct SourceCluster<'a> {
    documents: &'a Documents,
    name: ClusterRef,
    id: &'a ClusterId,
    cluster: &'a Cluster,
}

impl<'a> SourceCluster<'a> {
    /// Finds the source: the one that is named, or the only cluster with a place for snapshots.
    pub(super) fn find(documents: &'a Documents, named: Option<&ClusterRef>) -> Result<Self, CommandFailure> {
        let name = named.map_or_else(|| only_cluster(documents), |name| Ok(name.clone()))?;
        let Some(cluster) = documents.clusters.get(&name) else {
            let there = documents.clusters.keys().map(ToString::to_string).collect();
            return Err(missing_document_error("Cluster", &name.to_string(), &there));
        };
        if cluster.spec.is_fleet() {
            return Err(CommandFailure::usage(
                format!("cluster {name} is a fleet, and a fleet cannot begin with a snapshot of another one"),
                "restore the fleet itself: keelway cluster restore",
            ));
        }
        let Some(id) = cluster.id().filter(|_| cluster.spec.etcd.snapshots.is_some()) else {
            return Err(CommandFailure::usage(
                format!(
                    "cluster {name} has no snapshots: it has not been created yet, or spec.etcd.snapshots is not set"
                ),
                "choose another cluster with --from-cluster",
            ));
        };
        Ok(Self { documents, name, id, cluster })
    }

    /// Sets what the objects in the snapshot rely on, unless the user chose it, and the request.
    pub(super) fn set(&self, new: &mut Cluster, snapshot: String, has_version: bool) {
        let source = &self.cluster.spec;
        let keys_secret = LocalSecretReference { name: keys_name(new) };
        let ClusterRef { namespace, name } = self.name.clone();
        let spec = &mut new.spec;
        if !has_version {
            spec.version.clone_from(&source.version);
        }
        set_network(spec, source);
        spec.etcd.snapshots.clone_from(&source.etcd.snapshots);
        let cluster = Some(RestoreSource { namespace, name, id: self.id.clone(), keys_secret });
        spec.etcd.restore = Some(RestoreSpec { cluster, ..cluster_restore::request(snapshot) });
    }

    /// Returns the Secret with the keys that the new cluster needs.
    pub(super) fn keys(&self, new: &Cluster) -> Result<(SecretName, Secret), CommandFailure> {
        let key = snapshot_key(self.documents, self.id).map_err(CommandFailure::other)?;
        let key = (SOURCE_SNAPSHOT_KEY.to_owned(), ByteString(key.expose_text().as_bytes().to_vec()));
        let encryption = self.documents.secrets.get(&SecretName::of(self.id, ENCRYPTION_SECRET));
        let encryption = encryption.and_then(|secret| secret.data.as_ref()).into_iter().flatten();
        let encryption = encryption.map(|(name, value)| (format!("{SOURCE_ENCRYPTION_KEYS}{name}"), value.clone()));
        let data: BTreeMap<String, ByteString> = std::iter::once(key).chain(encryption).collect();
        let name = SecretName { namespace: new.reference().namespace, name: keys_name(new) };
        let mut secret = Secret { data: Some(data.into_iter().collect()), ..Secret::default() };
        secret.metadata.name = Some(name.name.clone());
        secret.metadata.namespace = Some(name.namespace.clone());
        Ok((name, secret))
    }
}

fn keys_name(new: &Cluster) -> String {
    format!("{}-source-keys", new.reference().name)
}

/// Services keep the addresses that the snapshot has, and pods the names.
fn set_network(spec: &mut ClusterSpec, source: &ClusterSpec) {
    let default = NetworkSpec::default();
    if spec.network.pod_cidrs == default.pod_cidrs {
        spec.network.pod_cidrs.clone_from(&source.network.pod_cidrs);
    }
    if spec.network.service_cidrs == default.service_cidrs {
        spec.network.service_cidrs.clone_from(&source.network.service_cidrs);
    }
    if spec.network.dns_domain == default.dns_domain {
        spec.network.dns_domain.clone_from(&source.network.dns_domain);
    }
    if spec.vpn.cidrs == VpnSpec::default().cidrs {
        spec.vpn.cidrs.clone_from(&source.vpn.cidrs);
    }
}

fn only_cluster(documents: &Documents) -> Result<ClusterRef, CommandFailure> {
    let mut all = documents.clusters.iter().filter(|(_, cluster)| cluster.spec.etcd.snapshots.is_some());
    match (all.next(), all.next()) {
        (Some((name, _)), None) => Ok(name.clone()),
        (None, _) => Err(CommandFailure::usage(
            "no cluster of the documents has a place for snapshots: spec.etcd.snapshots is not set",
            "read the documents of the cluster that the snapshot is of; docs/backup.md has an example without them",
        )),
        (Some(_), Some(_)) => Err(CommandFailure::usage(
            "more than one cluster of the documents has snapshots",
            "name the one that the snapshot is of: --from-cluster NAME, or NAMESPACE/NAME",
        )),
    }
}
