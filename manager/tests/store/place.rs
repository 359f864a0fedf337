//! A directory for one test, and what is written into it.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use keelway_api::Documents;
use keelway_manager::directory::DirectoryStore;
use keelway_reconciler::{ChangingDocuments, Store};
use tempfile::TempDir;
use tokio::time::timeout;

pub(crate) const CLUSTER: &str = "clusters/default/c1.yaml";
pub(crate) const MACHINE: &str = "hypervisors/hv-1.yaml";
/// As a person writes it.
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

    /// As an editor does it: a new file in the place of the old one.
    pub(crate) fn write(&self, path: &str, text: &str) {
        fs::create_dir_all(self.path(path).parent().unwrap()).unwrap();
        fs::write(self.path(".edited"), text).unwrap();
        fs::rename(self.path(".edited"), self.path(path)).unwrap();
    }

    /// A store that holds [`world`], and that is told of what others write alone: one before it wrote that.
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

/// As passes leave it; people wrote of its cluster once.
pub(crate) fn world() -> Documents {
    let mut documents = keelway_reconciler::testing::world();
    for cluster in documents.clusters.values_mut() {
        cluster.metadata.generation = Some(1);
    }
    documents
}

/// The next look, once the store tells that there is something to see.
pub(crate) async fn next(store: &DirectoryStore) -> Documents {
    timeout(Duration::from_secs(10), store.changed()).await.unwrap();
    Documents::clone(&*store.load().await.unwrap())
}

pub(crate) fn written(documents: &Documents) -> Vec<String> {
    documents.names().map(|name| documents.text_of(&name).unwrap()).collect()
}
