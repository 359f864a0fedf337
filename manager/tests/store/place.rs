//! A directory for one test, and the files in it.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use keelway_api::Documents;
use keelway_reconciler::{ChangingDocuments, Store};
use keelway_stores::directory::DirectoryStore;
use tempfile::TempDir;
use tokio::time::timeout;

pub(crate) const CLUSTER: &str = "clusters/default/c1.yaml";
pub(crate) const MACHINE: &str = "hypervisors/hv-1.yaml";
/// A Cluster as a person writes it.
pub(crate) const WRITTEN: &str = "\
apiVersion: keelway.dev/v1alpha1
kind: Cluster
metadata: {name: c1}
spec: {version: 1.37.0} # the newest
";
pub(crate) struct Place(pub(crate) TempDir);

impl Place {
    pub(crate) fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    pub(crate) fn open(&self) -> DirectoryStore {
        DirectoryStore::open(self.0.path()).unwrap()
    }

    pub(crate) fn path(&self, path: impl AsRef<Path>) -> PathBuf {
        self.0.path().join(path)
    }

    pub(crate) fn read(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap()
    }

    /// Writes a file as an editor does: it renames a new file over the old one.
    pub(crate) fn write(&self, path: &str, text: &str) {
        fs::create_dir_all(self.path(path).parent().unwrap()).unwrap();
        fs::write(self.path(".edited"), text).unwrap();
        fs::rename(self.path(".edited"), self.path(path)).unwrap();
    }

    /// Returns a store that holds [`world`]. An earlier instance wrote the documents, so that this one reports only what others write.
    pub(crate) async fn with_world(&self) -> DirectoryStore {
        let store = self.open();
        store.load().await.unwrap();
        store.save(&world()).await.unwrap();
        drop(store);
        let store = self.open();
        store.load().await.unwrap();
        store
    }
}

/// Returns documents as passes leave them. A person wrote the cluster once, so that its generation is 1.
pub(crate) fn world() -> Documents {
    let mut documents = keelway_reconciler::testing::world();
    for cluster in documents.clusters.values_mut() {
        cluster.metadata.generation = Some(1);
    }
    documents
}

/// Waits until the store reports a change, and loads the documents.
pub(crate) async fn next(store: &DirectoryStore) -> Documents {
    timeout(Duration::from_secs(10), store.changed()).await.unwrap();
    Documents::clone(&*store.load().await.unwrap())
}

pub(crate) fn written(documents: &Documents) -> Vec<String> {
    documents.names().map(|name| documents.text_of(&name).unwrap()).collect()
}
