//! A machine, looked at from outside: through its runtime, and through the process behind the runtime's socket.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs::File,
    io,
    net::{IpAddr, SocketAddr, TcpStream},
    os::{fd::AsFd, unix::net::UnixStream},
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    thread,
    time::Duration,
};

use keelway_api::{
    Component, Documents, Hypervisor, Shared,
    hypervisor::{HypervisorEndpoint, HypervisorRole, MachineTransport},
    machine::{CLUSTER_LABEL, COMPONENT_LABEL},
    name::ClusterId,
};
use keelway_cri::{CriContainerState, CriRuntime, CriSandboxState, Deadlines, SandboxSpec, testing::cache};
use keelway_hypervisor_agent::image::ensure;
use rustix::{
    net::sockopt::socket_peercred,
    thread::{LinkNameSpaceType, move_into_link_name_space},
};

use crate::{
    command::{FinishedCommand, run},
    deadline, process,
};

/// The label that names the fleet of a local hypervisor.
const FLEET_LABEL: &str = "keelway.dev/local-fleet";

/// A machine of the test's fleet.
pub struct TestMachine {
    /// Its document.
    pub document: Hypervisor,
    runtime: CriRuntime,
    executor: Arc<tokio::runtime::Runtime>,
}

/// A component that runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunningComponent {
    /// The id of its container.
    pub container: String,
    /// The id of its sandbox.
    pub sandbox: String,
    /// The container's image, as it was asked for.
    pub image: String,
}

impl TestMachine {
    /// All machines of the documents.
    pub fn all(documents: &Documents) -> Vec<Self> {
        let executor =
            Arc::new(tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap());
        let machine = |document: &Shared<Hypervisor>| {
            let _entered = executor.enter();
            let runtime = CriRuntime::on_socket(socket(document), Deadlines::default()).unwrap();
            Self { document: Hypervisor::clone(document), runtime, executor: executor.clone() }
        };
        documents.hypervisors.values().map(machine).collect()
    }

    /// Its name.
    pub fn name(&self) -> &str {
        self.document.metadata.name.as_deref().unwrap()
    }

    /// Whether clients reach it.
    pub fn is_public(&self) -> bool {
        self.document.spec.role == HypervisorRole::Public
    }

    /// All its addresses but the loopback's.
    pub fn addresses(&self) -> Vec<IpAddr> {
        let addresses = &self.document.spec.addresses;
        addresses.private.iter().chain(&addresses.public).map(|address| address.parse().unwrap()).collect()
    }

    /// Its CRI socket.
    pub fn socket(&self) -> PathBuf {
        socket(&self.document)
    }

    /// The process behind its CRI socket.
    pub fn pid(&self) -> u32 {
        peer(&self.socket())
    }

    /// Whether an agent is beside its runtime.
    pub fn has_agent(&self) -> bool {
        matches!(self.document.spec.endpoint, HypervisorEndpoint::Agent(_))
    }

    /// How many sandboxes it has for what runs: of a helper, too, where there is no agent behind its proxy.
    pub fn sandboxes_wanted(&self) -> usize {
        let has_helper = matches!(self.document.spec.endpoint, HypervisorEndpoint::Cri(_));
        self.running().len() + usize::from(has_helper)
    }

    /// Its network namespace.
    pub fn network(&self) -> PathBuf {
        local(&self.document).join("net")
    }

    /// Where its agent listens, if there is one beside its runtime.
    pub fn agent_socket(&self) -> PathBuf {
        self.document
            .spec
            .endpoint
            .socket()
            .map_or_else(|| local(&self.document).join("run/keelway/agent.sock"), PathBuf::from)
    }

    /// Its agent.
    pub fn agent_pid(&self) -> u32 {
        peer(&self.agent_socket())
    }

    /// The process of each component's container.
    pub fn pids(&self) -> BTreeMap<String, u32> {
        let running = self.running().into_iter();
        running.map(|(component, seen)| (component, self.container_pid(&seen.container))).collect()
    }

    /// A path of the machine, as this process sees it.
    pub fn path(&self, path: &str) -> PathBuf {
        format!("/proc/{}/root{path}", self.pid()).into()
    }

    /// Runs a function in the machine's network.
    pub fn within<T: Send>(&self, function: impl FnOnce() -> T + Send) -> T {
        within(self.pid(), function)
    }

    /// Connects from the machine's network.
    pub fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        self.within(|| TcpStream::connect_timeout(&address, deadline::REQUEST))
    }

    /// Runs a command in the machine's network.
    pub fn run(&self, command: &mut Command) -> FinishedCommand {
        self.within(|| run(command, &[], deadline::READ))
    }

    /// What runs, by component. Two of one component fail the test.
    pub fn running(&self) -> BTreeMap<String, RunningComponent> {
        self.running_with(&BTreeMap::new())
    }

    /// What runs of a cluster, by component.
    pub fn running_of(&self, cluster: &ClusterId) -> BTreeMap<String, RunningComponent> {
        self.running_with(&BTreeMap::from([(CLUSTER_LABEL.to_owned(), cluster.to_string())]))
    }

    /// What runs of one of its components, if anything does.
    pub fn of(&self, component: &Component) -> Option<RunningComponent> {
        self.running_of(&component.spec.cluster_id).remove(component.spec.name().unwrap().as_str())
    }

    /// Runs a pod of somebody else, and returns its id.
    pub fn run_sandbox(&self, name: &str, labels: &[(&str, &str)]) -> String {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        let spec = SandboxSpec {
            name: name.to_owned(),
            namespace: "others".to_owned(),
            uid: name.to_owned(),
            labels: labels.collect(),
            ..SandboxSpec::default()
        };
        self.wait(self.runtime.run_pod_sandbox(&spec)).unwrap()
    }

    /// Removes a pod of somebody else.
    pub fn remove_sandbox(&self, id: &str) {
        self.wait(self.runtime.stop_pod_sandbox(id)).unwrap();
        self.wait(self.runtime.remove_pod_sandbox(id)).unwrap();
    }

    /// What runs beside the containers that components are named after, by component.
    pub fn running_beside(&self) -> BTreeMap<String, RunningComponent> {
        self.running_that(&BTreeMap::new(), false)
    }

    fn running_with(&self, labels: &BTreeMap<String, String>) -> BTreeMap<String, RunningComponent> {
        self.running_that(labels, true)
    }

    fn running_that(&self, labels: &BTreeMap<String, String>, named_after: bool) -> BTreeMap<String, RunningComponent> {
        let containers = self.wait(self.runtime.list_containers(labels)).unwrap();
        let mut running = BTreeMap::new();
        for container in containers.into_iter().filter(|container| container.state == CriContainerState::Running) {
            // Without an agent there is a helper, which is nobody's component.
            let Some(component) = container.labels.get(COMPONENT_LABEL).cloned() else { continue };
            let is_main = component.rsplit_once('-').is_some_and(|(role, _)| role == container.name);
            if is_main != named_after {
                continue;
            }
            let entry =
                RunningComponent { container: container.id, sandbox: container.sandbox_id, image: container.image };
            assert!(running.insert(component.clone(), entry).is_none(), "{component} runs twice on {}", self.name());
        }
        running
    }

    /// The ids of all sandboxes and containers, whatever their state.
    pub fn ids(&self) -> BTreeSet<String> {
        let sandboxes = self.wait(self.runtime.list_pod_sandboxes(&BTreeMap::new())).unwrap();
        let containers = self.wait(self.runtime.list_containers(&BTreeMap::new())).unwrap();
        let containers =
            containers.into_iter().map(|container| format!("container {} {:?}", container.id, container.state));
        let sandboxes = sandboxes.into_iter().map(|sandbox| format!("sandbox {} {:?}", sandbox.id, sandbox.state));
        containers.chain(sandboxes).collect()
    }

    /// How many sandboxes are ready, and how many are not.
    pub fn sandboxes(&self) -> (usize, usize) {
        let sandboxes = self.wait(self.runtime.list_pod_sandboxes(&BTreeMap::new())).unwrap();
        let ready = sandboxes.iter().filter(|sandbox| sandbox.state == CriSandboxState::Ready).count();
        (ready, sandboxes.len() - ready)
    }

    /// The first process of a container.
    pub fn container_pid(&self, id: &str) -> u32 {
        self.wait(self.runtime.container_pid(id)).unwrap().unwrap()
    }

    /// The process of a sandbox.
    pub fn sandbox_pid(&self, id: &str) -> u32 {
        self.wait(self.runtime.pod_sandbox_pid(id)).unwrap().unwrap()
    }

    /// Stops a sandbox and all its containers, as somebody does who means harm.
    pub fn stop_sandbox(&self, id: &str) {
        self.wait(self.runtime.stop_pod_sandbox(id)).unwrap();
    }

    /// What a command in a container says.
    pub fn exec(&self, id: &str, command: &[&str]) -> String {
        let command: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
        let output = self.wait(self.runtime.exec_sync(id, &command, deadline::READ)).unwrap();
        assert_eq!(output.exit_code, 0, "{command:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The names of all images.
    pub fn images(&self) -> BTreeSet<String> {
        let images = self.wait(self.runtime.list_images()).unwrap();
        images.into_iter().flat_map(|image| image.tags).collect()
    }

    /// Brings an image of the cache to it, as a registry would.
    pub fn load(&self, image: &str) {
        let archives = cache().unwrap().join("images");
        self.wait(ensure(&self.runtime, &archives, image)).unwrap();
    }

    /// What `crictl inspect` tells of all that the runtime has.
    pub fn inspect(&self) -> String {
        let crictl = |arguments: &[&str]| {
            let mut crictl = Command::new(cache().unwrap().join("bin/crictl"));
            crictl.arg(format!("--runtime-endpoint=unix://{}", self.socket().display())).args(arguments);
            run(&mut crictl, &[], deadline::READ).succeeded().text().to_owned()
        };
        let all = [("pods", "inspectp"), ("ps", "inspect")].map(|(list, inspect)| {
            let list = if list == "ps" { vec![list, "--all", "--quiet"] } else { vec![list, "--quiet"] };
            let ids = crictl(&list);
            let ids: Vec<&str> = ids.lines().collect();
            if ids.is_empty() { String::new() } else { crictl(&[&[inspect][..], &ids].concat()) }
        });
        all.concat()
    }

    /// Every process in the machine's network but the one that asks.
    pub fn processes(&self) -> Vec<u32> {
        processes_beside(self.pid())
    }

    fn wait<T>(&self, answer: impl Future<Output = T>) -> T {
        self.executor.block_on(answer)
    }
}

/// Runs a function in a process' network.
pub fn within<T: Send>(pid: u32, function: impl FnOnce() -> T + Send) -> T {
    let namespace = File::open(format!("/proc/{pid}/ns/net")).unwrap();
    let inside = || {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        function()
    };
    thread::scope(|scope| scope.spawn(inside).join().unwrap())
}

/// Every process in the network of this one.
pub(crate) fn processes_beside(pid: u32) -> Vec<u32> {
    let network = |pid: u32| std::fs::read_link(format!("/proc/{pid}/ns/net")).ok();
    let own = network(pid);
    process::all().into_iter().filter(|pid| network(*pid) == own).collect()
}

/// The process behind a socket.
pub fn peer(socket: &Path) -> u32 {
    let stream = UnixStream::connect(socket).unwrap();
    socket_peercred(stream).unwrap().pid.as_raw_nonzero().get().try_into().unwrap()
}

/// The machine of this component, and what runs of it.
pub fn find<'a>(machines: &'a [TestMachine], component: &str) -> (&'a TestMachine, RunningComponent) {
    let found = machines.iter().find_map(|machine| Some((machine, machine.running().remove(component)?)));
    found.unwrap_or_else(|| panic!("{component} runs nowhere"))
}

/// How long something took, in words.
pub fn millis(duration: Duration) -> String {
    format!("{:>7} ms", duration.as_millis())
}

/// The runtime's socket, which is where it always is, also where an agent is beside it.
fn socket(document: &Hypervisor) -> PathBuf {
    match document.spec.endpoint.way() {
        MachineTransport::Runtime(path) => path.into(),
        MachineTransport::Agent(path) => Path::new(path).ancestors().nth(2).unwrap().join("containerd/containerd.sock"),
        MachineTransport::Network(_) | MachineTransport::Cri(_) => {
            local(document).join("run/containerd/containerd.sock")
        }
    }
}

/// The directory of a local hypervisor whose document names no socket.
fn local(document: &Hypervisor) -> PathBuf {
    let fleet = &document.metadata.labels.as_ref().unwrap()[FLEET_LABEL];
    let name = document.metadata.name.as_deref().unwrap();
    let id = name.strip_prefix(&format!("{fleet}-")).unwrap_or(name);
    Path::new("/run/keelway-local").join(fleet).join(id)
}
