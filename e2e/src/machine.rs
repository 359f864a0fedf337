//! A machine, examined from outside: through its runtime, and through the process behind the socket of the runtime.

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
    time::{Duration, SystemTime},
};

use keelway_api::{
    Component, Documents, Hypervisor, Shared,
    hypervisor::{HypervisorRole, MachineTransport},
    machine::{AGENT_LABEL, CLUSTER_LABEL, COMPONENT_LABEL},
    name::ClusterId,
};
use keelway_cri::{
    CriContainer, CriContainerState, CriRuntime, CriSandboxState, Deadlines, SandboxSpec, testing::cache,
};
use keelway_machine_io::image::ensure;
use rustix::{
    net::sockopt::socket_peercred,
    thread::{LinkNameSpaceType, move_into_link_name_space},
};

use crate::{
    command::{FinishedCommand, run},
    deadline, process,
};

/// The label with the fleet of a local hypervisor.
const FLEET_LABEL: &str = "keelway.dev/local-fleet";

/// A machine of the test's fleet.
pub struct TestMachine {
    /// The Hypervisor document.
    pub document: Hypervisor,
    runtime: CriRuntime,
    executor: Arc<tokio::runtime::Runtime>,
}

/// A running component.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunningComponent {
    /// The id of the container.
    pub container: String,
    /// The id of the sandbox.
    pub sandbox: String,
    /// The image of the container, as the request named it.
    pub image: String,
    /// When the container was created.
    pub created: SystemTime,
}

impl TestMachine {
    /// Returns all machines of the documents.
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

    /// Returns the name of the machine.
    pub fn name(&self) -> &str {
        self.document.metadata.name.as_deref().unwrap()
    }

    /// Returns whether the machine is public.
    pub fn is_public(&self) -> bool {
        self.document.spec.role == HypervisorRole::Public
    }

    /// Returns the private and public addresses of the document.
    pub fn addresses(&self) -> Vec<IpAddr> {
        let addresses = &self.document.spec.addresses;
        addresses.private.iter().chain(&addresses.public).map(|address| address.parse().unwrap()).collect()
    }

    /// Returns the path of the CRI socket.
    pub fn socket(&self) -> PathBuf {
        socket(&self.document)
    }

    /// Imports an image archive into the runtime.
    pub fn import(&self, archive: &Path) {
        import(&self.socket(), archive);
    }

    /// Returns the process behind the CRI socket.
    pub fn pid(&self) -> u32 {
        peer(&self.socket())
    }

    /// Returns whether an agent runs beside the runtime.
    pub fn has_agent(&self) -> bool {
        self.document.spec.endpoint.has_agent()
    }

    /// Returns whether Keelway starts the agent as a container.
    pub fn has_started_agent(&self) -> bool {
        self.document.spec.endpoint.cri().is_some()
    }

    /// Returns the number of sandboxes that the machine should have. An agent that Keelway started has one.
    pub fn sandboxes_wanted(&self) -> usize {
        self.running().len() + usize::from(self.has_started_agent())
    }

    /// Returns the path of the network namespace.
    pub fn network(&self) -> PathBuf {
        local(&self.document).join("net")
    }

    /// Returns the path of the agent's socket. The agent may not exist.
    pub fn agent_socket(&self) -> PathBuf {
        self.document
            .spec
            .endpoint
            .socket()
            .map_or_else(|| local(&self.document).join("run/keelway/agent.sock"), PathBuf::from)
    }

    /// Returns the process id of the agent.
    pub fn agent_pid(&self) -> u32 {
        if self.has_started_agent() {
            let all = self.wait(self.runtime.list_containers(&BTreeMap::new())).unwrap();
            let is_it = |found: &&CriContainer| found.labels.contains_key(AGENT_LABEL);
            let mut agents = all.iter().filter(is_it).filter(|found| found.state == CriContainerState::Running);
            return self.container_pid(&agents.next().unwrap().id);
        }
        peer(&self.agent_socket())
    }

    /// Returns the process of each component's container.
    pub fn pids(&self) -> BTreeMap<String, u32> {
        let running = self.running().into_iter();
        running.map(|(component, seen)| (component, self.container_pid(&seen.container))).collect()
    }

    /// Returns the path in this process for a path of the machine.
    pub fn path(&self, path: &str) -> PathBuf {
        format!("/proc/{}/root{path}", self.pid()).into()
    }

    /// Runs a function in the network of the machine.
    pub fn within<T: Send>(&self, function: impl FnOnce() -> T + Send) -> T {
        within(self.pid(), function)
    }

    /// Connects from the network of the machine.
    pub fn connect(&self, address: SocketAddr) -> io::Result<TcpStream> {
        self.within(|| TcpStream::connect_timeout(&address, deadline::REQUEST))
    }

    /// Runs a command in the network of the machine.
    pub fn run(&self, command: &mut Command) -> FinishedCommand {
        self.within(|| run(command, &[], deadline::READ))
    }

    /// Returns the running components. Fails the test if one runs twice.
    pub fn running(&self) -> BTreeMap<String, RunningComponent> {
        self.running_with(&BTreeMap::new())
    }

    /// Returns the running components of a cluster.
    pub fn running_of(&self, cluster: &ClusterId) -> BTreeMap<String, RunningComponent> {
        self.running_with(&BTreeMap::from([(CLUSTER_LABEL.to_owned(), cluster.to_string())]))
    }

    /// Returns the running container of a component, if there is one.
    pub fn of(&self, component: &Component) -> Option<RunningComponent> {
        self.running_of(&component.spec.cluster_id).remove(component.spec.name().unwrap().as_str())
    }

    /// Runs a pod that does not belong to Keelway, and returns its id.
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

    /// Removes a pod that does not belong to Keelway.
    pub fn remove_sandbox(&self, id: &str) {
        self.wait(self.runtime.stop_pod_sandbox(id)).unwrap();
        self.wait(self.runtime.remove_pod_sandbox(id)).unwrap();
    }

    /// Returns the other running containers of components, such as the egress beside an API server, by component.
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
            // An agent that Keelway started does not belong to a component.
            let Some(component) = container.labels.get(COMPONENT_LABEL).cloned() else { continue };
            let is_main = component.rsplit_once('-').is_some_and(|(role, _)| role == container.name);
            if is_main != named_after {
                continue;
            }
            let CriContainer { id, sandbox_id, image, created, .. } = container;
            let entry = RunningComponent { container: id, sandbox: sandbox_id, image, created };
            assert!(running.insert(component.clone(), entry).is_none(), "{component} runs twice on {}", self.name());
        }
        running
    }

    /// Returns all sandboxes and containers with their states.
    pub fn ids(&self) -> BTreeSet<String> {
        let sandboxes = self.wait(self.runtime.list_pod_sandboxes(&BTreeMap::new())).unwrap();
        let containers = self.wait(self.runtime.list_containers(&BTreeMap::new())).unwrap();
        let containers =
            containers.into_iter().map(|container| format!("container {} {:?}", container.id, container.state));
        let sandboxes = sandboxes.into_iter().map(|sandbox| format!("sandbox {} {:?}", sandbox.id, sandbox.state));
        containers.chain(sandboxes).collect()
    }

    /// Returns the number of sandboxes that are ready, and of those that are not.
    pub fn sandboxes(&self) -> (usize, usize) {
        let sandboxes = self.wait(self.runtime.list_pod_sandboxes(&BTreeMap::new())).unwrap();
        let ready = sandboxes.iter().filter(|sandbox| sandbox.state == CriSandboxState::Ready).count();
        (ready, sandboxes.len() - ready)
    }

    /// Returns the first process of a container.
    pub fn container_pid(&self, id: &str) -> u32 {
        self.wait(self.runtime.container_pid(id)).unwrap().unwrap()
    }

    /// Returns the process of a sandbox.
    pub fn sandbox_pid(&self, id: &str) -> u32 {
        self.wait(self.runtime.pod_sandbox_pid(id)).unwrap().unwrap()
    }

    /// Stops a sandbox with all its containers, to simulate interference.
    pub fn stop_sandbox(&self, id: &str) {
        self.wait(self.runtime.stop_pod_sandbox(id)).unwrap();
    }

    /// Runs a command in a container and returns its output.
    pub fn exec(&self, id: &str, command: &[&str]) -> String {
        let command: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
        let output = self.wait(self.runtime.exec_sync(id, &command, deadline::READ)).unwrap();
        assert_eq!(output.exit_code, 0, "{command:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Returns the names of all images.
    pub fn images(&self) -> BTreeSet<String> {
        let images = self.wait(self.runtime.list_images()).unwrap();
        images.into_iter().flat_map(|image| image.tags).collect()
    }

    /// Imports an image of the cache into the runtime, in place of a registry.
    pub fn load(&self, image: &str) {
        let archives = cache().unwrap().join("images");
        self.wait(ensure(&self.runtime, &archives, image)).unwrap();
    }

    /// Returns the output of `crictl inspect` and `crictl inspectp` for everything in the runtime.
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

    /// Returns every process in the network of the machine, except the calling one.
    pub fn processes(&self) -> Vec<u32> {
        processes_beside(self.pid())
    }

    fn wait<T>(&self, answer: impl Future<Output = T>) -> T {
        self.executor.block_on(answer)
    }
}

/// Runs a function in the network of a process.
pub fn within<T: Send>(pid: u32, function: impl FnOnce() -> T + Send) -> T {
    let namespace = File::open(format!("/proc/{pid}/ns/net")).unwrap();
    let inside = || {
        move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        function()
    };
    thread::scope(|scope| scope.spawn(inside).join().unwrap())
}

/// Returns every process in the network of this one.
pub(crate) fn processes_beside(pid: u32) -> Vec<u32> {
    let network = |pid: u32| std::fs::read_link(format!("/proc/{pid}/ns/net")).ok();
    let own = network(pid);
    process::all().into_iter().filter(|pid| network(*pid) == own).collect()
}

/// Returns the process behind a socket.
pub fn peer(socket: &Path) -> u32 {
    let stream = UnixStream::connect(socket).unwrap();
    socket_peercred(stream).unwrap().pid.as_raw_nonzero().get().try_into().unwrap()
}

/// Returns the machine that runs this component, and its running container.
pub fn find<'a>(machines: &'a [TestMachine], component: &str) -> (&'a TestMachine, RunningComponent) {
    let found = machines.iter().find_map(|machine| Some((machine, machine.running().remove(component)?)));
    found.unwrap_or_else(|| panic!("{component} runs nowhere"))
}

/// Imports an image archive into the runtime behind a socket.
pub(crate) fn import(socket: &Path, archive: &Path) {
    let mut import = Command::new(cache().unwrap().join("bin/ctr"));
    import.arg("--address").arg(socket).args(["--namespace", "k8s.io", "images", "import"]).arg(archive);
    let _ = run(&mut import, &[], deadline::SETTLE).succeeded();
}

/// Formats a duration in milliseconds.
pub fn millis(duration: Duration) -> String {
    format!("{:>7} ms", duration.as_millis())
}

/// Returns the socket of the runtime. Its path does not depend on whether there is an agent.
fn socket(document: &Hypervisor) -> PathBuf {
    match document.spec.endpoint.way() {
        MachineTransport::Runtime(path) => path.into(),
        MachineTransport::Agent(path) => Path::new(path).ancestors().nth(2).unwrap().join("containerd/containerd.sock"),
        MachineTransport::Network(_) | MachineTransport::Cri(_) => {
            local(document).join("run/containerd/containerd.sock")
        }
    }
}

/// Returns the directory of a local hypervisor whose document contains no socket.
fn local(document: &Hypervisor) -> PathBuf {
    let fleet = &document.metadata.labels.as_ref().unwrap()[FLEET_LABEL];
    let name = document.metadata.name.as_deref().unwrap();
    let id = name.strip_prefix(&format!("{fleet}-")).unwrap_or(name);
    Path::new("/run/keelway-local").join(fleet).join(id)
}
