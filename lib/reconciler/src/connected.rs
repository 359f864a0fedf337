//! Machines that are reached in one of three ways: the socket of a runtime or of an agent on this host, or an agent on a network, which Keelway may
//! have started itself.

mod agent;
mod certify;
mod network;
mod runtime;
mod started_agent;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use futures::future::{join_all, select_all};
use keelway_agent_api::client::ConfigDelivery;
use keelway_api::{
    Documents, Hypervisor,
    hypervisor::{AgentNetworkAddress, MachineTransport},
    jiff::Timestamp,
    machine::{MachineConfig, MachineState, ObservedValue, UnreachableReason},
    name::{HypervisorName, InstallationId},
};
use keelway_base::error_chain::chain_text;
use keelway_cri::proxy::connection::MachineConnection;
use keelway_machine::{action::Action, leader::Leader};
use keelway_planner::{AgentOrder, DataRestoration};
use tokio::{
    sync::{Notify, OnceCell},
    task::JoinHandle,
    time::{Instant, timeout, timeout_at},
};

use crate::{AgentCertification, ApplyOutcome, Machines, RunControl, SnapshotParts};
use agent::ConnectedAgent;
use network::MachineCredentials;
use runtime::ConnectedRuntime;
use started_agent::StartedAgent;

pub use network::{AgentRouteError, agent_channel, agent_way};

/// The time limit for one observation of a machine. After it, the machine counts as unreachable.
const LOOK: Duration = Duration::from_secs(10);

/// The interval at which a machine is observed if no stream of its changes can be opened.
const UNHEARD: Duration = Duration::from_secs(5);

fn timeout_text() -> String {
    format!("no response within {} s", LOOK.as_secs())
}

/// Machines that are reached as their documents specify. One connection to each machine stays open.
pub struct ConnectedMachines {
    archives: PathBuf,
    introduction: MachineCredentials,
    connected: Mutex<BTreeMap<ConnectionKey, ConnectionSlot>>,
}

/// Identifies a connection: the path of a socket, or a machine on a network with its address and the agent that forwards to it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum ConnectionKey {
    Socket(PathBuf),
    Network { machine: String, address: Option<String>, via: Option<String> },
}

impl ConnectionKey {
    fn of(machine: &Hypervisor) -> Self {
        let name = || machine.metadata.name.clone().unwrap_or_default();
        match machine.spec.endpoint.way() {
            MachineTransport::Runtime(path) | MachineTransport::Agent(path) => Self::Socket(path.into()),
            MachineTransport::Network(AgentNetworkAddress { address, via }) => {
                Self::Network { machine: name(), address: address.map(str::to_owned), via: via.map(str::to_owned) }
            }
            MachineTransport::Cri(_) => {
                let address = machine.started_agent().map(|(address, _)| address);
                Self::Network { machine: name(), address, via: None }
            }
        }
    }
}

/// Holds the connection to a machine once it is established.
type ConnectionSlot = Arc<OnceCell<Arc<MachineHandle>>>;

/// A connected machine.
struct MachineHandle {
    by: MachineBackend,
    changed: Arc<Notify>,
    /// The task that receives the machine's changes. It starts with the first wait for a change, because most passes never wait.
    listener: OnceCell<JoinHandle<()>>,
}

/// Why a machine could not be observed.
struct UnseenMachine {
    silent: UnreachableReason,
    why: String,
}

impl From<String> for UnseenMachine {
    fn from(why: String) -> Self {
        Self { silent: UnreachableReason::Asked, why }
    }
}

/// Whether a task receives the changes of a machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ChangeListening {
    /// The task already ran before this call.
    Already,
    /// The task started with this call. Earlier changes were not received.
    FromNowOn,
    /// The stream of changes cannot be opened.
    Not,
}

/// The way in which configs are applied.
enum MachineBackend {
    Runtime(ConnectedRuntime),
    Agent(ConnectedAgent),
}

impl Drop for MachineHandle {
    fn drop(&mut self) {
        if let Some(listener) = self.listener.get() {
            listener.abort();
        }
    }
}

impl MachineHandle {
    /// Returns whether the task that receives changes has ended.
    fn has_listener_ended(&self) -> bool {
        self.listener.get().is_some_and(JoinHandle::is_finished)
    }

    /// Starts the task that receives changes, unless it runs.
    async fn listen(&self) -> ChangeListening {
        let mut began = false;
        let listener = self.listener.get_or_try_init(|| async {
            began = true;
            let changed = Arc::clone(&self.changed);
            match &self.by {
                MachineBackend::Runtime(runtime) => Ok(runtime.listen(changed)),
                MachineBackend::Agent(agent) => agent.listen(changed).await,
            }
        });
        match listener.await {
            Ok(_) if began => ChangeListening::FromNowOn,
            Ok(_) => ChangeListening::Already,
            Err(why) => {
                tracing::debug!(why, "cannot watch the machine");
                ChangeListening::Not
            }
        }
    }
}

impl ConnectedMachines {
    /// Creates machines without connections. Images that a runtime lacks come from the archives in this directory, or else from their registries.
    /// Agents that the user started get their images themselves.
    #[must_use]
    pub fn new(archives: PathBuf) -> Self {
        Self { archives, introduction: MachineCredentials::default(), connected: Mutex::default() }
    }

    /// Returns the connection to a machine. Concurrent callers share one attempt to connect.
    async fn connect(&self, machine: &Hypervisor) -> Result<Arc<MachineHandle>, String> {
        let slot = self.slot(ConnectionKey::of(machine));
        let made = || async { self.make(machine).await.map(Arc::new) };
        slot.get_or_try_init(made).await.map(Arc::clone)
    }

    fn slot(&self, place: ConnectionKey) -> ConnectionSlot {
        let mut slots = self.held();
        // If the listener of a connection has ended, a caller that waits for changes would wait forever. We replace the connection.
        if slots.get(&place).and_then(|slot| slot.get()).is_some_and(|found| found.has_listener_ended()) {
            slots.remove(&place);
        }
        Arc::clone(slots.entry(place).or_default())
    }

    async fn make(&self, machine: &Hypervisor) -> Result<MachineHandle, String> {
        let by = match machine.spec.endpoint.way() {
            MachineTransport::Runtime(socket) => {
                MachineBackend::Runtime(ConnectedRuntime::connect(Path::new(socket), self.archives.clone()).await?)
            }
            MachineTransport::Agent(socket) => {
                MachineBackend::Agent(ConnectedAgent::on_socket(Path::new(socket)).await?)
            }
            MachineTransport::Network(_) | MachineTransport::Cri(_) => {
                MachineBackend::Agent(ConnectedAgent::on_network(self.introduction.way(machine)?.channel()))
            }
        };
        Ok(MachineHandle { by, changed: Arc::default(), listener: OnceCell::new() })
    }

    /// Returns the machine's connection and name, or the outcome to report if it cannot be reached.
    async fn reach(&self, machine: &Hypervisor) -> Result<(Arc<MachineHandle>, HypervisorName), ApplyOutcome> {
        let connected = self.connect(machine).await.map_err(|why| ApplyOutcome { effects: 0, failures: vec![why] })?;
        let name = machine.metadata.name.as_ref().and_then(|name| name.parse().ok());
        name.map(|name| (connected, name)).ok_or_else(ApplyOutcome::default)
    }

    /// Drops the connection. The next call connects again.
    fn forget(&self, machine: &Hypervisor) {
        self.held().remove(&ConnectionKey::of(machine));
    }

    fn held(&self) -> std::sync::MutexGuard<'_, BTreeMap<ConnectionKey, ConnectionSlot>> {
        // A panic cannot leave the map in a partial state, so we ignore the poison.
        self.connected.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Observes a machine within [`LOOK`]. The error contains what did not respond: the machine, or the runtime behind a working connection.
    async fn look(&self, machine: &Hypervisor) -> Result<MachineState, UnseenMachine> {
        let deadline = Instant::now() + LOOK;
        let connected = timeout_at(deadline, self.connect(machine)).await.map_err(|_| timeout_text())??;
        match &connected.by {
            MachineBackend::Runtime(runtime) => {
                let silent = |_| UnseenMachine { silent: UnreachableReason::Runtime, why: timeout_text() };
                timeout_at(deadline, runtime.observe()).await.map_err(silent)?
            }
            MachineBackend::Agent(agent) => timeout_at(deadline, agent.observe()).await.map_err(|_| timeout_text())?,
        }
    }

    /// Returns why a machine was not observed whose agent Keelway starts: its agent does not run, or does not respond.
    async fn look_for_agent(&self, machine: &Hypervisor, unseen: UnseenMachine) -> UnseenMachine {
        let running = async {
            let agent = StartedAgent::of(&self.introduction, machine).map_err(|error| chain_text(&error))?;
            timeout(LOOK, agent.is_running()).await.map_err(|_| timeout_text())?.map_err(|error| chain_text(&error))
        };
        match running.await {
            Ok(true) => {
                let address = machine.started_agent().map(|(address, _)| address).unwrap_or_default();
                let why = format!("the agent runs, but Keelway cannot reach it at {address}: {}", unseen.why);
                UnseenMachine { why, ..unseen }
            }
            Ok(false) => {
                UnseenMachine { silent: UnreachableReason::Agent, why: "no agent runs on the machine".to_owned() }
            }
            Err(why) => UnseenMachine::from(why),
        }
    }

    /// Sends the images of a config that are in the directory of archives to a machine behind a proxy.
    async fn send_images(&self, machine: &Hypervisor, config: &MachineConfig) {
        let Ok(agent) = StartedAgent::of(&self.introduction, machine) else { return };
        if let Err(error) = agent.send_images(&self.archives, config).await {
            tracing::warn!(
                error = chain_text(&error),
                "cannot copy an image to the machine; its agent pulls the image"
            );
        }
    }
}

#[async_trait]
impl Machines for ConnectedMachines {
    fn load_credentials(&self, documents: &Documents) -> BTreeSet<HypervisorName> {
        let changed = self.introduction.update(documents);
        let mut dropped = BTreeSet::new();
        self.held().retain(|place, _| {
            let (machine, stays) = match place {
                ConnectionKey::Socket(_) => return true,
                ConnectionKey::Network { machine, via, .. } => {
                    (machine, changed.is_agent_connection_valid(via.as_deref()))
                }
            };
            dropped.extend(machine.parse().ok().filter(|_: &HypervisorName| !stays));
            stays
        });
        dropped
    }

    async fn observe(&self, machine: &Hypervisor) -> ObservedValue<MachineState> {
        match self.look(machine).await {
            Ok(state) => ObservedValue::Known(state),
            Err(unseen) => {
                self.forget(machine);
                let is_ours = machine.spec.endpoint.cri().is_some() && unseen.silent == UnreachableReason::Asked;
                let unseen = if is_ours { self.look_for_agent(machine, unseen).await } else { unseen };
                let UnseenMachine { silent, why } = unseen;
                ObservedValue::Unreachable { silent, why }
            }
        }
    }

    async fn apply(
        &self,
        machine: &Hypervisor,
        config: ConfigDelivery,
        actions: Vec<Action>,
        run: &RunControl,
    ) -> ApplyOutcome {
        let (connected, name) = match self.reach(machine).await {
            Ok(reached) => reached,
            Err(applying) => return applying,
        };
        match &connected.by {
            MachineBackend::Runtime(runtime) => runtime.execute(&name, actions, run).await,
            MachineBackend::Agent(agent) => {
                // An agent decides on its actions by itself.
                drop(actions);
                if machine.spec.endpoint.cri().is_some() {
                    self.send_images(machine, &config.config).await;
                }
                agent.apply(&name, config, run).await
            }
        }
    }

    fn clock_of(&self, machine: &Hypervisor) -> Option<Timestamp> {
        let slot = self.held().get(&ConnectionKey::of(machine)).cloned()?;
        match &slot.get()?.by {
            MachineBackend::Agent(agent) => agent.time(),
            MachineBackend::Runtime(_) => None,
        }
    }

    async fn config(
        &self,
        machine: &Hypervisor,
        installation: &InstallationId,
    ) -> Result<Option<MachineConfig>, String> {
        let connected = self.connect(machine).await?;
        match &connected.by {
            MachineBackend::Agent(agent) => agent.config(installation).await,
            MachineBackend::Runtime(_) => Err("the machine has no agent and stores no config".to_owned()),
        }
    }

    async fn fence(&self, machine: &Hypervisor, term: u64) -> Result<u64, String> {
        let installation = machine.status.as_ref().and_then(|status| status.installation.clone());
        let (Some(installation), true) = (installation, machine.spec.endpoint.has_agent()) else { return Ok(0) };
        let connected = timeout(LOOK, self.connect(machine)).await.map_err(|_| timeout_text())??;
        match &connected.by {
            MachineBackend::Agent(agent) => agent.fence(Leader { installation, term }).await,
            MachineBackend::Runtime(_) => Ok(0),
        }
    }

    async fn adopt(&self, machine: &Hypervisor, installation: &InstallationId, run: &RunControl) -> ApplyOutcome {
        let (connected, name) = match self.reach(machine).await {
            Ok(reached) => reached,
            Err(applying) => return applying,
        };
        match &connected.by {
            MachineBackend::Runtime(runtime) => {
                runtime.execute(&name, vec![Action::WriteOwner(installation.clone())], run).await
            }
            MachineBackend::Agent(agent) => agent.adopt(installation).await,
        }
    }

    async fn certify(
        &self,
        machine: &Hypervisor,
        certifying: &AgentCertification<'_>,
        run: &RunControl,
    ) -> ApplyOutcome {
        let done = certify::certify(self, machine, certifying, run).await;
        if matches!(certifying.order(), AgentOrder::Enroll(_) | AgentOrder::Start(_) | AgentOrder::Stop) {
            // An enrolled agent presents another certificate from now on.
            self.forget(machine);
        }
        done
    }

    async fn restore_data(
        &self,
        machine: &Hypervisor,
        restoration: DataRestoration,
        snapshot: SnapshotParts,
    ) -> Result<(), String> {
        let connected = timeout(LOOK, self.connect(machine)).await.map_err(|_| timeout_text())??;
        match &connected.by {
            MachineBackend::Runtime(runtime) => runtime.restore_data(&restoration, snapshot).await,
            MachineBackend::Agent(agent) => {
                let status = machine.status.as_ref();
                let installation = status.and_then(|status| status.installation.clone());
                let installation = installation.ok_or_else(|| "the machine obeys no installation yet".to_owned())?;
                let term = status.and_then(|status| status.issued.as_ref()).map_or(0, |issued| issued.term);
                agent.restore_data(Leader { installation, term }, restoration, snapshot).await
            }
        }
    }

    async fn dial(
        &self,
        machine: &Hypervisor,
        address: SocketAddr,
        patience: Duration,
    ) -> io::Result<MachineConnection> {
        let connected = self.connect(machine).await.map_err(io::Error::other)?;
        match &connected.by {
            MachineBackend::Runtime(runtime) => runtime.dial(address, patience).await,
            MachineBackend::Agent(agent) => agent.dial(address, patience).await,
        }
    }

    async fn changed(&self, machines: &[&Hypervisor]) {
        let held: Vec<Arc<MachineHandle>> = {
            let held = self.held();
            machines.iter().filter_map(|machine| held.get(&ConnectionKey::of(machine))?.get().cloned()).collect()
        };
        if held.is_empty() {
            return std::future::pending().await;
        }
        let listened = join_all(held.iter().map(|connected| connected.listen())).await;
        // Changes before the listener started were not received, so we report a change now.
        if listened.contains(&ChangeListening::FromNowOn) {
            return;
        }
        let changed = select_all(held.iter().map(|connected| Box::pin(connected.changed.notified())));
        if listened.contains(&ChangeListening::Not) {
            let _ = timeout(UNHEARD, changed).await;
        } else {
            changed.await;
        }
    }
}
