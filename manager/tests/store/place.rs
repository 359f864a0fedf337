//! A directory for one test, and what is written into it.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use keelway_api::Documents;
use keelway_manager::directory::Directory;
use keelway_reconciler::{Changing, Store};
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
/// As passes leave it.
const WORLD: &str = "\
apiVersion: keelway.dev/v1alpha1
kind: Hypervisor
metadata: {name: hv-1}
spec: {role: Private, endpoint: {unix: {path: /run/containerd/containerd.sock}}, addresses: {private: [10.0.0.1]}}
status: {installation: 00000000000000ff}
---
apiVersion: keelway.dev/v1alpha1
kind: Cluster
metadata: {name: c1, namespace: default, generation: 1}
spec: {version: 1.37.0}
status: {id: 0123456789abcdef, ingressPort: 20000}
---
apiVersion: keelway.dev/v1alpha1
kind: Component
metadata: {name: etcd-0, namespace: keelway-0123456789abcdef, labels: {keelway.dev/cluster-id: 0123456789abcdef, keelway.dev/component: etcd-0}}
spec:
  cluster: {namespace: default, name: c1}
  clusterId: 0123456789abcdef
  role: etcd
  index: 0
  version: 1.37.0
  hypervisor: hv-1
  ports: {client: 20001, peer: 20002}
  user: 1900000000
";

pub(crate) struct Place(pub(crate) TempDir);

impl Place {
    pub(crate) fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    pub(crate) fn open(&self) -> Directory {
        Directory::open(self.0.path()).unwrap()
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

    /// A store that holds [`WORLD`].
    pub(crate) async fn with_world(&self) -> Directory {
        let store = self.open();
        store.load().await.unwrap();
        store.save(&world()).await.unwrap();
        store
    }
}

pub(crate) fn world() -> Documents {
    Documents::read(WORLD.as_bytes()).unwrap()
}

/// The next look, once the store tells that there is something to see.
pub(crate) async fn next(store: &Directory) -> Documents {
    timeout(Duration::from_secs(10), store.changed()).await.unwrap();
    Documents::clone(&*store.load().await.unwrap())
}

pub(crate) fn written(documents: &Documents) -> Vec<String> {
    documents.names().map(|name| documents.text_of(&name).unwrap()).collect()
}
