//! Completes documents from a backup.
//!
//! A backup is older than the documents and the machines. A document that is absent may have been deleted since, so absence alone restores nothing:
//! something current has to name what is restored. Without any documents, all of the backup is taken.

use alloc::{collections::BTreeSet, string::String, vec::Vec};

use keelway_api::{
    Documents, Secret,
    documents::SecretName,
    name::{ClusterId, ClusterRef, HypervisorName},
};

use super::{DifferenceKind, Recovery, RecoveryDifference};
use crate::{
    installation::{installation_authority, installation_revoked},
    minted::ONCE,
};

/// Documents that were completed from a backup.
#[derive(Debug, Clone)]
pub struct CompletedDocuments {
    /// The documents.
    pub documents: Documents,
    /// What was taken from the backup, each with the document that names it.
    pub restored: Vec<RecoveryDifference>,
}

/// Takes from a backup the Secrets that the documents name and lack: authorities and keys of clusters (`status.minted`), and Secrets of the
/// installation. If there are no documents, takes all of the backup.
#[must_use]
pub fn complete_from_backup(documents: &Documents, backup: &Documents) -> CompletedDocuments {
    if documents.is_empty() {
        return CompletedDocuments { documents: backup.clone(), restored: Vec::new() };
    }
    let mut completed = documents.clone();
    let mut restored = Vec::new();
    for name in named_secrets(documents) {
        let Some(secret) = backup.secrets.get(&name).filter(|_| !documents.secrets.contains_key(&name)) else {
            continue;
        };
        completed.secrets.insert(name.clone(), secret.clone());
        restored.push(RecoveryDifference::of(&title(&name), DifferenceKind::RestoredSecret));
    }
    CompletedDocuments { documents: completed, restored }
}

/// Takes from a backup the clusters that machines hold and the documents lack, with their components, Secrets, machines and class. Returns nothing if there
/// is no such cluster.
#[must_use]
pub fn complete_clusters(documents: &Documents, backup: &Documents, recovery: &Recovery) -> Option<CompletedDocuments> {
    let held = recovery.differences.iter().filter(|one| matches!(one.kind, DifferenceKind::UnknownCluster { .. }));
    let held: BTreeSet<&str> = held.map(|one| one.subject.as_str()).collect();
    let lost = backup.clusters.iter().filter_map(|(name, cluster)| Some((name, cluster.id()?)));
    let lost = lost.filter(|(name, id)| held.contains(id.as_str()) && !documents.clusters.contains_key(*name));
    let lost: Vec<(&ClusterRef, &ClusterId)> = lost.collect();
    if lost.is_empty() {
        return None;
    }
    let mut completed = documents.clone();
    let mut restored = Vec::new();
    for (name, id) in lost {
        completed = completed.with_cluster(backup, name);
        restore_machines(&mut completed, backup, id);
        restore_user_secrets(&mut completed, backup, name);
        restore_class(&mut completed, backup, name);
        restored.push(RecoveryDifference::of(name, DifferenceKind::RestoredCluster));
    }
    Some(CompletedDocuments { documents: completed, restored })
}

fn named_secrets(documents: &Documents) -> Vec<SecretName> {
    let of_clusters = documents.clusters.values().filter(|cluster| !cluster.deleted()).flat_map(|cluster| {
        let Some(id) = cluster.id() else { return Vec::new() };
        let status = cluster.status.as_ref();
        let is_created = status.is_some_and(|status| status.etcd.is_some());
        let once = ONCE.into_iter().filter(|_| is_created);
        let minted = status.into_iter().flat_map(|status| status.minted.keys().map(String::as_str));
        let names: BTreeSet<&str> = once.chain(minted).collect();
        names.into_iter().map(|secret| SecretName::of(id, secret)).collect::<Vec<_>>()
    });
    let installation = documents.installation().into_iter();
    let of_installation = installation.flat_map(|id| [installation_authority(id), installation_revoked(id)]);
    of_clusters.chain(of_installation).collect()
}

fn restore_machines(completed: &mut Documents, backup: &Documents, id: &ClusterId) {
    let machines: BTreeSet<HypervisorName> =
        backup.components_of(id).map(|(_, component)| component.spec.hypervisor.clone()).collect();
    for name in machines {
        if let Some(machine) = backup.hypervisors.get(&name).filter(|_| !completed.hypervisors.contains_key(&name)) {
            completed.hypervisors.insert(name, machine.clone());
        }
    }
}

/// Takes the Secrets of the cluster's namespace to which it may refer: for images, for the store
/// of its snapshots and for the snapshot that it begins with.
fn restore_user_secrets(completed: &mut Documents, backup: &Documents, cluster: &ClusterRef) {
    let Some(document) = backup.clusters.get(cluster) else { return };
    let pulls = document.spec.images.pull_secrets.iter().map(|secret| secret.name.clone());
    let pulls = pulls.map(|name| SecretName { namespace: cluster.namespace.clone(), name });
    for name in pulls.filter(|name| !completed.secrets.contains_key(name)).collect::<Vec<_>>() {
        if let Some(secret) = backup.secrets.get(&name) {
            completed.secrets.insert(name, secret.clone());
        }
    }
    for name in document.snapshot_credentials().into_iter().chain(document.source_keys()) {
        if let Some(secret) = backup.user_secrets.get(&name).filter(|_| !completed.user_secrets.contains_key(&name)) {
            completed.add_user_secret(name, Secret::clone(secret));
        }
    }
}

fn restore_class(completed: &mut Documents, backup: &Documents, cluster: &ClusterRef) {
    let Some(name) = backup.clusters.get(cluster).and_then(|document| document.spec.class_name.as_ref()) else {
        return;
    };
    if let Some(class) = backup.classes.get(name).filter(|_| !completed.classes.contains_key(name)) {
        completed.classes.insert(name.clone(), class.clone());
    }
}

fn title(name: &SecretName) -> String {
    ["Secret ", &name.namespace, "/", &name.name].concat()
}
