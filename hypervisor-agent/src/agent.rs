//! The agent: a process beside the container runtime that keeps a machine as its config requires, without any other program.
//!
//! ```text
//!   runtime ── events ──> reconciler: observe, converge, supervise, execute ──> runtime, files
//!                            ^                  |
//!   driver ── Apply ──> config store (disk)     `── reconciler channel ──> WatchState, progress of Apply
//! ```
//!
//! A driver on the same machine connects to the agent's socket. Other drivers connect to its port, if the agent has one.
//!
//! The reconciler decides on one task. Work that takes time runs in separate tasks, so a pod that drains does not delay other pods. A slow or
//! disconnected caller delays neither the reconciler nor the runtime.

mod accepted_config;
mod cleanup;
mod config_store;
mod data_restore;
mod ended_containers;
mod exchange;
mod journal;
mod log_stream;
mod network;
mod prefetch;
mod probe;
mod reconciler;
mod reconciler_channel;
mod rotation;
mod service;
mod state_changes;

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use keelway_api::machine::hex;
use keelway_base::root_socket::RootSocket;
use keelway_cri::proxy::follow;
use keelway_cri::{CriRuntime, Deadlines, proxy::fanout::Fanout};
use keelway_machine_io::{access::MachineAccess, local::LocalMachine};
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;

pub use cleanup::ImageLimits;
use config_store::ConfigStore;
pub use config_store::ConfigStoreError;
use journal::EventJournal;
pub use network::{AgentNetwork, AgentNetworkError, ConnectionLimits, DRIVER};
use reconciler::AgentReconciler;
pub use reconciler::AgentTaskError;
use reconciler_channel::ReconcilerChannel;
pub use rotation::LogLimits;

/// The deadline of queries to the runtime. It is shorter than the time that a driver waits for a response of the agent.
const LOOK: Duration = Duration::from_secs(8);

/// The agent ended with an error.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The root directory of the machine cannot be opened.
    #[error("cannot open the root directory")]
    Root(#[source] io::Error),
    /// The path of the runtime's socket is invalid.
    #[error(transparent)]
    Runtime(#[from] keelway_cri::CriError),
    /// The machine's records cannot be read.
    #[error(transparent)]
    ConfigStore(#[from] ConfigStoreError),
    /// The gRPC API cannot be served.
    #[error("cannot serve keelway.agent.v1")]
    Serve(#[source] tonic::transport::Error),
    /// A task of the agent ended unexpectedly.
    #[error(transparent)]
    Task(#[from] AgentTaskError),
}

/// Where an agent accepts calls: always on its Unix socket, and optionally on a network.
#[derive(Debug)]
pub struct AgentListeners {
    /// The Unix socket.
    pub socket: RootSocket,
    /// The network, if the agent uses one.
    pub network: Option<AgentNetwork>,
}

impl From<RootSocket> for AgentListeners {
    fn from(socket: RootSocket) -> Self {
        Self { socket, network: None }
    }
}

/// Returns the machine that this process runs on, with the runtime behind a socket. `archives` is a directory of image archives.
pub fn own_machine(runtime: &Path, archives: Option<PathBuf>) -> Result<LocalMachine, AgentError> {
    let root = File::open("/").map_err(AgentError::Root)?;
    let runtime = CriRuntime::on_socket(runtime, Deadlines { look: LOOK, ..Deadlines::default() })?;
    Ok(LocalMachine::new(MachineAccess::of_root(root.into()), runtime, archives))
}

/// Runs the agent with default limits until `stop` is cancelled. Running components continue after that.
pub async fn run(
    machine: LocalMachine,
    entrances: impl Into<AgentListeners>,
    stop: CancellationToken,
) -> Result<(), AgentError> {
    run_with_limits(machine, entrances, AgentLimits::default(), stop).await
}

/// Limits on the disk space of logs and images.
#[derive(Debug, Clone, Copy, Default)]
pub struct AgentLimits {
    /// Limits for logs.
    pub logs: LogLimits,
    /// Limits for images.
    pub images: ImageLimits,
}

/// Runs the agent with the given limits until `stop` is cancelled. Running components continue after that.
pub async fn run_with_limits(
    machine: LocalMachine,
    entrances: impl Into<AgentListeners>,
    limits: AgentLimits,
    stop: CancellationToken,
) -> Result<(), AgentError> {
    machine.fetches.open(&machine.access).await;
    let machine = Arc::new(machine);
    let config_store = Arc::new(ConfigStore::open(Arc::clone(&machine)).await?);
    let channel = Arc::new(ReconcilerChannel::default());
    let (journal, on_the_way) =
        EventJournal::open(&machine, config_store.current().is_some() || config_store.lost_config().is_some()).await;
    let journal = Arc::new(journal);
    let writing = tokio::spawn(Arc::clone(&journal).persist(Arc::clone(&machine), on_the_way));
    let changed = Arc::new(Notify::new());
    let events = Arc::new(Fanout::default());
    let following = tokio::spawn(follow::follow(machine.runtime().clone(), Arc::clone(&events), Arc::clone(&changed)));
    let records = (Arc::clone(&config_store), Arc::clone(&channel), Arc::clone(&journal));
    let keeper = AgentReconciler::new(Arc::clone(&machine), records, limits.images);
    let rotating = tokio::spawn(rotation::rotate_logs(Arc::clone(&machine), Arc::clone(&channel), limits.logs));
    let entrances = entrances.into();
    let tls_identity = entrances.network.as_ref().map(AgentNetwork::tls_identity);
    let places = Arc::new(Semaphore::new(log_stream::AT_ONCE));
    let id = hex(&rand::random::<[u8; 16]>());
    let restorer = data_restore::DataRestorer::new(Arc::clone(&machine), Arc::clone(&config_store));
    let service = service::AgentService {
        machine,
        config_store,
        channel,
        journal,
        tls_identity,
        log_permits: places,
        restorer,
        id,
    };
    let served = service::serve(service, events, entrances, stop.clone());
    let ended = tokio::select! {
        kept = keeper.run(&changed, &stop) => kept.map_err(AgentError::Task),
        served = served => served.map_err(AgentError::Serve),
    };
    following.abort();
    writing.abort();
    rotating.abort();
    ended
}
