//! A machine whose CRI socket is on this one.

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use keelway_api::machine::{MachineConfig, MachineState};
use keelway_cri::{CriRuntime, Deadlines};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use crate::{
    access::{AccessError, MachineAccess},
    action::Action,
    converge::converge,
    execute,
    fetched_images::Fetches,
    figures::PeerCounts,
    files::{MachineFileError, MachineFiles},
    helper::HelperError,
    image::ImageFetchLocks,
    machine_io::MachineIo,
    observe::{self, ObserveError},
    refusal::ConfigRefusal,
    report::{ApplyReport, Effect},
    socket,
};

/// How long work on the machine's files may take: as long as a runtime has for a change.
const FILES_DEADLINE: Duration = Duration::from_secs(120);

/// A machine, with what its runtime and its file system offer. Each of its pods, and its records, are worked on by one at a
/// time.
#[derive(Debug)]
pub struct Machine<S> {
    pub(crate) site: S,
    pub(crate) runtime: CriRuntime,
    pub(crate) archives: Option<PathBuf>,
    pub(crate) fetch_locks: ImageFetchLocks,
    pub(crate) peers: PeerCounts,
    pub(crate) fetches: Fetches,
}

/// A machine whose CRI socket is on this one.
pub type LocalMachine = Machine<MachineAccess>;

/// Why a machine cannot be used at all.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The process behind the socket cannot be used.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The socket cannot be one of a runtime.
    #[error(transparent)]
    Runtime(#[from] keelway_cri::CriError),
}

/// Why nothing was done on a machine.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// It could not be observed.
    #[error(transparent)]
    Observe(#[from] ObserveError),
    /// It does not take the config.
    #[error(transparent)]
    Refused(#[from] ConfigRefusal),
}

/// Why work on a machine's files was not done.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// The machine's root cannot be reached.
    #[error(transparent)]
    Access(#[from] AccessError),
    /// The work failed.
    #[error(transparent)]
    Files(#[from] MachineFileError),
    /// The file system hangs. The work may still be done later.
    #[error("the machine's file system gave no answer within {} s", FILES_DEADLINE.as_secs())]
    TimedOut,
    /// The thread that worked on it ended early.
    #[error("the work on the machine's files was cut off")]
    CutOff,
    /// A component does not listen, or ended before its answer did.
    #[error("cannot talk to the component")]
    Talk(#[source] io::Error),
    /// A component is there and says nothing.
    #[error("a component gave no answer within {} s", socket::PATIENCE.as_secs())]
    Silent,
    /// A component says something else than it was asked.
    #[error("the component gave another answer than {0}")]
    Unexpected(&'static str),
    /// The machine's helper did not do it.
    #[error(transparent)]
    Helper(#[from] HelperError),
}

impl LocalMachine {
    /// The machine behind a CRI socket, given by its absolute path as this process sees it. Images that the machine lacks
    /// come from the directory `archives` where it has them (see [`crate::image::archive_name`]), else from their registry.
    pub async fn connect(socket: &Path, archives: Option<PathBuf>) -> Result<Self, ConnectError> {
        let runtime = CriRuntime::on_socket(socket, Deadlines::default())?;
        let access = MachineAccess::of_socket(socket).await?;
        Ok(Self::new(access, runtime, archives))
    }

    /// A TCP connection from the machine's network, made within the given time.
    pub async fn dial(&self, address: SocketAddr, within: Duration) -> Result<TcpStream, AccessError> {
        self.site.dial(address, within).await
    }

    /// Works on the machine's files, off the threads that other work waits for.
    pub(crate) async fn with_files<T: Send + 'static>(
        &self,
        work: impl FnOnce(MachineFiles<'_>) -> Result<T, MachineFileError> + Send + 'static,
    ) -> Result<T, FilesError> {
        self.site.with_files(work).await
    }
}

impl<S: MachineIo> Machine<S> {
    /// A machine put together from its parts.
    #[must_use]
    pub fn new(site: S, runtime: CriRuntime, archives: Option<PathBuf>) -> Self {
        Self {
            site,
            runtime,
            archives,
            fetch_locks: ImageFetchLocks::default(),
            peers: PeerCounts::default(),
            fetches: Fetches::default(),
        }
    }

    /// The machine's runtime.
    #[must_use]
    pub fn runtime(&self) -> &CriRuntime {
        &self.runtime
    }

    /// What is on the machine right now. Changes nothing.
    pub async fn observe(&self) -> Result<MachineState, ObserveError> {
        Box::pin(observe::observe(self)).await
    }

    /// Executes actions that were planned on a recent observation. Pods do not wait for each other; an action that fails
    /// ends its pod's part. Once `stop` is cancelled no action begins, and those that began are done.
    pub async fn execute(
        &self,
        actions: Vec<Action>,
        stop: &CancellationToken,
        on_effect: &(dyn Fn(Effect<'_>) + Send + Sync),
    ) -> ApplyReport {
        execute::execute(&execute::LocalExecutor::new(self), &actions, stop, on_effect).await
    }

    /// Brings the machine to what the config says: observes, plans, executes, once.
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
    /// Works on the machine's files, off the threads that other work waits for.
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
