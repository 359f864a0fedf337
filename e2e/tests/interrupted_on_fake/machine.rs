//! The process of a fake machine, as a test controls it.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::Stdio,
};

use keelway_api::{
    machine::DATA_MARK,
    release::{self, KEELWAY, cluster_controller_image, haproxy_image},
};
use keelway_cri::{CriContainerState, CriRuntime, CriSandboxState, Deadlines};
use keelway_e2e::fake_machine::SignalOrder;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
};

/// A fake machine. Its process is killed on drop.
pub(crate) struct Machine {
    process: Child,
    orders: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
    pub(crate) socket: PathBuf,
    pub(crate) root: PathBuf,
    calls: PathBuf,
}

/// The state of a machine: each sandbox and container with its state, and each file with owner and mode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) sandboxes: Vec<(String, CriSandboxState)>,
    pub(crate) containers: Vec<(String, CriContainerState)>,
    pub(crate) files: BTreeMap<PathBuf, (u32, u32)>,
}

impl Machine {
    /// Starts a machine with a directory of its own, in the network that the arguments select.
    pub(crate) async fn start(directory: &Path, network: &[String]) -> Self {
        let root = directory.join("root");
        // These directories exist on every system. Keelway removes only what it created.
        for folder in ["var/lib", "var/log"] {
            fs::create_dir_all(root.join(folder)).unwrap();
        }
        let (socket, calls) = (directory.join("cri.sock"), directory.join("calls"));
        let mut process = Command::new(env!("CARGO_BIN_EXE_fake-machine"))
            .args([Path::new("--socket"), &socket, Path::new("--root"), &root, Path::new("--calls"), &calls])
            .args(network)
            .args(images().iter().map(|image| format!("--image={image}")))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let orders = process.stdin.take().unwrap();
        let answers = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut machine = Self { process, orders, answers, socket, root, calls };
        assert_eq!(machine.answers.next_line().await.unwrap().as_deref(), Some("ready"));
        machine
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id().unwrap()
    }

    /// Sends an order, and returns when it is in effect.
    pub(crate) async fn order(&mut self, order: SignalOrder) {
        self.orders.write_all(format!("{order}\n").as_bytes()).await.unwrap();
        assert_eq!(self.answers.next_line().await.unwrap().as_deref(), Some("ok"));
    }

    /// Returns each call so far that changed something, with method and name.
    pub(crate) fn calls(&self) -> Vec<String> {
        fs::read_to_string(&self.calls).unwrap().lines().map(str::to_owned).collect()
    }

    /// Returns the state of the machine, with `ID` in place of the cluster's id.
    pub(crate) async fn seen(&self, id: &str) -> Seen {
        let runtime = CriRuntime::on_socket(&self.socket, Deadlines::default()).unwrap();
        let everything = BTreeMap::new();
        let mut seen = Seen::default();
        let pods = runtime.list_pod_sandboxes(&everything).await.unwrap();
        seen.sandboxes = pods.iter().map(|pod| (pod.name.clone(), pod.state)).collect();
        let pod = |id: &str| pods.iter().find(|pod| pod.id == id).map(|pod| pod.name.as_str());
        let containers = runtime.list_containers(&everything).await.unwrap();
        let container = |found: &keelway_cri::CriContainer| {
            (format!("{}/{}", pod(&found.sandbox_id).unwrap_or("no pod"), found.name), found.state)
        };
        seen.containers = containers.iter().map(container).collect();
        seen.sandboxes.sort_by(|one, other| one.0.cmp(&other.0));
        seen.containers.sort_by(|one, other| one.0.cmp(&other.0));
        self.walk(&self.root, id, &mut seen);
        seen
    }

    fn walk(&self, folder: &Path, id: &str, seen: &mut Seen) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let found = path.symlink_metadata().unwrap();
            let name = path.strip_prefix(&self.root).unwrap().to_str().unwrap();
            let name = if id.is_empty() { name.to_owned() } else { name.replace(id, "ID") };
            // Only the marks of etcd members are compared. Whether other pods that waited for their start got a mark depends on how often a pass
            // ran.
            if !name.ends_with(DATA_MARK) || name.contains("/etcd-") {
                seen.files.insert(name.as_str().into(), (found.uid(), found.mode()));
            }
            if found.is_dir() {
                self.walk(&path, id, seen);
            }
        }
    }
}

/// Returns all images of a cluster, so that none is pulled.
fn images() -> Vec<String> {
    let release = release::newest();
    let programs = ["kube-apiserver", "kube-controller-manager", "kube-scheduler"];
    let mut images: Vec<_> = programs.iter().map(|program| release.kubernetes_image(program, None)).collect();
    images.extend([
        release.etcd_image(None),
        release.pause_image(None),
        haproxy_image(None),
        cluster_controller_image(None, KEELWAY),
    ]);
    images
}
