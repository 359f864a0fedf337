//! The agent as a container that a driver starts through the machine's container runtime. The driver runs these commands in it.
//!
//! The commands need no secret: the key never leaves the machine, and certificates are public. A client that can run them can use the container
//! runtime, and is therefore root on the machine.

use std::{
    fs::{self, DirBuilder},
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    time::Duration,
};

use jiff::Timestamp;
use keelway_agent_api::{
    client::{AgentClientError, HypervisorAgentClient},
    enrollment::DriverTrust,
};
use keelway_api::{machine::STATE_DIRECTORY, name::InstallationId};
use keelway_machine::layout::{LOG_DIRECTORY, agent_directory, agent_log_directory};
use tokio::{
    net::UnixStream,
    time::{interval, timeout},
};

use crate::enrollment::IdentityFolder;

/// How long an agent may take until it listens on its socket.
const STARTS: Duration = Duration::from_secs(10);
/// How long a call to the agent may take.
const ANSWER: Duration = Duration::from_secs(10);

/// A command of the driver failed.
#[derive(Debug, thiserror::Error)]
pub enum ContainerCommandError {
    /// The agent does not listen.
    #[error("the agent did not listen on {} within {} s", .0.display(), STARTS.as_secs())]
    Socket(PathBuf),
    /// The agent refused the call.
    #[error(transparent)]
    Agent(#[from] AgentClientError),
    /// A file or directory cannot be used.
    #[error("cannot use {}", path.display())]
    Files {
        /// The path that failed.
        path: PathBuf,
        /// The error of the file system.
        #[source]
        source: io::Error,
    },
}

/// Returns a signing request for a new key of the agent. Returns `None` if the agent has a certificate that is valid.
pub async fn request_certificate(
    socket: &Path,
    folder: &IdentityFolder,
) -> Result<Option<String>, ContainerCommandError> {
    let path = folder.path().to_owned();
    let expiry = folder.expiry().map_err(|source| ContainerCommandError::Files { path, source })?;
    if expiry.is_some_and(|expiry| Timestamp::now() < expiry) {
        return Ok(None);
    }
    listens(socket).await?;
    Ok(Some(HypervisorAgentClient::on_socket(socket).request_certificate(ANSWER).await?))
}

/// Sends the agent the certificate that was issued for its last request.
pub async fn install_certificate(
    socket: &Path,
    certificate: String,
    trust: DriverTrust,
) -> Result<(), ContainerCommandError> {
    Ok(HypervisorAgentClient::on_socket(socket).give_identity(Some(certificate), trust, ANSWER).await?)
}

async fn listens(socket: &Path) -> Result<(), ContainerCommandError> {
    let mut again = interval(Duration::from_millis(20));
    let listens = async {
        while UnixStream::connect(socket).await.is_err() {
            again.tick().await;
        }
    };
    timeout(STARTS, listens).await.map_err(|_| ContainerCommandError::Socket(socket.to_owned()))
}

/// Creates the directories that are mounted into the agent's container. Components pass through Keelway's own; the others are root's.
pub fn make_directories(installation: &InstallationId) -> Result<(), ContainerCommandError> {
    let shared = [STATE_DIRECTORY, LOG_DIRECTORY].map(|path| (path.to_owned(), 0o711));
    let own = [agent_directory(installation), agent_log_directory(installation)].map(|path| (path, 0o700));
    for (path, mode) in shared.into_iter().chain(own) {
        let made = DirBuilder::new().recursive(true).mode(mode).create(&path);
        made.map_err(failed(Path::new(&path)))?;
    }
    Ok(())
}

/// Removes the agent's identity and logs, and each of the directories that is empty after that.
pub fn remove_directories(installation: &InstallationId) -> Result<(), ContainerCommandError> {
    for path in [agent_directory(installation), agent_log_directory(installation)] {
        let path = Path::new(&path);
        absent_is_fine(fs::remove_dir_all(path)).map_err(failed(path))?;
        path.parent().map_or(Ok(()), remove_empty)?;
    }
    [STATE_DIRECTORY, LOG_DIRECTORY].into_iter().try_for_each(|path| remove_empty(Path::new(path)))
}

fn remove_empty(path: &Path) -> Result<(), ContainerCommandError> {
    match absent_is_fine(fs::remove_dir(path)) {
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(()),
        removed => removed.map_err(failed(path)),
    }
}

fn absent_is_fine(removed: io::Result<()>) -> io::Result<()> {
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        removed => removed,
    }
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> ContainerCommandError {
    move |source| ContainerCommandError::Files { path: path.to_owned(), source }
}
