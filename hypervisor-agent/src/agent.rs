//! The agent: one process beside the runtime's socket that keeps a machine as its config says, with nobody's help.
//!
//! ```text
//!   runtime ── events ──> keeper: observe, converge, supervise, execute ──> runtime, files
//!                            ^                  |
//!   driver ── Apply ──> book (the config, on disk)  `── board ──> WatchState, progress of Apply
//! ```
//!
//! The driver comes by the agent's own socket, where it is on the same machine, or by its port, where there is one.
//!
//! The keeper decides alone, on one task; what takes time are tasks beside it, so that a pod that drains keeps no other one
//! waiting. Nothing that a caller does, or fails to read, holds the keeper or the runtime up.

mod accepted_config;
mod cleanup;
mod config_store;
mod ended_containers;
mod events;
mod exchange;
mod journal;
mod log_stream;
mod network;
mod probe;
mod reconciler;
mod reconciler_channel;
mod rotation;
mod service;
mod socket;
mod state_changes;

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use keelway_api::machine::hex;
use keelway_cri::{CriRuntime, Deadlines};
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::{LocalMachine, access::MachineAccess, fanout::Fanout};
pub use cleanup::ImageLimits;
use config_store::ConfigStore;
pub use config_store::ConfigStoreError;
pub(crate) use events::follow;
use journal::EventJournal;
pub use network::{AgentNetwork, AgentNetworkError, ConnectionLimits, DRIVER};
use reconciler::AgentReconciler;
pub use reconciler::AgentTaskError;
use reconciler_channel::ReconcilerChannel;
pub use rotation::LogLimits;
pub(crate) use service::MAX_MESSAGE;
pub use socket::{AgentSocketError, AgentUnixSocket};

/// How long the runtime may take to tell what there is: less than who asks an agent waits for it.
const LOOK: Duration = Duration::from_secs(8);

/// Why an agent ended.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// The machine's own root cannot be opened.
    #[error("cannot open the root directory")]
    Root(#[source] io::Error),
    /// The runtime's socket cannot be one.
    #[error(transparent)]
    Runtime(#[from] keelway_cri::CriError),
    /// The machine's records cannot be read.
    #[error(transparent)]
    ConfigStore(#[from] ConfigStoreError),
    /// The API cannot be served.
    #[error("cannot serve keelway.agent.v1")]
    Serve(#[source] tonic::transport::Error),
    /// Supervision ended early.
    #[error(transparent)]
    Task(#[from] AgentTaskError),
}

/// Where an agent is spoken with: its socket, which a machine has one of, and a network, where it is on one.
#[derive(Debug)]
pub struct AgentListeners {
    /// The socket.
    pub socket: AgentUnixSocket,
    /// The network.
    pub network: Option<AgentNetwork>,
}

impl From<AgentUnixSocket> for AgentListeners {
    fn from(socket: AgentUnixSocket) -> Self {
        Self { socket, network: None }
    }
}

/// The machine that this process is on, with its runtime behind a socket.
pub fn own_machine(runtime: &Path, archives: Option<PathBuf>) -> Result<LocalMachine, AgentError> {
    let root = File::open("/").map_err(AgentError::Root)?;
    let runtime = CriRuntime::on_socket(runtime, Deadlines { look: LOOK, ..Deadlines::default() })?;
    Ok(LocalMachine::new(MachineAccess::of_root(root.into()), runtime, archives))
}

/// Keeps a machine until it is told to stop. What runs then goes on running.
pub async fn run(
    machine: LocalMachine,
    entrances: impl Into<AgentListeners>,
    stop: CancellationToken,
) -> Result<(), AgentError> {
    run_with_limits(machine, entrances, AgentLimits::default(), stop).await
}

/// How much of a machine's disk an agent lets logs and images have.
#[derive(Debug, Clone, Copy, Default)]
pub struct AgentLimits {
    /// Of logs.
    pub logs: LogLimits,
    /// Of images.
    pub images: ImageLimits,
}

/// The same, within limits.
pub async fn run_with_limits(
    machine: LocalMachine,
    entrances: impl Into<AgentListeners>,
    limits: AgentLimits,
    stop: CancellationToken,
) -> Result<(), AgentError> {
    machine.fetches.open(&machine.site).await;
    let machine = Arc::new(machine);
    let book = Arc::new(ConfigStore::open(Arc::clone(&machine)).await?);
    let board = Arc::new(ReconcilerChannel::default());
    let (journal, on_the_way) =
        EventJournal::open(&machine, book.current().is_some() || book.lost_config().is_some()).await;
    let journal = Arc::new(journal);
    let writing = tokio::spawn(Arc::clone(&journal).persist(Arc::clone(&machine), on_the_way));
    let changed = Arc::new(Notify::new());
    let events = Arc::new(Fanout::default());
    let following = tokio::spawn(events::follow(machine.runtime().clone(), Arc::clone(&events), Arc::clone(&changed)));
    let records = (Arc::clone(&book), Arc::clone(&board), Arc::clone(&journal));
    let keeper = AgentReconciler::new(Arc::clone(&machine), records, limits.images);
    let rotating = tokio::spawn(rotation::rotate_logs(Arc::clone(&machine), Arc::clone(&board), limits.logs));
    let entrances = entrances.into();
    let standing = entrances.network.as_ref().map(AgentNetwork::tls_identity);
    let places = Arc::new(Semaphore::new(log_stream::AT_ONCE));
    let id = hex(&rand::random::<[u8; 16]>());
    let service = service::AgentService {
        machine,
        config_store: book,
        channel: board,
        journal,
        tls_identity: standing,
        log_permits: places,
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
