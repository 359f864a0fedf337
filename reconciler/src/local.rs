//! Machines behind local CRI sockets.

use std::{
    collections::BTreeMap,
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
    time::Duration,
};

use async_trait::async_trait;
use futures::future::select_all;
use keelway_api::{
    Hypervisor,
    machine::{MachineConfig, MachineState, Seen},
    name::HypervisorName,
};
use keelway_hypervisor_agent::{
    LocalMachine,
    action::Action,
    report::{Effect, chain_text},
};
use tokio::{net::TcpStream, sync::Notify, task::JoinHandle, time::timeout};

use crate::{Applying, Machines, Run};

/// How long a look at a machine may take, before it counts as out of reach.
const LOOK: Duration = Duration::from_secs(10);

/// Machines whose sockets are on this one; a connection to each is kept.
pub struct LocalMachines {
    archives: PathBuf,
    connected: Mutex<BTreeMap<PathBuf, Arc<Connected>>>,
}

struct Connected {
    machine: LocalMachine,
    changed: Arc<Notify>,
    listener: JoinHandle<()>,
}

impl Drop for Connected {
    fn drop(&mut self) {
        self.listener.abort();
    }
}

impl LocalMachines {
    /// Images that a machine lacks come from this directory of archives where it has them, else from their registry.
    #[must_use]
    pub fn new(archives: PathBuf) -> Self {
        Self { archives, connected: Mutex::default() }
    }

    async fn connect(&self, machine: &Hypervisor) -> Result<Arc<Connected>, String> {
        let path = PathBuf::from(machine.spec.endpoint.socket());
        if let Some(found) = self.held().get(&path) {
            return Ok(Arc::clone(found));
        }
        let made = Arc::new(self.make(&path).await.map_err(|error| chain_text(&error))?);
        self.held().insert(path, Arc::clone(&made));
        Ok(made)
    }

    /// The runtime's events are subscribed to before the first look, so that no change between them is missed.
    async fn make(&self, socket: &Path) -> Result<Connected, keelway_hypervisor_agent::ConnectError> {
        let machine = LocalMachine::connect(socket, Some(self.archives.clone())).await?;
        let changed = Arc::new(Notify::new());
        let mut events = machine.runtime().events();
        let told = Arc::clone(&changed);
        let listener = tokio::spawn(async move {
            while let Some(Ok(_)) = events.next().await {
                told.notify_one();
            }
            told.notify_one();
        });
        Ok(Connected { machine, changed, listener })
    }

    /// The next call connects anew.
    fn forget(&self, machine: &Hypervisor) {
        self.held().remove(Path::new(machine.spec.endpoint.socket()));
    }

    fn held(&self) -> std::sync::MutexGuard<'_, BTreeMap<PathBuf, Arc<Connected>>> {
        // Whoever panicked with it left a map of whole entries behind.
        self.connected.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    async fn look(&self, machine: &Hypervisor) -> Result<MachineState, String> {
        let connected = self.connect(machine).await?;
        connected.machine.observe().await.map_err(|error| chain_text(&error))
    }
}

#[async_trait]
impl Machines for LocalMachines {
    async fn observe(&self, machine: &Hypervisor) -> Seen<MachineState> {
        let looked = timeout(LOOK, self.look(machine)).await;
        let looked = looked.unwrap_or_else(|_| Err(format!("it does not answer within {} s", LOOK.as_secs())));
        looked.map_or_else(
            |why| {
                self.forget(machine);
                Seen::Unreachable { why }
            },
            Seen::Known,
        )
    }

    async fn apply(&self, machine: &Hypervisor, _config: &MachineConfig, actions: Vec<Action>, run: &Run) -> Applying {
        let connected = match self.connect(machine).await {
            Ok(connected) => connected,
            Err(why) => return Applying { effects: 0, failures: vec![why] },
        };
        let name: Option<HypervisorName> = machine.metadata.name.as_ref().and_then(|name| name.parse().ok());
        let tell = |effect: Effect<'_>| {
            let Some(name) = &name else { return };
            match effect {
                Effect::Begins(action) => {
                    tracing::debug!(machine = %name, %action, "begins");
                    run.progress.effect(name, &action.to_string());
                }
                Effect::Done(action) => tracing::info!(machine = %name, %action, "done"),
                Effect::Failed(action, why) => tracing::info!(machine = %name, %action, why, "failed"),
            }
        };
        let report = connected.machine.execute(actions, &run.stop, &tell).await;
        let failures = report.failed.iter().map(|failure| format!("{}: {}", failure.action, failure.error)).collect();
        Applying { effects: report.done.len(), failures }
    }

    async fn dial(&self, machine: &Hypervisor, address: SocketAddr, patience: Duration) -> io::Result<TcpStream> {
        let connected = self.connect(machine).await.map_err(io::Error::other)?;
        connected.machine.dial(address, patience).await.map_err(io::Error::other)
    }

    async fn changed(&self, machines: &[&Hypervisor]) {
        let held: Vec<Arc<Connected>> = {
            let held = self.held();
            let paths = machines.iter().map(|machine| Path::new(machine.spec.endpoint.socket()));
            paths.filter_map(|path| held.get(path).cloned()).collect()
        };
        if held.is_empty() {
            return std::future::pending().await;
        }
        select_all(held.iter().map(|connected| Box::pin(connected.changed.notified()))).await;
    }
}
