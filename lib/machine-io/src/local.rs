//! A machine whose CRI socket is on this host.

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use keelway_api::machine::{MachineConfig, MachineState};
use keelway_cri::{CriRuntime, Deadlines};
use keelway_machine::{
    action::Action,
    converge::converge,
    refusal::ConfigRefusal,
    report::{ApplyReport, Effect},
};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use crate::{
    access::{AccessError, MachineAccess},
    execute,
    fetched_images::Fetches,
    figures::PeerCounts,
    files::{MachineFileError, MachineFiles},
    image::ImageFetchLocks,
    observe::{self, ObserveError},
    socket,
};

/// How long work on the machine's files may take: the same as a change in the runtime.
const FILES_DEADLINE: Duration = Duration::from_secs(120);

/// A machine whose CRI socket is on this host, with its runtime and its file system. The caller must not run two actions at the same time on one pod,
/// or on the machine's records.
#[derive(Debug)]
pub struct LocalMachine {
    /// The machine's files and network.
    pub access: MachineAccess,
    pub(crate) runtime: CriRuntime,
    pub(crate) archives: Option<PathBuf>,
    pub(crate) fetch_locks: ImageFetchLocks,
    pub(crate) peers: PeerCounts,
    /// The record of fetched images.
    pub fetches: Fetches,
}

/// A machine cannot be used at all.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The process behind the socket cannot be used.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The path of the socket is invalid.
    #[error(transparent)]
    Runtime(#[from] keelway_cri::CriError),
}

/// A config was not applied.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The machine could not be observed.
    #[error(transparent)]
    Observe(#[from] ObserveError),
    /// The machine refuses the config.
    #[error(transparent)]
    Refused(#[from] ConfigRefusal),
}

/// Work on a machine's files or components failed.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// The machine's root cannot be reached.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The file operation failed.
    #[error(transparent)]
    Files(#[from] MachineFileError),
    /// The file system hangs. The work may still be done later.
    #[error("the machine's file system did not respond within {} s", FILES_DEADLINE.as_secs())]
    TimedOut,
    /// The thread that did the work ended early.
    #[error("the operation on the machine's files was aborted")]
    CutOff,
    /// A component does not listen, or closed the connection before its response was complete.
    #[error("cannot connect to the component")]
    Talk(#[source] io::Error),
    /// A component accepted the connection and did not respond.
    #[error("a component did not respond within {} s", socket::PATIENCE.as_secs())]
    Silent,
    /// A component sent an unexpected response.
    #[error("the response of the component is not {0}")]
    Unexpected(&'static str),
}

impl LocalMachine {
    /// Returns the machine behind a CRI socket, by its absolute path in this process. Images that the machine lacks come from the directory
    /// `archives` if it contains them (see [`crate::image::archive_name`]), and otherwise from their registry.
    pub async fn connect(socket: &Path, archives: Option<PathBuf>) -> Result<Self, ConnectError> {
        let runtime = CriRuntime::on_socket(socket, Deadlines::default())?;
        let access = MachineAccess::of_socket(socket).await?;
        Ok(Self::new(access, runtime, archives))
    }

    /// Opens a TCP connection from the machine's network within the given time.
    pub async fn dial(&self, address: SocketAddr, within: Duration) -> Result<TcpStream, AccessError> {
        self.access.dial(address, within).await
    }

    /// Runs work on the machine's files on a thread for blocking work.
    pub async fn with_files<T: Send + 'static>(
        &self,
        work: impl FnOnce(MachineFiles<'_>) -> Result<T, MachineFileError> + Send + 'static,
    ) -> Result<T, FilesError> {
        self.access.with_files(work).await
    }

    /// Returns a machine with these parts.
    #[must_use]
    pub fn new(access: MachineAccess, runtime: CriRuntime, archives: Option<PathBuf>) -> Self {
        Self {
            access,
            runtime,
            archives,
            fetch_locks: ImageFetchLocks::default(),
            peers: PeerCounts::default(),
            fetches: Fetches::default(),
        }
    }

    /// Returns the client of the machine's runtime.
    #[must_use]
    pub fn runtime(&self) -> &CriRuntime {
        &self.runtime
    }

    /// Observes the machine. Changes nothing.
    pub async fn observe(&self) -> Result<MachineState, ObserveError> {
        Box::pin(observe::observe(self)).await
    }

    /// Executes actions that were planned on a recent observation. Pods do not wait for each other; a failed action ends the steps of its pod. Once
    /// `stop` is cancelled, no action starts, and actions that started are completed.
    pub async fn execute(
        &self,
        actions: Vec<Action>,
        stop: &CancellationToken,
        on_effect: &(dyn Fn(Effect<'_>) + Send + Sync),
    ) -> ApplyReport {
        execute::execute(&execute::LocalExecutor::new(self), &actions, stop, on_effect).await
    }

    /// Applies a config once: observes, plans, executes.
    pub async fn apply(
        &self,
        config: &MachineConfig,
        stop: &CancellationToken,
        on_effect: &(dyn Fn(Effect<'_>) + Send + Sync),
    ) -> Result<ApplyReport, ApplyError> {
        let actions = converge(config, &self.observe().await?)?;
        Ok(self.execute(actions, stop, on_effect).await)
    }
}

impl MachineAccess {
    /// Runs work on the machine's files on a thread for blocking work.
    pub(crate) async fn with_files<T: Send + 'static>(
        &self,
        work: impl FnOnce(MachineFiles<'_>) -> Result<T, MachineFileError> + Send + 'static,
    ) -> Result<T, FilesError> {
        let place = self.place().await?;
        let working = tokio::task::spawn_blocking(move || work(MachineFiles::new(place.root())));
        match tokio::time::timeout(FILES_DEADLINE, working).await {
            Ok(Ok(done)) => Ok(done?),
            Ok(Err(_)) => Err(FilesError::CutOff),
            Err(_) => Err(FilesError::TimedOut),
        }
    }
}
