//! Machines that are found behind a socket on this one, their runtime's or their agent's, by an agent on a network, or by a
//! runtime that is.

mod agent;
mod bare;
mod certify;
mod network;
mod runtime;

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
use keelway_api::{
    Documents, Hypervisor,
    hypervisor::{CriEndpoint, OnNetwork, Way},
    jiff::Timestamp,
    machine::{MachineConfig, MachineState, Seen, Silent},
    name::{HypervisorName, InstallationId},
};
use keelway_hypervisor_agent::{Connection, action::Action, client::Handover, leader::Leader, site::Question};
use keelway_planner::AgentOrder;
use tokio::{
    sync::{Notify, OnceCell},
    task::JoinHandle,
    time::{Instant, timeout, timeout_at},
};

use crate::{Applying, Certifying, Machines, Run};
use agent::Agent;
use bare::Bare;
use network::Introduction;
use runtime::Runtime;

pub use bare::reach_bare;
pub use network::{NetworkError, agent_channel, agent_way};

/// How long a look at a machine may take, before it counts as out of reach.
const LOOK: Duration = Duration::from_secs(10);

/// How soon a machine is looked at again that nobody can listen to.
const UNHEARD: Duration = Duration::from_secs(5);

fn late() -> String {
    format!("no answer within {} s", LOOK.as_secs())
}

/// Whether the machine does by itself what it was told to, and remembers who drives it: where it has an agent.
pub(crate) fn has_agent(machine: &Hypervisor) -> bool {
    matches!(machine.spec.endpoint.way(), Way::Agent(_) | Way::Network(_))
}

/// Machines as their documents say how to reach them; a connection to each is kept.
pub struct ConnectedMachines {
    archives: PathBuf,
    introduction: Introduction,
    connected: Mutex<BTreeMap<Place, Slot>>,
}

/// Where a machine is found: a socket's path; or, over a network, which machine where, and through which other one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Socket(PathBuf),
    Network {
        machine: String,
        address: Option<String>,
        via: Option<String>,
    },
    /// Over a network, too: which machine, and the way to its runtime.
    Bare(String, CriEndpoint),
}

impl Place {
    fn of(machine: &Hypervisor) -> Self {
        let name = || machine.metadata.name.clone().unwrap_or_default();
        match machine.spec.endpoint.way() {
            Way::Runtime(path) | Way::Agent(path) => Self::Socket(path.into()),
            Way::Network(OnNetwork { address, via }) => {
                Self::Network { machine: name(), address: address.map(str::to_owned), via: via.map(str::to_owned) }
            }
            Way::Cri(cri) => Self::Bare(name(), cri.clone()),
        }
    }
}

/// Where the connection to a machine is kept, once it stands.
type Slot = Arc<OnceCell<Arc<Connected>>>;

/// A machine that is reached.
struct Connected {
    by: By,
    changed: Arc<Notify>,
    /// Whoever tells of its changes, from the first time that somebody waits for one: most passes find nothing to wait for.
    listener: OnceCell<JoinHandle<()>>,
}

/// A machine that was not seen.
struct Unseen {
    silent: Silent,
    why: String,
}

impl From<String> for Unseen {
    fn from(why: String) -> Self {
        Self { silent: Silent::Asked, why }
    }
}

/// Whether somebody tells of a machine's changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Listened {
    /// As before.
    Already,
    /// What changed before was told to nobody.
    FromNowOn,
    /// Nobody does.
    Not,
}

/// Who does what there is to do.
enum By {
    Runtime(Runtime),
    Agent(Agent),
    Bare(Box<Bare>),
}

impl Drop for Connected {
    fn drop(&mut self) {
        if let Some(listener) = self.listener.get() {
            listener.abort();
        }
    }
}

impl Connected {
    /// Whether nobody will tell of a change any more.
    fn is_deaf(&self) -> bool {
        self.listener.get().is_some_and(JoinHandle::is_finished)
    }

    /// Leaves nothing on a machine that holds nothing.
    async fn part(&self) {
        match &self.by {
            By::Bare(bare) => bare.part().await,
            By::Runtime(_) | By::Agent(_) => {}
        }
    }

    /// Listens for changes from now on.
    async fn listen(&self) -> Listened {
        let mut began = false;
        let listener = self.listener.get_or_try_init(|| async {
            began = true;
            let changed = Arc::clone(&self.changed);
            match &self.by {
                By::Runtime(runtime) => Ok(runtime.listen(changed)),
                By::Agent(agent) => agent.listen(changed).await,
                By::Bare(bare) => Ok(bare.listen(changed)),
            }
        });
        match listener.await {
            Ok(_) if began => Listened::FromNowOn,
            Ok(_) => Listened::Already,
            Err(why) => {
                tracing::debug!(why, "cannot be listened to");
                Listened::Not
            }
        }
    }
}

impl ConnectedMachines {
    /// Images that a machine without an agent lacks come from this directory of archives where it has them, else from their
    /// registry.
    #[must_use]
    pub fn new(archives: PathBuf) -> Self {
        Self { archives, introduction: Introduction::default(), connected: Mutex::default() }
    }

    /// Whoever comes while somebody else connects waits for that.
    async fn connect(&self, machine: &Hypervisor) -> Result<Arc<Connected>, String> {
        let slot = self.slot(Place::of(machine));
        let made = || async { self.make(machine).await.map(Arc::new) };
        slot.get_or_try_init(made).await.map(Arc::clone)
    }

    fn slot(&self, place: Place) -> Slot {
        let mut slots = self.held();
        // A connection that tells of no more changes is worth nothing to who waits for them.
        if slots.get(&place).and_then(|slot| slot.get()).is_some_and(|found| found.is_deaf()) {
            slots.remove(&place);
        }
        Arc::clone(slots.entry(place).or_default())
    }

    async fn make(&self, machine: &Hypervisor) -> Result<Connected, String> {
        let by = match machine.spec.endpoint.way() {
            Way::Runtime(socket) => By::Runtime(Runtime::connect(Path::new(socket), self.archives.clone()).await?),
            Way::Agent(socket) => By::Agent(Agent::on_socket(Path::new(socket)).await?),
            Way::Network(_) => By::Agent(Agent::on_network(self.introduction.way(machine)?.channel())),
            Way::Cri(_) => {
                let (runtime, identity) = self.introduction.runtime(machine)?;
                By::Bare(Box::new(Bare::connect(runtime, identity, self.archives.clone()).await?))
            }
        };
        Ok(Connected { by, changed: Arc::default(), listener: OnceCell::new() })
    }

    /// A machine with its name, to do something on it; else what came of that.
    async fn reach(&self, machine: &Hypervisor) -> Result<(Arc<Connected>, HypervisorName), Applying> {
        let connected = self.connect(machine).await.map_err(|why| Applying { effects: 0, failures: vec![why] })?;
        let name = machine.metadata.name.as_ref().and_then(|name| name.parse().ok());
        name.map(|name| (connected, name)).ok_or_else(Applying::default)
    }

    /// The next call connects anew.
    fn forget(&self, machine: &Hypervisor) {
        self.held().remove(&Place::of(machine));
    }

    fn held(&self) -> std::sync::MutexGuard<'_, BTreeMap<Place, Slot>> {
        // Whoever panicked with it left a map of whole entries behind.
        self.connected.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Whoever was reached and then says nothing within [`LOOK`] is the silent one.
    async fn look(&self, machine: &Hypervisor) -> Result<MachineState, Unseen> {
        let mut deadline = Instant::now() + LOOK;
        let connected = if let Way::Cri(_) = machine.spec.endpoint.way() {
            let connected = timeout(bare::FIRST, self.connect(machine)).await.map_err(|_| bare::late())??;
            deadline = Instant::now() + LOOK;
            connected
        } else {
            timeout_at(deadline, self.connect(machine)).await.map_err(|_| late())??
        };
        match &connected.by {
            By::Runtime(runtime) => {
                let silent = |_| Unseen { silent: Silent::Runtime, why: late() };
                timeout_at(deadline, runtime.observe()).await.map_err(silent)?
            }
            By::Agent(agent) => timeout_at(deadline, agent.observe()).await.map_err(|_| late())?,
            By::Bare(bare) => timeout_at(deadline, bare.observe()).await.map_err(|_| late())?,
        }
    }
}

#[async_trait]
impl Machines for ConnectedMachines {
    fn introduce(&self, documents: &Documents) -> BTreeSet<HypervisorName> {
        let changed = self.introduction.learn(documents);
        let mut dropped = BTreeSet::new();
        self.held().retain(|place, _| {
            let (machine, stays) = match place {
                Place::Socket(_) => return true,
                Place::Network { machine, via, .. } => (machine, changed.keeps_agent(via.as_deref())),
                Place::Bare(machine, cri) => (machine, changed.keeps_proxy(&cri.secret_ref)),
            };
            dropped.extend(machine.parse().ok().filter(|_: &HypervisorName| !stays));
            stays
        });
        dropped
    }

    async fn observe(&self, machine: &Hypervisor) -> Seen<MachineState> {
        match self.look(machine).await {
            Ok(state) => Seen::Known(state),
            Err(Unseen { silent, why }) => {
                self.forget(machine);
                Seen::Unreachable { silent, why }
            }
        }
    }

    async fn apply(&self, machine: &Hypervisor, config: Handover, actions: Vec<Action>, run: &Run) -> Applying {
        let (connected, name) = match self.reach(machine).await {
            Ok(reached) => reached,
            Err(applying) => return applying,
        };
        match &connected.by {
            By::Runtime(runtime) => runtime.execute(&name, actions, run).await,
            By::Agent(agent) => {
                // It decides by itself.
                drop(actions);
                agent.apply(&name, config, run).await
            }
            By::Bare(bare) => bare.execute(&name, &config.config, actions, run).await,
        }
    }

    fn clock_of(&self, machine: &Hypervisor) -> Option<Timestamp> {
        let slot = self.held().get(&Place::of(machine)).cloned()?;
        match &slot.get()?.by {
            By::Agent(agent) => agent.time(),
            By::Runtime(_) | By::Bare(_) => None,
        }
    }

    async fn config(
        &self,
        machine: &Hypervisor,
        installation: &InstallationId,
    ) -> Result<Option<MachineConfig>, String> {
        let connected = self.connect(machine).await?;
        match &connected.by {
            By::Agent(agent) => agent.config(installation).await,
            By::Runtime(_) | By::Bare(_) => Err("the machine has no agent, and keeps no config".to_owned()),
        }
    }

    async fn fence(&self, machine: &Hypervisor, term: u64) -> Result<u64, String> {
        let installation = machine.status.as_ref().and_then(|status| status.installation.clone());
        let (Some(installation), true) = (installation, has_agent(machine)) else { return Ok(0) };
        let connected = timeout(LOOK, self.connect(machine)).await.map_err(|_| late())??;
        match &connected.by {
            By::Agent(agent) => agent.fence(Leader { installation, term }).await,
            By::Runtime(_) | By::Bare(_) => Ok(0),
        }
    }

    async fn adopt(&self, machine: &Hypervisor, installation: &InstallationId, run: &Run) -> Applying {
        let (connected, name) = match self.reach(machine).await {
            Ok(reached) => reached,
            Err(applying) => return applying,
        };
        match &connected.by {
            By::Runtime(runtime) => runtime.execute(&name, vec![Action::WriteOwner(installation.clone())], run).await,
            By::Agent(agent) => agent.adopt(installation).await,
            By::Bare(bare) => bare.adopt(&name, installation, run).await,
        }
    }

    async fn certify(&self, machine: &Hypervisor, certifying: &Certifying<'_>, run: &Run) -> Applying {
        let done = certify::certify(self, machine, certifying, run).await;
        if matches!(certifying.order(), AgentOrder::Enroll(_)) {
            // It answers as somebody else from now on.
            self.forget(machine);
        }
        done
    }

    async fn dial(&self, machine: &Hypervisor, address: SocketAddr, patience: Duration) -> io::Result<Connection> {
        let connected = self.connect(machine).await.map_err(io::Error::other)?;
        match &connected.by {
            By::Runtime(runtime) => runtime.dial(address, patience).await,
            By::Agent(agent) => agent.dial(address, patience).await,
            By::Bare(_) => bare::dial(address, patience).await,
        }
    }

    async fn get(&self, machine: &Hypervisor, question: Question) -> Option<Result<u16, String>> {
        let Way::Cri(_) = machine.spec.endpoint.way() else { return None };
        match &self.connect(machine).await {
            Ok(connected) => match &connected.by {
                By::Bare(bare) => Some(bare.get(question).await),
                By::Runtime(_) | By::Agent(_) => None,
            },
            Err(why) => Some(Err(why.clone())),
        }
    }

    async fn part(&self) {
        let held: Vec<Arc<Connected>> = self.held().values().filter_map(|slot| slot.get().cloned()).collect();
        join_all(held.iter().map(|connected| connected.part())).await;
    }

    async fn changed(&self, machines: &[&Hypervisor]) {
        let held: Vec<Arc<Connected>> = {
            let held = self.held();
            machines.iter().filter_map(|machine| held.get(&Place::of(machine))?.get().cloned()).collect()
        };
        if held.is_empty() {
            return std::future::pending().await;
        }
        let listened = join_all(held.iter().map(|connected| connected.listen())).await;
        // What changed before anybody listened was told to nobody.
        if listened.contains(&Listened::FromNowOn) {
            return;
        }
        let told = select_all(held.iter().map(|connected| Box::pin(connected.changed.notified())));
        if listened.contains(&Listened::Not) {
            let _ = timeout(UNHEARD, told).await;
        } else {
            told.await;
        }
    }
}
