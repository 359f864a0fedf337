//! Decides which changes of documents take effect. Without side effects.
//!
//! All stores name documents by the paths that they have in a directory.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use keelway_api::{
    Cluster, Documents, ObjectMeta, ReadOptions, Secret, Shared, UnknownFields,
    document::{Document, DocumentName, DocumentRef},
    documents::is_ours,
    fault::{Fault, Faults},
    keep_vpn_range,
    name::{ClusterId, ClusterRef},
    registry::is_pull_secret,
};
use keelway_reconciler::secret_faults;

use crate::document_paths::{name_of, path_of};

/// Files that changed, by path within the store: their bytes, or `None` for a file that does not exist.
pub(crate) type ChangedFiles = BTreeMap<PathBuf, Option<Vec<u8>>>;

/// The documents that take effect, and what was refused.
pub(crate) struct AcceptedDocuments {
    /// The documents in effect. `None` if a Hypervisor that was never valid may name the installation, which no other document names.
    pub(crate) documents: Option<Documents>,
    /// Files that have no effect, each with its faults.
    pub(crate) refused: BTreeMap<PathBuf, Faults>,
    /// Documents whose files must be written again.
    pub(crate) rewrite: BTreeSet<DocumentName>,
}

/// The program that protects status and other fields that users must not write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StatusOwner {
    /// This program. A user who writes a file writes all of it.
    Reader,
    /// The API server, which has separate permissions for status.
    Server,
}

/// Applies the changes that are valid.
pub(crate) fn accept(before: Option<&Documents>, found: &ChangedFiles, keeper: StatusOwner) -> AcceptedDocuments {
    let mut taking = DocumentAcceptance {
        before,
        keeper,
        found,
        next: before.cloned().unwrap_or_default(),
        taken: BTreeMap::new(),
        removed: BTreeSet::new(),
        refused: BTreeMap::new(),
        put_back: BTreeSet::new(),
    };
    for (path, bytes) in found {
        match bytes {
            Some(bytes) => taking.take(path, bytes),
            None => taking.handle_missing(path),
        }
    }
    taking.leave_out_unclassed();
    taking.settle();
    while taking.leave_out_clusters() {
        taking.settle();
    }
    taking.end()
}

struct DocumentAcceptance<'a> {
    before: Option<&'a Documents>,
    keeper: StatusOwner,
    found: &'a ChangedFiles,
    next: Documents,
    /// Documents that were accepted, each with its file.
    taken: BTreeMap<DocumentName, PathBuf>,
    removed: BTreeSet<DocumentName>,
    refused: BTreeMap<PathBuf, Faults>,
    put_back: BTreeSet<DocumentName>,
}

impl DocumentAcceptance<'_> {
    fn take(&mut self, path: &Path, bytes: &[u8]) {
        let file = path.display().to_string();
        let unknown = match self.keeper {
            StatusOwner::Reader => UnknownFields::OfFormat,
            StatusOwner::Server => UnknownFields::Kept,
        };
        let asked = ReadOptions { keys: Some(&secret_faults), unknown, ..ReadOptions::default() };
        let (name, document) = match Document::read(bytes, &file, asked) {
            Ok(read) => read,
            Err(faults) => return self.refuse(path, faults.0),
        };
        let added = self.fields_added(&name, document.as_ref());
        if !added.is_empty() {
            let refused = Document::read(bytes, &file, ReadOptions { unknown: UnknownFields::Refused, ..asked });
            let faults = refused.err().map(|faults| faults.0).unwrap_or_default();
            return self.refuse(path, of_fields(faults, &added));
        }
        let expected = path_of(&name);
        if expected != path {
            let line = Document::line_of(bytes, "metadata.name");
            let fault = Fault::of(
                "metadata.name",
                format!("the file contains {name}"),
                format!("move the document to {}", expected.display()),
            );
            return self.refuse(path, vec![Fault { document: file, line, ..fault }]);
        }
        let merged = match self.before.and_then(|before| before.get(&name)) {
            Some(before) if self.keeper == StatusOwner::Reader => with_status_of(document.clone(), before),
            Some(_) | None => document.clone(),
        };
        if merged != document {
            self.put_back.insert(name.clone());
        }
        self.next.put(&name, merged);
        self.taken.insert(name, path.to_owned());
    }

    /// Returns unknown fields that the document did not have before. Only a user can have added them: no other program writes while this one has the
    /// store open.
    fn fields_added(&self, name: &DocumentName, document: DocumentRef<'_>) -> Vec<String> {
        let before = self.before.filter(|_| self.keeper == StatusOwner::Reader).and_then(|before| before.get(name));
        let Some(before) = before.filter(|_| document.has_newer_fields()) else { return Vec::new() };
        let known = before.newer_fields();
        document.newer_fields().into_iter().filter(|field| !known.contains(field)).collect()
    }

    /// Handles a missing file. If the document is Keelway's own or runs on machines, its file is written again.
    fn handle_missing(&mut self, path: &Path) {
        let Some(name) = name_of(path) else { return };
        match self.before.and_then(|before| before.get(&name)) {
            Some(DocumentRef::Secret(secret)) if !is_owned_by_manager(secret) => self.next.remove(&name),
            Some(DocumentRef::Component(_) | DocumentRef::Secret(_)) => drop(self.put_back.insert(name)),
            Some(DocumentRef::Cluster(cluster)) if cluster.id().is_some() => drop(self.put_back.insert(name)),
            // Running components do not depend on a class.
            Some(DocumentRef::ClusterClass(_)) => self.next.remove(&name),
            Some(DocumentRef::Cluster(_) | DocumentRef::Hypervisor(_)) => {
                self.next.remove(&name);
                self.removed.insert(name);
            }
            None => {}
        }
    }

    fn refuse(&mut self, path: &Path, faults: Vec<Fault>) {
        self.refused.entry(path.to_owned()).or_insert_with(|| Faults(Vec::new())).0.extend(faults);
    }

    /// Reverts documents that conflict with others, until no conflict is left.
    fn settle(&mut self) {
        loop {
            let mut faults = if self.only_asks() { Vec::new() } else { self.next.faults_between() };
            faults.extend(self.next.faults_of_classes(|name, cluster| self.is_asked(name, cluster)));
            faults.extend(self.next.faults_of_changes(|name| self.is_changed(name)));
            if faults.is_empty() {
                return;
            }
            let (own, others): (Vec<_>, Vec<_>) =
                faults.into_iter().partition(|(name, _)| self.taken.contains_key(name));
            let (blamed, faults): (BTreeSet<DocumentName>, Vec<_>) = if own.is_empty() {
                let all = self.taken.keys().chain(&self.removed).cloned();
                (all.collect(), others)
            } else {
                (own.iter().map(|(name, _)| name.clone()).collect(), own)
            };
            if blamed.is_empty() {
                return;
            }
            for (name, fault) in faults {
                let path = self.taken.get(&name).cloned().unwrap_or_else(|| path_of(&name));
                let bytes = self.found.get(&path).and_then(Option::as_deref).unwrap_or_default();
                let line = Document::line_of(bytes, &fault.field);
                self.refuse(&path, vec![Fault { document: path.display().to_string(), line, ..fault }]);
            }
            for name in &blamed {
                self.revert(name);
            }
        }
    }

    /// Leaves out clusters that were not known before, and of which a document is refused. Each is left out as a whole, because its other documents
    /// may be incomplete without that one. Machines keep components that no document names. Returns whether a document was left out.
    fn leave_out_clusters(&mut self) -> bool {
        let has = |id: &ClusterId| {
            self.before.is_some_and(|before| before.clusters.values().any(|cluster| cluster.id() == Some(id)))
        };
        let mut spoilt: BTreeMap<ClusterId, Fault> = BTreeMap::new();
        for (path, faults) in &self.refused {
            let id = name_of(path).and_then(|name| self.cluster_of(&name)).filter(|id| !has(id));
            if let Some((id, fault)) = id.zip(faults.0.first()) {
                spoilt.entry(id).or_insert_with(|| fault.clone());
            }
        }
        let is_left_out = |name: &&DocumentName| self.cluster_of(name).is_some_and(|id| spoilt.contains_key(&id));
        let left: Vec<DocumentName> = self.taken.keys().filter(is_left_out).cloned().collect();
        for name in &left {
            let Some(cause) = self.cluster_of(name).and_then(|id| spoilt.get(&id)) else { continue };
            let path = self.taken.get(name).cloned().unwrap_or_else(|| path_of(name));
            let problem = format!(
                "its cluster is not reconciled, because {} is invalid ({}: {})",
                cause.document, cause.field, cause.problem
            );
            let fault =
                Fault { document: path.display().to_string(), ..Fault::of("", problem, "correct that document") };
            self.refuse(&path, vec![fault]);
        }
        for name in &left {
            self.revert(name);
        }
        !left.is_empty()
    }

    /// Returns the cluster that a document belongs to.
    fn cluster_of(&self, name: &DocumentName) -> Option<ClusterId> {
        match name {
            DocumentName::Component(pod) => Some(pod.cluster.clone()),
            DocumentName::Secret(secret) => ClusterId::of_namespace(&secret.namespace),
            DocumentName::Cluster(name) => self.next.clusters.get(name)?.id().cloned(),
            DocumentName::Hypervisor(_) | DocumentName::ClusterClass(_) => None,
        }
    }

    /// Refuses Clusters without an id and without a class name while a new class is refused, because that class may be the default.
    fn leave_out_unclassed(&mut self) {
        let class = |path: &PathBuf| match name_of(path) {
            Some(DocumentName::ClusterClass(name)) if !self.next.classes.contains_key(&name) => Some(name),
            _ => None,
        };
        let Some(class) = self.refused.keys().find_map(class) else { return };
        let is_unclassed = |name: &DocumentName| {
            let DocumentName::Cluster(name) = name else { return false };
            let cluster = self.next.clusters.get(name);
            cluster.is_some_and(|cluster| cluster.id().is_none() && cluster.spec.class_name.is_none())
        };
        let waiting = self.taken.iter().filter(|(name, _)| is_unclassed(name));
        let waiting: Vec<_> = waiting.map(|(name, path)| (name.clone(), path.clone())).collect();
        for (name, path) in waiting {
            let problem = format!("ClusterClass {class} is invalid, and may be the default class");
            let fault = Fault::of("spec.className", problem, "correct that ClusterClass, or set another class here");
            self.refuse(&path, vec![Fault { document: path.display().to_string(), ..fault }]);
            self.revert(&name);
        }
    }

    /// Returns whether the refused document is a Hypervisor without which the installation is unknown, so that machines would be misjudged. Any
    /// other refused document affects only its own cluster or machine.
    fn is_missed(&self, path: &Path) -> bool {
        let is_machine = matches!(name_of(path), Some(DocumentName::Hypervisor(_)));
        is_machine && self.next.installation().is_none() && self.has_run(path)
    }

    /// Returns whether a refused Hypervisor contains the words of a status that a driver wrote. It need not be readable otherwise.
    fn has_run(&self, path: &Path) -> bool {
        let bytes = self.found.get(path).and_then(Option::as_deref).unwrap_or_default();
        [b"installation".as_slice(), b"issued"].iter().any(|word| bytes.windows(word.len()).any(|part| part == *word))
    }

    /// Returns whether only specs of Clusters changed. No other document depends on these, so the documents need not be checked against each other.
    fn only_asks(&self) -> bool {
        let Some(before) = self.before else { return false };
        self.next.names_changed_since(before).iter().all(|name| {
            let DocumentName::Cluster(name) = name else { return false };
            match (self.next.clusters.get(name), before.clusters.get(name)) {
                (Some(now), Some(before)) => now.status == before.status && now.deleted() == before.deleted(),
                (Some(now), None) => now.status.is_none(),
                (None, _) => false,
            }
        })
    }

    /// Returns whether a user changed a Cluster. Accepted Clusters are not checked against classes that changed later.
    fn is_asked(&self, name: &ClusterRef, cluster: &Shared<Cluster>) -> bool {
        match self.before.and_then(|before| before.clusters.get(name)) {
            Some(before) => !before.ptr_eq(cluster) && before.spec != cluster.spec,
            None => cluster.id().is_none() || is_changed_since(cluster),
        }
    }

    /// Returns whether the spec of an accepted document changed. A change from before the start is not refused: the condition of the cluster reports
    /// it, and no other cluster is affected.
    fn is_changed(&self, name: &DocumentName) -> bool {
        let before = self.before.filter(|_| self.taken.contains_key(name));
        match (before.and_then(|before| before.get(name)), self.next.get(name)) {
            (Some(DocumentRef::Cluster(before)), Some(DocumentRef::Cluster(now))) => before.spec != now.spec,
            (Some(DocumentRef::Hypervisor(before)), Some(DocumentRef::Hypervisor(now))) => before.spec != now.spec,
            _ => false,
        }
    }

    fn revert(&mut self, name: &DocumentName) {
        self.taken.remove(name);
        self.put_back.remove(name);
        if self.removed.remove(name) {
            self.put_back.insert(name.clone());
        }
        match self.before.and_then(|before| before.get(name)) {
            Some(before) => self.next.put(name, before.owned()),
            None => self.next.remove(name),
        }
    }

    fn end(self) -> AcceptedDocuments {
        let sound = self.before.is_some() || !self.refused.keys().any(|path| self.is_missed(path));
        AcceptedDocuments { documents: sound.then_some(self.next), refused: self.refused, rewrite: self.put_back }
    }
}

/// Returns the faults of these fields, or all faults if none matches, as for a field in a list.
fn of_fields(faults: Vec<Fault>, fields: &[String]) -> Vec<Fault> {
    let found: Vec<Fault> = faults.iter().filter(|fault| fields.contains(&fault.field)).cloned().collect();
    if found.is_empty() { faults } else { found }
}

/// Returns whether a Cluster that was not known before changed after its last pass.
fn is_changed_since(cluster: &Cluster) -> bool {
    let observed = cluster.status.as_ref().and_then(|status| status.observed_generation);
    observed != cluster.metadata.generation
}

/// Returns whether only the manager writes this Secret.
fn is_owned_by_manager(secret: &Secret) -> bool {
    is_ours(secret) && !is_pull_secret(secret)
}

/// Returns a document that a user wrote, with the protected fields of the document before.
fn with_status_of(document: Document, before: DocumentRef<'_>) -> Document {
    match (document, before) {
        (Document::Cluster(mut new), DocumentRef::Cluster(before)) => {
            new.status.clone_from(&before.status);
            keep_vpn_range(&mut new.spec, &before.spec);
            let metadata = std::mem::take(&mut new.metadata);
            new.metadata = of_servers(metadata, &before.metadata, new.spec != before.spec);
            Document::Cluster(new)
        }
        (Document::Hypervisor(mut new), DocumentRef::Hypervisor(before)) => {
            new.status.clone_from(&before.status);
            let metadata = std::mem::take(&mut new.metadata);
            new.metadata = of_servers(metadata, &before.metadata, new.spec != before.spec);
            Document::Hypervisor(new)
        }
        (document, _) => document,
    }
}

/// Returns metadata with the fields that an API server protects (Kubernetes API conventions, "Metadata"). A deletion cannot be revoked.
fn of_servers(new: ObjectMeta, before: &ObjectMeta, changed: bool) -> ObjectMeta {
    let generation = before.generation.map(|generation| generation + i64::from(changed));
    ObjectMeta {
        creation_timestamp: before.creation_timestamp.clone(),
        deletion_timestamp: before.deletion_timestamp.clone().or(new.deletion_timestamp),
        generation: generation.or(changed.then_some(2)),
        namespace: new.namespace.or_else(|| before.namespace.clone()),
        uid: before.uid.clone(),
        ..new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a Cluster as an API server stores it.
    fn cluster(name: &str, id: &str, paused: bool) -> Vec<u8> {
        let cluster = serde_json::json!({
            "apiVersion": "keelway.dev/v1alpha1",
            "kind": "Cluster",
            "metadata": { "name": name, "namespace": "team-a" },
            "spec": { "version": "1.37.0", "paused": paused },
            "status": { "id": id },
        });
        serde_json::to_vec(&cluster).unwrap()
    }

    fn secret(id: &str, note: &str) -> (PathBuf, Option<Vec<u8>>) {
        let secret = serde_json::json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": { "name": "notes", "namespace": format!("keelway-{id}"), "labels": { "keelway.dev/cluster-id": id } },
            "data": { "note": note },
        });
        (PathBuf::from(format!("secrets/keelway-{id}/notes.yaml")), Some(serde_json::to_vec(&secret).unwrap()))
    }

    #[test]
    fn a_cluster_with_an_invalid_document_is_left_out_until_it_is_corrected() {
        let (one, other) = ("aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb");
        let path = |name: &str| PathBuf::from(format!("clusters/team-a/{name}.yaml"));
        let clusters = [("c1", one), ("c2", other)].map(|(name, id)| (path(name), Some(cluster(name, id, false))));
        let found: ChangedFiles = clusters.into_iter().chain([secret(one, ""), secret(other, "eA==")]).collect();
        let take = |before: Option<&Documents>, found: &ChangedFiles| accept(before, found, StatusOwner::Reader);
        let first = take(None, &found);
        let refused: Vec<&PathBuf> = first.refused.keys().collect();
        assert_eq!(refused, [&path("c1"), &secret(one, "").0]);
        let error = first.refused[&path("c1")].to_string();
        assert!(error.contains("its cluster is not reconciled") && error.contains("data.note"), "{error}");
        let world = first.documents.unwrap();
        assert_eq!((world.clusters.len(), world.secrets.len()), (1, 1));

        // A refused document is checked again when another one changes.
        let again = found.into_iter().filter(|(path, _)| first.refused.contains_key(path)).collect();
        assert_eq!(take(Some(&world), &again).documents.unwrap(), world);
        let (path, mended) = secret(one, "eA==");
        let again: ChangedFiles = again.into_iter().chain([(path, mended)]).collect();
        let after = take(Some(&world), &again);
        assert_eq!(after.refused, BTreeMap::new());
        assert_eq!(after.documents.unwrap().clusters.len(), 2);
    }

    #[test]
    fn an_invalid_class_or_installation_secret_blocks_no_running_cluster() {
        let unborn = serde_json::json!({
            "apiVersion": "keelway.dev/v1alpha1",
            "kind": "Cluster",
            "metadata": { "name": "c2", "namespace": "team-a" },
            "spec": { "version": "1.37.0" },
        });
        let class = serde_json::json!({
            "apiVersion": "keelway.dev/v1alpha1",
            "kind": "ClusterClass",
            "metadata": { "name": "small" },
            "spec": { "limits": { "etcdReplicas": "many" } },
        });
        let id = "keelway-installation-0123456789abcdef";
        let authority = serde_json::json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": "infrastructure-ca",
                "namespace": id,
                "labels": { "keelway.dev/installation-id": "0123456789abcdef" },
            },
            "data": { "active.crt": "" },
        });
        let path = |name: &str| PathBuf::from(format!("clusters/team-a/{name}.yaml"));
        let (class_path, authority_path) =
            (PathBuf::from("clusterclasses/small.yaml"), PathBuf::from(format!("secrets/{id}/infrastructure-ca.yaml")));
        let bytes = |value: &serde_json::Value| Some(serde_json::to_vec(value).unwrap());
        let found: ChangedFiles = [
            (path("c1"), Some(cluster("c1", "aaaaaaaaaaaaaaaa", false))),
            (path("c2"), bytes(&unborn)),
            (class_path.clone(), bytes(&class)),
            (authority_path.clone(), bytes(&authority)),
        ]
        .into();
        let first = accept(None, &found, StatusOwner::Reader);
        let refused: Vec<&PathBuf> = first.refused.keys().collect();
        assert_eq!(refused, [&class_path, &path("c2"), &authority_path]);
        assert!(first.refused[&path("c2")].to_string().contains("ClusterClass small"), "{:?}", first.refused);
        assert_eq!(first.documents.unwrap().clusters.len(), 1);
    }

    /// Returns the same Cluster with the ranges that were recorded at its creation: the defaults.
    fn born(name: &str, id: &str, domain: &str) -> Vec<u8> {
        let mut cluster: serde_json::Value = serde_json::from_slice(&cluster(name, id, false)).unwrap();
        cluster["spec"]["network"] = serde_json::json!({ "dnsDomain": domain });
        cluster["status"]["birth"] = serde_json::json!({
            "network": {},
            "vpn": { "cidrs": ["100.80.0.0/16"] },
            "serviceAccountIssuer": "https://kubernetes.default.svc.cluster.local",
        });
        serde_json::to_vec(&cluster).unwrap()
    }

    #[test]
    fn an_immutable_field_is_not_replaced_and_blocks_no_other_cluster() {
        let (one, other) = ("aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb");
        let first = accepted(None, &[("c1", born("c1", one, "cluster.local")), ("c2", cluster("c2", other, false))]);
        let world = first.documents.unwrap();
        let files = [("c1", born("c1", one, "other.local")), ("c2", cluster("c2", other, true))];
        let changed = accepted(Some(&world), &files);
        let refused: Vec<String> = changed.refused.values().map(ToString::to_string).collect();
        assert!(refused.len() == 1 && refused[0].contains("spec.network.dnsDomain"), "{refused:?}");
        let documents = changed.documents.unwrap();
        let domains = documents.clusters.values().map(|cluster| cluster.spec.network.dns_domain.as_str());
        assert_eq!(domains.collect::<Vec<_>>(), ["cluster.local"; 2]);
        assert!(documents.clusters.values().any(|cluster| cluster.spec.paused), "the other one goes on");

        // At a start this refuses nothing: a condition of the cluster reports it.
        let started = accepted(None, &files);
        assert_eq!(started.refused, BTreeMap::new());
        assert!(started.documents.is_some());
    }

    fn accepted(before: Option<&Documents>, files: &[(&str, Vec<u8>)]) -> AcceptedDocuments {
        let path = |name: &str| PathBuf::from(format!("clusters/team-a/{name}.yaml"));
        let found = files.iter().map(|(name, bytes)| (path(name), Some(bytes.clone()))).collect();
        accept(before, &found, StatusOwner::Server)
    }

    #[test]
    fn a_changed_spec_is_accepted_and_a_duplicate_id_is_refused() {
        let (one, other) = ("aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb");
        let first = accepted(None, &[("c1", cluster("c1", one, false)), ("c2", cluster("c2", other, false))]);
        assert_eq!(first.refused, BTreeMap::new());
        let world = first.documents.unwrap();

        let asked = accepted(Some(&world), &[("c2", cluster("c2", other, true))]);
        assert_eq!(asked.refused, BTreeMap::new());
        assert!(asked.documents.unwrap().clusters.values().any(|cluster| cluster.spec.paused));

        let stolen = accepted(Some(&world), &[("c2", cluster("c2", one, true))]);
        assert_eq!(stolen.refused.len(), 1);
        assert_eq!(stolen.documents, Some(world));
    }
}
