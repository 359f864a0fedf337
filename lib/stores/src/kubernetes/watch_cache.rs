//! The state of a store in a cluster: the objects as they were last observed or written, and the documents in effect.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
};

use keelway_api::{
    Documents,
    document::{Document, DocumentName},
    fault::{Fault, Faults},
};
use tokio::time::Instant;

use super::object::ObjectRevision;
use crate::{
    accept::{AcceptedDocuments, ChangedFiles, StatusOwner, accept},
    document_paths::{name_of, path_of},
};

/// The watch that reports an object. One watch reports many objects.
pub(super) type WatchSource = Arc<str>;

/// The state of a store.
#[derive(Default)]
pub(super) struct WatchCache {
    /// The watches, each with whether its initial list is complete.
    sources: BTreeMap<WatchSource, bool>,
    objects: BTreeMap<PathBuf, WatchedObject>,
    /// Objects that this store deleted, with their last version. Later reports of this version or an earlier one are outdated.
    gone: BTreeMap<PathBuf, u64>,
    /// Counts the writes of this store. The number shows which writes came after the request of a list.
    writes: u64,
    /// When any client last wrote an object, as far as this store observed it.
    touched: Option<Instant>,
    /// Objects that changed since the last snapshot.
    found: ChangedFiles,
    /// The documents in effect; none before the first valid snapshot.
    pub(super) documents: Option<Arc<Documents>>,
    /// The documents that the reconciler loaded or saved last.
    pub(super) loaded: Arc<Documents>,
    /// Refused objects, each with its content and its faults.
    refused: BTreeMap<PathBuf, (Vec<u8>, Faults)>,
    woken: bool,
    /// Namespaces that are known to exist.
    namespaces: BTreeSet<String>,
}

#[derive(Clone)]
struct WatchedObject {
    version: ObjectRevision,
    /// The version that the documents in effect contain. A write requires it as the current version.
    known: Option<ObjectRevision>,
    source: Option<WatchSource>,
    /// The number of this store's write that created this version; 0 if another client wrote it.
    write: u64,
}

/// The changes of a store since the last snapshot.
pub(super) struct StoreSnapshot {
    pub(super) documents: Result<Arc<Documents>, Faults>,
    /// Documents that must be written again.
    pub(super) rewrite: BTreeSet<DocumentName>,
    /// Documents that are refused from now on, with their faults, and documents that are accepted again.
    pub(super) verdicts: BTreeMap<DocumentName, Option<Faults>>,
}

impl WatchCache {
    /// Registers a watch that starts.
    pub(super) fn begin(&mut self, source: &WatchSource) {
        self.sources.entry(source.clone()).or_default();
    }

    /// Forgets which initial lists are complete, because all watches start again.
    pub(super) fn restart_watches(&mut self) {
        self.sources.clear();
    }

    /// Returns the watches whose initial lists are not complete; none if all are.
    pub(super) fn unseen(&self) -> Option<String> {
        let unseen: Vec<&str> = self.sources.iter().filter(|(_, seen)| !**seen).map(|(name, _)| &**name).collect();
        (!unseen.is_empty() || self.sources.is_empty()).then(|| unseen.join(", "))
    }

    /// Returns the number of the last write, for [`Self::listed`].
    pub(super) fn writes(&self) -> u64 {
        self.writes
    }

    /// Returns when an object was last written, as far as this store observed it.
    pub(super) fn last_write(&self) -> Option<Instant> {
        self.touched
    }

    /// Records an object that a watch reported. `text` is `None` for an object that counts as deleted.
    pub(super) fn seen(&mut self, source: &WatchSource, path: PathBuf, version: ObjectRevision, text: Option<Vec<u8>>) {
        let known = self.objects.get(&path).map_or(0, |object| object.version.number);
        let gone = self.gone.get(&path).copied().unwrap_or_default();
        if version.number <= known || version.number <= gone {
            if let Some(object) = self.objects.get_mut(&path) {
                object.source = Some(source.clone());
            }
            return;
        }
        self.touched = Some(Instant::now());
        self.gone.remove(&path);
        let known = self.objects.remove(&path).and_then(|object| object.known);
        self.objects.insert(path.clone(), WatchedObject { version, known, source: Some(source.clone()), write: 0 });
        self.found.insert(path, text);
    }

    /// Records a deletion that a watch reported. `version` is the last version of the object.
    pub(super) fn record_deletion(&mut self, path: PathBuf, version: &ObjectRevision) {
        self.touched = Some(Instant::now());
        self.gone.remove(&path);
        let is_other = self.objects.get(&path).is_some_and(|object| object.version.number > version.number);
        if !is_other && self.objects.remove(&path).is_some() {
            self.found.insert(path, None);
        }
    }

    /// Completes a list. Objects that its watch reported before and that are not in the list were deleted, except those that this store wrote after
    /// the request of the list. Returns the deleted objects.
    pub(super) fn listed(&mut self, source: &WatchSource, all: &BTreeSet<PathBuf>, asked: u64) -> Vec<PathBuf> {
        let is_lost = |path: &Path, object: &WatchedObject| {
            object.source.as_ref() == Some(source) && object.write <= asked && !all.contains(path)
        };
        let lost: Vec<PathBuf> =
            self.objects.iter().filter(|(path, object)| is_lost(path, object)).map(|(path, _)| path.clone()).collect();
        for path in &lost {
            self.objects.remove(path);
            self.found.insert(path.clone(), None);
        }
        self.sources.insert(source.clone(), true);
        lost
    }

    /// Removes a watch, and all objects that it reported.
    pub(super) fn end(&mut self, source: &str) {
        self.sources.remove(source);
        let of_it = self.objects.iter().filter(|(_, object)| object.source.as_deref() == Some(source));
        let of_it: Vec<PathBuf> = of_it.map(|(path, _)| path.clone()).collect();
        for path in of_it {
            self.objects.remove(&path);
            self.found.insert(path, None);
        }
    }

    /// Returns the version of an object that the documents in effect contain.
    pub(super) fn known(&self, path: &Path) -> Option<ObjectRevision> {
        self.objects.get(path)?.known.clone()
    }

    /// Returns whether a document differs from the one in `since`, which a pass loaded. If this store wrote the object last, it does not: the API
    /// server may only have rounded its times.
    pub(super) fn is_other(&self, name: &DocumentName, since: &Documents) -> bool {
        let path = path_of(name);
        let is_own = self.objects.get(&path).is_some_and(|object| object.write > 0);
        let document = self.documents.as_deref().and_then(|world| world.get(name));
        self.found.contains_key(&path) || (!is_own && document != since.get(name))
    }

    /// Records a write of this store. Reports of this version or an earlier one are outdated. A watch may have reported a later write of another
    /// client before this response arrived.
    pub(super) fn record_write(&mut self, path: PathBuf, version: ObjectRevision) {
        self.writes += 1;
        self.touched = Some(Instant::now());
        if let Some(object) = self.objects.get_mut(&path).filter(|object| object.version.number > version.number) {
            object.known = Some(version);
            return;
        }
        self.found.remove(&path);
        self.gone.remove(&path);
        let source = self.objects.remove(&path).and_then(|object| object.source);
        self.objects.insert(path, WatchedObject { known: Some(version.clone()), version, source, write: self.writes });
    }

    /// Records a deletion by this store.
    pub(super) fn removed(&mut self, path: PathBuf) {
        self.writes += 1;
        self.touched = Some(Instant::now());
        self.found.remove(&path);
        if let Some(object) = self.objects.remove(&path) {
            self.gone.insert(path, object.version.number);
        }
    }

    /// Returns whether a namespace is known to exist.
    pub(super) fn has_namespace(&self, name: &str) -> bool {
        self.namespaces.contains(name)
    }

    pub(super) fn record_namespace(&mut self, name: String) {
        self.namespaces.insert(name);
    }

    /// Records that a write into a namespace failed. The namespace may have been deleted.
    pub(super) fn lost_namespace(&mut self, name: &str) {
        self.namespaces.remove(name);
    }

    /// Records that a missing object could not be written again, so that the next snapshot includes it.
    pub(super) fn record_missed(&mut self, path: PathBuf) {
        self.found.entry(path).or_insert(None);
    }

    /// Puts a document into effect, or removes it if `document` is `None`.
    pub(super) fn count(&mut self, name: &DocumentName, document: Option<Document>) {
        let world = Arc::make_mut(self.documents.get_or_insert_default());
        match document {
            Some(document) => world.put(name, document),
            None => world.remove(name),
        }
    }

    /// Records that the reconciler saved these documents.
    pub(super) fn saved(&mut self, documents: &Documents) {
        self.loaded = Arc::new(documents.clone());
    }

    /// Returns the number of refused objects.
    pub(super) fn refused(&self) -> usize {
        self.refused.len()
    }

    /// Returns whether a snapshot would find changes.
    pub(super) fn has_changes(&self) -> bool {
        self.woken || !self.found.is_empty()
    }

    pub(super) fn wake(&mut self) {
        self.woken = true;
    }

    /// Applies the changes since the last snapshot, and returns the result.
    pub(super) fn take_snapshot(&mut self) -> StoreSnapshot {
        self.woken = false;
        let mut found = std::mem::take(&mut self.found);
        if found.is_empty()
            && let Some(world) = &self.documents
        {
            return StoreSnapshot { documents: Ok(world.clone()), rewrite: BTreeSet::new(), verdicts: BTreeMap::new() };
        }
        for path in found.keys() {
            if let Some(object) = self.objects.get_mut(path) {
                object.known = Some(object.version.clone());
            }
        }
        // A refused document may be valid now, because another one changed.
        for (path, (bytes, _)) in &self.refused {
            found.entry(path.clone()).or_insert_with(|| Some(bytes.clone()));
        }
        let AcceptedDocuments { documents, refused, rewrite } =
            accept(self.documents.as_deref(), &found, StatusOwner::Server);
        let verdicts = self.note(&found, refused);
        let documents = documents.map(Arc::new);
        self.documents.clone_from(&documents);
        if documents.is_none() {
            self.found = found;
            return StoreSnapshot { documents: Err(self.faults()), rewrite: BTreeSet::new(), verdicts };
        }
        StoreSnapshot { documents: Ok(documents.unwrap_or_default()), rewrite, verdicts }
    }

    /// Records what is refused. Returns what changed of that.
    fn note(
        &mut self,
        found: &ChangedFiles,
        refused: BTreeMap<PathBuf, Faults>,
    ) -> BTreeMap<DocumentName, Option<Faults>> {
        let mut verdicts = BTreeMap::new();
        let before = std::mem::take(&mut self.refused);
        for path in before.keys().filter(|path| !refused.contains_key(*path)) {
            let Some(name) = name_of(path) else { continue };
            tracing::info!(document = %name, "the document is accepted");
            if self.objects.contains_key(path) {
                verdicts.insert(name, None);
            }
        }
        for (path, faults) in refused {
            let Some(name) = name_of(&path) else { continue };
            let faults = Faults(faults.0.into_iter().map(|fault| of_document(&name, fault)).collect());
            if before.get(&path).is_none_or(|(_, known)| *known != faults) {
                tracing::error!(document = %name, "the document is refused: {faults}");
                verdicts.insert(name, Some(faults.clone()));
            }
            let bytes = found.get(&path).cloned().flatten().unwrap_or_default();
            self.refused.insert(path, (bytes, faults));
        }
        verdicts
    }

    /// Returns the `metadata.generation` of a refused document.
    pub(super) fn generation_of_refused(&self, path: &Path) -> i64 {
        let bytes = self.refused.get(path).map(|(bytes, _)| bytes.as_slice()).unwrap_or_default();
        let json: serde_json::Value = serde_json::from_slice(bytes).unwrap_or_default();
        json["metadata"]["generation"].as_i64().unwrap_or_default()
    }

    fn faults(&self) -> Faults {
        Faults(self.refused.values().flat_map(|(_, faults)| faults.0.iter().cloned()).collect())
    }
}

/// Returns a fault without a line number, which an object does not have.
fn of_document(name: &DocumentName, fault: Fault) -> Fault {
    Fault { document: name.to_string(), line: 0, ..fault }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACHINE: &str = "apiVersion: keelway.dev/v1alpha1\nkind: Hypervisor\nmetadata: {name: hv-1}\nspec: {role: Private, endpoint: \
                           {unix: {path: /run/1.sock}}, addresses: {private: [10.0.0.1]}}\n";
    const CLUSTER: &str = "apiVersion: keelway.dev/v1alpha1\nkind: Cluster\nmetadata: {name: c1, namespace: team-a}\nspec: {version: \
                           1.37.0}\nstatus: {id: aaaaaaaaaaaaaaaa}\n";
    const SECRET: &str = "apiVersion: v1\nkind: Secret\nmetadata: {name: notes, namespace: keelway-aaaaaaaaaaaaaaaa, labels: \
                          {keelway.dev/cluster-id: aaaaaaaaaaaaaaaa}}\ndata: {note: eA==}\n";

    /// Returns the first snapshot of these files.
    fn look(files: &[(&str, &str)]) -> StoreSnapshot {
        let mut held = WatchCache::default();
        for (number, (path, text)) in (1..).zip(files) {
            // An API server returns JSON.
            let json: serde_json::Value = serde_saphyr::from_str(text).unwrap_or_default();
            let version = ObjectRevision { number, ..ObjectRevision::default() };
            held.seen(&"all".into(), path.into(), version, Some(serde_json::to_vec(&json).unwrap()));
        }
        held.take_snapshot()
    }

    #[test]
    fn an_event_before_the_response_to_a_write_is_a_change() {
        let mut held = WatchCache::default();
        let version = |number| ObjectRevision { number, ..ObjectRevision::default() };
        let json =
            |text: &str| serde_json::to_vec(&serde_saphyr::from_str::<serde_json::Value>(text).unwrap()).unwrap();
        let path = PathBuf::from("hypervisors/hv-1.yaml");
        held.seen(&"all".into(), path.clone(), version(1), Some(json(MACHINE)));
        held.take_snapshot().documents.unwrap();
        // This store writes the second version, and another client the third.
        let deleted = MACHINE.replace("{name: hv-1}", "{name: hv-1, deletionTimestamp: '2026-01-01T00:00:00Z'}");
        held.seen(&"all".into(), path.clone(), version(3), Some(json(&deleted)));
        held.record_write(path.clone(), version(2));
        assert!(held.has_changes());
        let documents = held.take_snapshot().documents.unwrap();
        assert!(documents.hypervisors.values().all(|machine| machine.deleted()));
        // A late report of the store's own write is no change.
        held.record_write(path.clone(), version(5));
        held.seen(&"all".into(), path, version(4), Some(json(MACHINE)));
        assert!(!held.has_changes());
    }

    #[test]
    fn an_invalid_dependency_blocks_only_its_cluster() {
        let (machine, cluster) = (("hypervisors/hv-1.yaml", MACHINE), ("clusters/team-a/c1.yaml", CLUSTER));
        let secret = "secrets/keelway-aaaaaaaaaaaaaaaa/notes.yaml";
        let clusters = |files: &[(&str, &str)]| look(files).documents.map(|documents| documents.clusters.len()).ok();
        assert_eq!(clusters(&[machine, cluster, (secret, SECRET)]), Some(1));
        let empty = SECRET.replace("eA==", "''");
        assert_eq!(clusters(&[machine, cluster, (secret, &empty)]), Some(0), "one whose key is spoilt waits alone");
        let other = CLUSTER.replace("c1", "c2").replace("aaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbb");
        let other = ("clusters/team-a/c2.yaml", other.as_str());
        assert_eq!(clusters(&[machine, cluster, other, (secret, &empty)]), Some(1), "the others go on");
        let broken = CLUSTER.replace("1.37.0", "1.2.3");
        let spoilt = ("clusters/team-a/c1.yaml", broken.as_str());
        assert_eq!(clusters(&[machine, spoilt, (secret, SECRET)]), Some(0), "one that is spoilt waits alone");
        assert_eq!(clusters(&[machine, (secret, SECRET)]), Some(0), "and so does what is left of one");
        let issued =
            format!("{MACHINE}status: {{issued: {{term: 1, generation: 1, digest: ''}}}}\n").replace("Private", "None");
        assert_eq!(clusters(&[("hypervisors/hv-1.yaml", &issued), cluster]), None, "a machine that runs something");
        let class = |spec: &str| {
            format!("apiVersion: keelway.dev/v1alpha1\nkind: ClusterClass\nmetadata: {{name: small}}\nspec: {spec}\n")
        };
        let path = "clusterclasses/small.yaml";
        assert_eq!(clusters(&[machine, cluster, (path, &class("{versions: [1.36.3]}"))]), Some(1), "what runs goes on");
        assert_eq!(clusters(&[machine, cluster, (path, &class("{versions: [1.2.3]}"))]), Some(1), "also without it");
    }
}
