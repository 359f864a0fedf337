//! A machine whose agent listens on a port.

use std::{
    collections::BTreeSet,
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use keelway_agent_api::client::{HypervisorAgentClient, channel};
use keelway_api::{
    machine::{Container, ContainerResources, MachineConfig, OnChange, Pod, PodFile, Start},
    name::PodName,
};
use keelway_base::root_socket::RootSocket;
use keelway_cri::{Deadlines, fake::Fake};
use keelway_hypervisor_agent::{
    agent::{AgentListeners, AgentNetwork, AgentNetworkError, ConnectionLimits, run},
    enrollment::IdentityFolder,
};
use keelway_machine_io::{access::MachineAccess, local::LocalMachine};
use keelway_pki::EnrollmentToken;
use keelway_tls::TlsFiles;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

use crate::{
    WITHIN,
    installation::{ID, Installation, MACHINE, files},
};

const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

pub(crate) struct Machine {
    root: TempDir,
    pub(crate) fake: Fake,
    pub(crate) address: SocketAddr,
    pub(crate) stop: CancellationToken,
    running: Option<JoinHandle<()>>,
}

impl Machine {
    /// Creates [`MACHINE`], whose agent listens on a port.
    pub(crate) fn new(installation: &mut Installation, bounds: ConnectionLimits) -> Self {
        Self::of(MACHINE, installation, |files| {
            AgentNetwork::of_files(files, bounds).unwrap().listening_on(LOOPBACK).unwrap()
        })
    }

    /// Creates a machine with this name and network.
    pub(crate) fn of(
        name: &str,
        installation: &mut Installation,
        network: impl FnOnce(TlsFiles) -> AgentNetwork,
    ) -> Self {
        Self::with(|root| {
            fs::create_dir(root.join("tls")).unwrap();
            installation.write_agent_of(name, &root.join("tls"));
            Ok(network(files(&root.join("tls"))))
        })
    }

    /// Creates a machine whose agent waits for its enrollment.
    pub(crate) fn enrolling(token: &EnrollmentToken) -> Self {
        Self::with(|root| Self::enrolled(root, Some(token)))
    }

    /// Creates a machine whose agent waits for its enrollment. After that, it also waits at these agents for calls.
    pub(crate) fn enrolling_and_waiting(token: &EnrollmentToken, at: Vec<SocketAddr>) -> Self {
        Self::with(|root| Ok(Self::enrolled(root, Some(token))?.waiting_at(at)))
    }

    /// Creates a machine whose agent waits for its first certificate at its socket.
    pub(crate) fn awaiting_certificate() -> Self {
        Self::with(Self::awaited)
    }

    fn awaited(root: &Path) -> Result<AgentNetwork, AgentNetworkError> {
        let folder = IdentityFolder::new(root.join("identity"));
        AgentNetwork::awaiting_certificate(folder, ConnectionLimits::default())?.listening_on(LOOPBACK)
    }

    /// Stops the agent and starts another one that takes its first certificate at its socket.
    pub(crate) async fn restart_awaiting(&mut self) {
        self.stop.cancel();
        self.running.take().unwrap().await.unwrap();
        self.start(Self::awaited(self.root.path()).unwrap());
    }

    /// Returns the path of the agent's socket.
    pub(crate) fn socket(&self) -> PathBuf {
        self.root.path().join("run/agent.sock")
    }

    fn enrolled(root: &Path, token: Option<&EnrollmentToken>) -> Result<AgentNetwork, AgentNetworkError> {
        let folder = IdentityFolder::new(root.join("identity"));
        AgentNetwork::enrolled(folder, token.cloned(), ConnectionLimits::default())?.listening_on(LOOPBACK)
    }

    fn with(network: impl FnOnce(&Path) -> Result<AgentNetwork, AgentNetworkError>) -> Self {
        let root = tempfile::Builder::new().prefix("keelway-network-").tempdir().unwrap();
        for path in ["var/lib", "var/log", "run"] {
            fs::create_dir_all(root.path().join(path)).unwrap();
        }
        let fake = Fake::new();
        for image in ["example.test/etcd:1", "example.test/pause:1"] {
            fake.add_image(image);
        }
        let network = network(root.path()).unwrap();
        let address = network.address().unwrap();
        let mut machine = Self { root, fake, address, stop: CancellationToken::new(), running: None };
        machine.start(network);
        machine
    }

    /// Starts an agent on this machine.
    fn start(&mut self, network: AgentNetwork) {
        let access = MachineAccess::of_root(fs::File::open(self.root.path()).unwrap().into());
        let local = LocalMachine::new(access, self.fake.runtime(Deadlines::default()), None);
        self.address = network.address().unwrap();
        self.stop = CancellationToken::new();
        let socket = RootSocket::bind(&self.root.path().join("run/agent.sock")).unwrap();
        let entrances = AgentListeners { socket, network: Some(network) };
        let stop = self.stop.clone();
        self.running = Some(tokio::spawn(async move { run(local, entrances, stop).await.unwrap() }));
    }

    /// Stops the agent and starts another one, with this token if there is one.
    pub(crate) async fn restart(&mut self, token: Option<&EnrollmentToken>) {
        self.stop.cancel();
        self.running.take().unwrap().await.unwrap();
        self.start(Self::enrolled(self.root.path(), token).unwrap());
    }

    /// Returns the directory in which an enrolled agent stores its identity.
    pub(crate) fn identity(&self) -> IdentityFolder {
        IdentityFolder::new(self.root.path().join("identity"))
    }

    /// Returns the directory with the files of its certificate.
    pub(crate) fn tls(&self) -> PathBuf {
        self.root.path().join("tls")
    }

    /// Returns the path of a file in the agent's state directory.
    pub(crate) fn state_file(&self, name: &str) -> PathBuf {
        self.root.path().join("var/lib/keelway").join(name)
    }

    /// Returns how often the agent has called this method of the runtime.
    pub(crate) fn calls(&self, method: &str) -> u64 {
        self.fake.calls().iter().filter(|call| call.method == method).count().try_into().unwrap()
    }

    /// Returns the directory with the logs of all components.
    pub(crate) fn log_folder(&self) -> PathBuf {
        self.root.path().join("var/log/keelway")
    }

    /// Returns a channel to the agent with the client certificate of these files.
    pub(crate) fn channel(&self, identity: &Path) -> Channel {
        let identity = keelway_tls::TlsClient::new(files(identity)).unwrap();
        channel(&self.address.to_string(), &MACHINE.parse().unwrap(), Arc::new(identity)).unwrap()
    }

    pub(crate) fn client(&self, identity: &TempDir) -> HypervisorAgentClient {
        HypervisorAgentClient::on_channel(self.channel(identity.path()))
    }

    /// Returns whether the agent serves the client with the certificate of these files.
    pub(crate) async fn serves(&self, identity: &TempDir) -> bool {
        self.client(identity).state(WITHIN).await.is_ok()
    }
}

pub(crate) fn config(generation: u64, content: &str) -> MachineConfig {
    let pod = Pod {
        user: 20_000,
        files: vec![PodFile { path: "key".to_owned(), content: content.into(), on_change: OnChange::PickedUp }],
        data: vec!["data".to_owned()],
        containers: vec![Container {
            name: "main".to_owned(),
            image: "example.test/etcd:1".to_owned(),
            command: vec!["etcd".to_owned()],
            mounts: Vec::new(),
            resources: ContainerResources {
                cpu_request_millis: 100,
                cpu_limit_millis: None,
                memory_limit_bytes: 1 << 28,
            },
            stop_seconds: 1,
            liveness: None,
        }],
        pause_image: "example.test/pause:1".to_owned(),
        servers: None,
        start: Start::Always,
        hold: false,
        registries: std::collections::BTreeMap::new(),
        prefetch: std::collections::BTreeSet::new(),
    };
    let name = PodName { cluster: "0123456789abcdef".parse().unwrap(), component: "etcd-0".parse().unwrap() };
    MachineConfig {
        format: keelway_api::machine::ConfigFormat::NEWEST,
        installation: ID.parse().unwrap(),
        term: 1,
        generation,
        pods: [(name, pod)].into(),
        others: BTreeSet::new(),
        removals: std::collections::BTreeMap::new(),
    }
}
