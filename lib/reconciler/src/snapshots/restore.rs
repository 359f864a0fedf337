//! Opens the snapshot that a cluster is restored from.

use keelway_api::{
    ByteString, Cluster, Documents,
    documents::{ENCRYPTION_SECRET, SecretName},
    name::{ClusterId, PodName},
    restore::{RestoreSource, SOURCE_ENCRYPTION_KEYS, SOURCE_SNAPSHOT_KEY},
};
use keelway_base::error_chain::chain_text;
use keelway_pki::{EncryptionKeyring, SecretData};
use keelway_planner::{DataRestoration, ValidatedDocuments, data_restoration};
use keelway_snapshot::{OpenedSnapshot, SealingKey, SnapshotManifest, SnapshotName, SnapshotOwner, SnapshotRepository};

use super::{SnapshotError, key_names, keyring, sink, snapshot_key};
use crate::{Machines, SnapshotParts};

/// Opens and verifies the snapshot that the cluster's spec requests, and checks that the cluster has its encryption keys.
async fn open(documents: &Documents, cluster: &Cluster) -> Result<OpenedSnapshot, SnapshotError> {
    let id = cluster.id().ok_or(SnapshotError::NotMade)?;
    let opened = verify(documents, cluster).await?;
    check_encryption_keys(documents, (cluster, id), &opened.manifest)?;
    Ok(opened)
}

/// Opens and verifies the snapshot that the cluster's spec requests.
pub(super) async fn verify(documents: &Documents, cluster: &Cluster) -> Result<OpenedSnapshot, SnapshotError> {
    let id = cluster.id().ok_or(SnapshotError::NotMade)?;
    let request = cluster.spec.etcd.restore.as_ref().ok_or(SnapshotError::NoRequest)?;
    let name: SnapshotName = request.snapshot.parse()?;
    let (owner, key) = match &request.cluster {
        None => (sink::owner(cluster, id), snapshot_key(documents, id)?),
        Some(source) => (owner_of_source(source), source_key(documents, cluster)?),
    };
    let repository = SnapshotRepository::new(sink::of(documents, cluster)?, owner);
    let opened = repository.open(&name, key).await;
    opened.map_err(|cause| SnapshotError::Open { name, cause: Box::new(cause) })
}

/// Sends the snapshot to the machine of the member that is made from it, unless that machine has the data already.
pub(crate) async fn execute(machines: &dyn Machines, documents: &Documents, pod: &PodName) -> Result<(), String> {
    let restoration = restoration(documents, pod)?;
    let component = documents.components.get(pod).ok_or_else(|| format!("{pod} has no document"))?;
    let machine = documents.hypervisors.get(&component.spec.hypervisor);
    let machine = machine.ok_or_else(|| format!("{} has no document", component.spec.hypervisor))?;
    let cluster = documents.clusters.get(&component.spec.cluster);
    let cluster = cluster.ok_or_else(|| format!("{} has no document", component.spec.cluster))?;
    let opened = open(documents, cluster).await.map_err(|error| chain_text(&error))?;
    let snapshot = SnapshotParts { length: opened.length, parts: opened.into_parts() };
    machines.restore_data(machine, restoration, snapshot).await
}

fn restoration(documents: &Documents, pod: &PodName) -> Result<DataRestoration, String> {
    let world = ValidatedDocuments::of(documents).map_err(|faults| faults.to_string())?;
    data_restoration(documents, &world, pod).map_err(|missing| missing.to_string())
}

fn owner_of_source(source: &RestoreSource) -> SnapshotOwner {
    SnapshotOwner { id: source.id.to_string(), namespace: source.namespace.clone(), name: source.name.clone() }
}

/// The key of another cluster's snapshots.
fn source_key(documents: &Documents, cluster: &Cluster) -> Result<SealingKey, SnapshotError> {
    let secret = cluster.source_keys().ok_or(SnapshotError::NoRequest)?;
    let key = SOURCE_SNAPSHOT_KEY;
    let found = documents.user_secrets.get(&secret).and_then(|found| found.data.as_ref()?.get(key));
    let text = found.and_then(|found| std::str::from_utf8(&found.0).ok());
    let text = text.ok_or_else(|| SnapshotError::SourceKeys { secret: secret.clone(), key })?;
    SealingKey::from_text(text).ok_or(SnapshotError::SourceKeys { secret, key })
}

/// Refuses a snapshot with Secrets that the cluster's API servers could not read. Without it, the restored cluster would serve and lack its Secrets.
pub(super) fn check_encryption_keys(
    documents: &Documents,
    (cluster, id): (&Cluster, &ClusterId),
    manifest: &SnapshotManifest,
) -> Result<(), SnapshotError> {
    let own = SecretName::of(id, ENCRYPTION_SECRET);
    // A new cluster gets its keys from the Secret of the request, before it creates one.
    let known = if documents.secrets.get(&own).is_none() && cluster.source_keys().is_some() {
        source_keyring(documents, cluster)
    } else {
        keyring(documents, &own).ok()
    };
    let names = key_names(known);
    let missing = manifest.versions.encryption_keys.iter().filter(|key| !names.contains(key));
    let missing: Vec<String> = missing.cloned().collect();
    if missing.is_empty() { Ok(()) } else { Err(SnapshotError::EncryptionKeys(missing)) }
}

fn source_keyring(documents: &Documents, cluster: &Cluster) -> Option<EncryptionKeyring> {
    let data = documents.user_secrets.get(&cluster.source_keys()?)?.data.as_ref()?;
    let entry = |(name, value): (&String, &ByteString)| {
        Some((name.strip_prefix(SOURCE_ENCRYPTION_KEYS)?.to_owned(), value.0.clone()))
    };
    let data: SecretData = data.iter().filter_map(entry).collect();
    EncryptionKeyring::from_secret_data(&data).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{observe::tests::placed, snapshots::encryption_keys};

    /// Returns the manifest of a snapshot with Secrets of these keys.
    fn manifest(keys: &[String]) -> SnapshotManifest {
        let manifest = json!({
            "format": 1,
            "name": "20261127T115200Z-5",
            "cluster": { "id": "0123456789abcdef", "namespace": "default", "name": "c1" },
            "versions": { "kubernetes": "1.37.0", "etcd": "3.7.0", "encryptionKeys": keys },
            "database": { "hash": 1, "revision": 5, "entries": 1, "totalSize": 1 },
            "digest": "",
            "sealedSize": 1,
            "sealedDigest": "",
        });
        serde_json::from_value(manifest).unwrap()
    }

    #[test]
    fn a_snapshot_whose_encryption_key_is_missing_is_refused() {
        let documents = placed();
        let cluster = documents.clusters.values().next().unwrap();
        let id = cluster.id().unwrap();
        let own = encryption_keys(&documents, id);
        assert!(!own.is_empty(), "a snapshot records them");
        let check = |keys: &[String]| check_encryption_keys(&documents, (cluster, id), &manifest(keys));
        check(&own).unwrap();
        let refused = check(&[own, vec!["0123456789abcdef".to_owned()]].concat()).unwrap_err().to_string();
        assert!(refused.starts_with("Secrets in the snapshot are encrypted with 0123456789abcdef, which"), "{refused}");
    }
}
