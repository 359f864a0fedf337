//! The ways in which users write documents.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use keelway_api::{
    Documents,
    document::{DocumentName, DocumentRef},
    hypervisor::LOST_ANNOTATION,
};
use keelway_e2e::{Kubectl, manager::documents_in};
use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::{
    plane::Plane,
    world::{World, program},
};

/// The time limit for documents to reach the expected state.
pub(crate) const LIMIT: Duration = Duration::from_secs(120);
/// The interval between reads of the documents.
pub(crate) const LOOK: Duration = Duration::from_millis(100);

/// One way to write documents.
pub(crate) trait Way {
    /// Returns the name for messages.
    fn name(&self) -> &'static str;
    /// Writes documents as a user. They can be marked for deletion.
    async fn put(&mut self, documents: &Documents);
    /// Returns the current documents.
    async fn documents(&mut self) -> Documents;
    /// Returns the log so far.
    fn log(&self) -> String;
}

/// The pipe of `keelway reconcile`.
pub(crate) struct Pipe<'a> {
    world: &'a World,
    documents: Documents,
}

impl<'a> Pipe<'a> {
    pub(crate) fn new(world: &'a World) -> Self {
        Self { world, documents: Documents::default() }
    }
}

impl Way for Pipe<'_> {
    fn name(&self) -> &'static str {
        "a pipe"
    }

    async fn put(&mut self, documents: &Documents) {
        let settled = self.world.settle(&documents.write()).await;
        self.documents = Documents::read(settled.as_bytes()).unwrap();
    }

    async fn documents(&mut self) -> Documents {
        self.documents.clone()
    }

    fn log(&self) -> String {
        String::new()
    }
}

/// A process of `keelway-manager`.
struct Manager {
    directory: TempDir,
    _process: Child,
}

impl Manager {
    fn start(store: impl FnOnce(&Path) -> Vec<String>) -> Self {
        let directory = tempfile::Builder::new().prefix("keelway-store-equivalence-").tempdir().unwrap();
        let log = fs::File::create(directory.path().join("log")).unwrap();
        // The manager is killed when the test process exits, however that happens.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "--"]).arg(program().with_file_name("keelway-manager"));
        command.arg("run").args(store(directory.path())).arg("--metrics-listen=off");
        command.arg("--listen").arg(directory.path().join("manager.sock"));
        command.arg("--images").arg(directory.path());
        let process = command.env_clear().stdin(Stdio::null()).stderr(log).kill_on_drop(true).spawn().unwrap();
        Self { directory, _process: process }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap()
    }
}

/// A manager of a directory.
pub(crate) struct Directory {
    manager: Manager,
}

impl Directory {
    pub(crate) fn start() -> Self {
        Self { manager: Manager::start(|directory| vec![format!("--store=dir:{}", directory.join("store").display())]) }
    }

    fn store(&self) -> PathBuf {
        self.manager.directory.path().join("store")
    }
}

impl Way for Directory {
    fn name(&self) -> &'static str {
        "a directory"
    }

    async fn put(&mut self, documents: &Documents) {
        for name in documents.names().filter(of_people) {
            let kind = name.kind().to_lowercase();
            let folder = if kind.ends_with('s') { format!("{kind}es") } else { format!("{kind}s") };
            let parts = [Some(folder), name.namespace(), Some(format!("{}.yaml", name.name()))];
            let file = self.store().join(parts.into_iter().flatten().collect::<PathBuf>());
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            let beside = file.with_extension("swp");
            fs::write(&beside, documents.text_of(&name).unwrap()).unwrap();
            fs::rename(beside, file).unwrap();
        }
    }

    async fn documents(&mut self) -> Documents {
        documents_in(&self.store()).unwrap_or_default()
    }

    fn log(&self) -> String {
        self.manager.log()
    }
}

/// A manager of a Kubernetes API.
pub(crate) struct Kubernetes {
    manager: Manager,
    kubectl: Kubectl,
    /// Why the last read of the documents failed.
    faults: String,
    _plane: Plane,
}

impl Kubernetes {
    pub(crate) async fn start() -> Self {
        let plane = Plane::start().await;
        let kubeconfig = plane.kubeconfig("admin", &["system:masters"]);
        let kubectl = Kubectl::new(Path::new(&kubeconfig));
        let definitions = Path::new(env!("CARGO_MANIFEST_DIR")).join("../manifests/crds");
        let _ = kubectl.run(&["apply", "--server-side", "-f", definitions.to_str().unwrap()]).succeeded();
        let kinds =
            ["clusterclasses", "clusters", "components", "hypervisors"].map(|kind| format!("crd/{kind}.keelway.dev"));
        kubectl.wait("condition=Established", &kinds.each_ref().map(String::as_str));
        let arguments = ["--store=kubernetes".to_owned(), "--kubeconfig".to_owned(), kubeconfig];
        Self { manager: Manager::start(|_| arguments.to_vec()), kubectl, faults: String::new(), _plane: plane }
    }
}

impl Way for Kubernetes {
    fn name(&self) -> &'static str {
        "Kubernetes"
    }

    async fn put(&mut self, documents: &Documents) {
        for name in documents.names().filter(of_people) {
            let deleted = match documents.get(&name).unwrap() {
                DocumentRef::Cluster(cluster) => cluster.deleted(),
                DocumentRef::Hypervisor(machine) => machine.deleted(),
                DocumentRef::ClusterClass(_) | DocumentRef::Component(_) | DocumentRef::Secret(_) => false,
            };
            if deleted {
                let kind = name.kind().to_lowercase();
                let words = ["delete", "--wait=false", "--ignore-not-found", &kind, name.name()];
                let _ = self.kubectl.run(&words).succeeded();
            } else {
                self.kubectl.apply(&spec_of(documents, &name));
            }
        }
    }

    async fn documents(&mut self) -> Documents {
        let kinds = "clusterclasses,hypervisors,clusters.keelway.dev,components,secrets";
        let text = self.kubectl.run(&["get", kinds, "--all-namespaces", "-o", "yaml"]).succeeded().stdout;
        let read = Documents::read(&text);
        self.faults = read.as_ref().err().map(ToString::to_string).unwrap_or_default();
        // The documents can be inconsistent, because an object was created or deleted between two responses.
        read.unwrap_or_default()
    }

    fn log(&self) -> String {
        format!("{}\n{}", self.faults, self.manager.log())
    }
}

/// Returns whether users write documents of this kind.
fn of_people(name: &DocumentName) -> bool {
    matches!(name, DocumentName::ClusterClass(_) | DocumentName::Hypervisor(_) | DocumentName::Cluster(_))
}

/// Returns a document as a user writes it, without fields that an API server sets.
fn spec_of(documents: &Documents, name: &DocumentName) -> String {
    let (metadata, spec) = match documents.get(name).unwrap() {
        DocumentRef::ClusterClass(document) => (&document.metadata, serde_json::to_value(&document.spec)),
        DocumentRef::Hypervisor(document) => (&document.metadata, serde_json::to_value(&document.spec)),
        DocumentRef::Cluster(document) => (&document.metadata, serde_json::to_value(&document.spec)),
        DocumentRef::Component(_) | DocumentRef::Secret(_) => panic!("{name} is nobody's to write"),
    };
    let annotations = metadata.annotations.as_ref().and_then(|all| all.get_key_value(LOST_ANNOTATION));
    let metadata = serde_json::json!({
        "name": name.name(), "namespace": name.namespace(), "annotations": annotations.into_iter().collect::<BTreeMap<_, _>>(),
    });
    serde_json::json!({
        "apiVersion": "keelway.dev/v1alpha1", "kind": name.kind(), "metadata": metadata, "spec": spec.unwrap(),
    })
    .to_string()
}
