//! What is minted once in a cluster's life: its authorities and keys. A second authority would cut off for good whatever trusts the first.

use alloc::{
    collections::BTreeMap,
    format,
    string::{String, ToString},
    vec::Vec,
};

use keelway_api::{
    Cluster, Documents, Secret,
    documents::SecretName,
    machine::sha256_hex,
    name::{ClusterId, ClusterRef},
    rotation::{KeyRotation, RotatedKey, RotationPhase},
};

use crate::secret_names::{
    ENCRYPTION, ETCD, FRONT_PROXY, INFRASTRUCTURE, KUBERNETES, SERVICE_ACCOUNT, SNAPSHOTS, SecretContents, holds,
    secret_of,
};

/// The Secrets of every cluster that are minted once.
pub(crate) const ONCE: [&str; 6] = [KUBERNETES, ETCD, FRONT_PROXY, INFRASTRUCTURE, SERVICE_ACCOUNT, ENCRYPTION];

/// The Secrets of this cluster that are minted once.
fn once(cluster: &Cluster) -> impl Iterator<Item = &'static str> + use<> {
    ONCE.into_iter().chain(cluster.spec.etcd.snapshots.as_ref().map(|_| SNAPSHOTS))
}

/// Why a Secret that was minted for a cluster cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnusableReason {
    /// The Secret does not exist, or holds no key.
    #[error("is missing")]
    Missing,
    /// The Secret holds another key than was minted.
    #[error("holds a different key than the one issued for this cluster")]
    Another,
}

/// The Secrets of a cluster that cannot be used, by name.
pub(crate) type UnusableSecrets = BTreeMap<&'static str, UnusableReason>;

/// The Secrets of a cluster that were minted once and are missing, or hold another key now. A Secret that never existed is left out.
pub(crate) fn unusable(documents: &Documents, id: &ClusterId, cluster: &Cluster) -> UnusableSecrets {
    if cluster.deleted() {
        return UnusableSecrets::new();
    }
    let known = facts(cluster);
    // Earlier releases recorded no digests. They minted all Secrets before they recorded the creation of a store.
    let had_all = known.is_none() && is_living(cluster);
    let judged = once(cluster).filter_map(|name| {
        let known = known.and_then(|known| known.get(name));
        let found = found(documents, id, name);
        match (known, found) {
            (Some(_), None) => Some((name, UnusableReason::Missing)),
            (None, None) if had_all && name != SNAPSHOTS => Some((name, UnusableReason::Missing)),
            (Some(known), Some(found)) if *known != found && !is_activated(cluster, name, &found) => {
                Some((name, UnusableReason::Another))
            }
            (Some(_) | None, _) => None,
        }
    });
    judged.collect()
}

/// Whether the Secret was saved with its next key in use, and its cluster was not saved after it.
fn is_activated(cluster: &Cluster, secret: &str, found: &str) -> bool {
    let rotation = RotatedKey::ALL.into_iter().find(|key| secret_of(*key) == secret);
    let rotation = rotation.and_then(|key| cluster.running_rotation(key));
    rotation.is_some_and(|rotation| is_next(rotation, found))
}

/// Whether a digest is the one of the key that is announced.
pub(crate) fn is_next(rotation: &KeyRotation, found: &str) -> bool {
    rotation.next.as_deref() == Some(found)
}

/// Records the digest of each key that is announced. The caller saves it together with the Secrets.
fn note_next(documents: &mut Documents) {
    let mut announced: Vec<(ClusterRef, RotatedKey, String)> = Vec::new();
    for (name, cluster) in &documents.clusters {
        let Some(id) = cluster.id().filter(|_| !cluster.deleted() && !cluster.spec.paused) else { continue };
        for key in RotatedKey::ALL {
            let rotation = cluster.running_rotation(key).filter(|rotation| rotation.phase == RotationPhase::Announcing);
            let secret = secret_of(key);
            let value = documents
                .secrets
                .get(&SecretName::of(id, secret))
                .and_then(|found| fingerprint_of_generation(secret, found, "next"));
            let new = rotation.zip(value).filter(|(rotation, found)| !is_next(rotation, found));
            announced.extend(new.map(|(_, found)| (name.clone(), key, found)));
        }
    }
    for (name, key, found) in announced {
        let Some(cluster) = documents.clusters.get_mut(&name) else { continue };
        let rotations = cluster.status.get_or_insert_default().rotations.get_or_insert_default();
        if let Some(rotation) = rotations.rotation_mut(key) {
            rotation.next = Some(found);
        }
    }
}

/// Records what was minted for each cluster. The caller saves it together with the Secrets.
pub(crate) fn note_minted(documents: &mut Documents) {
    note_next(documents);
    let mut minted: Vec<(ClusterRef, BTreeMap<String, String>)> = Vec::new();
    for (name, cluster) in &documents.clusters {
        let Some(id) = cluster.id().filter(|_| !cluster.deleted() && !cluster.spec.paused) else { continue };
        let is_known = |secret: &str| facts(cluster).is_some_and(|known| known.contains_key(secret));
        let mut unknown = once(cluster).filter(|secret| !is_known(secret)).peekable();
        // If a Secret cannot be used, the unrecorded ones may not be the cluster's own either.
        if unknown.peek().is_none() || !unusable(documents, id, cluster).is_empty() {
            continue;
        }
        let found = unknown.filter_map(|secret| Some((secret.to_string(), found(documents, id, secret)?)));
        minted.push((name.clone(), found.collect()));
    }
    for (name, found) in minted.into_iter().filter(|(_, found)| !found.is_empty()) {
        if let Some(cluster) = documents.clusters.get_mut(&name) {
            cluster.status.get_or_insert_default().minted.extend(found);
        }
    }
}

fn facts(cluster: &Cluster) -> Option<&BTreeMap<String, String>> {
    cluster.status.as_ref().map(|status| &status.minted).filter(|minted| !minted.is_empty())
}

/// Whether the first members of its store are recorded, which is saved after its keys.
fn is_living(cluster: &Cluster) -> bool {
    cluster.is_initialized() || cluster.status.as_ref().is_some_and(|status| status.etcd.is_some())
}

/// The digest of a Secret of the documents.
pub(crate) fn found(documents: &Documents, id: &ClusterId, secret: &str) -> Option<String> {
    documents.secrets.get(&SecretName::of(id, secret)).and_then(|found| fingerprint(secret, found))
}

/// A digest that identifies the key of a Secret and reveals nothing of the key.
pub(crate) fn fingerprint(name: &str, secret: &Secret) -> Option<String> {
    fingerprint_of_generation(name, secret, "active")
}

fn fingerprint_of_generation(name: &str, secret: &Secret, generation: &str) -> Option<String> {
    let half = match holds(name) {
        SecretContents::Authority => "crt",
        SecretContents::ServiceAccountKey | SecretContents::EncryptionKey => "key",
        SecretContents::Certificates => return None,
    };
    let value = secret.data.as_ref()?.get(format!("{generation}.{half}").as_str())?;
    Some(fingerprint_of(name, &value.0))
}

/// The same digest, from the certificate of an authority or from a key.
pub(crate) fn fingerprint_of(name: &str, value: &[u8]) -> String {
    sha256_hex(&[name.as_bytes(), &[0], value].concat())
}
