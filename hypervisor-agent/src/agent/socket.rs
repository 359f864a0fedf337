//! The agent's own socket: root's, and nobody else's.

use std::{
    fs::{self, DirBuilder, File, Permissions},
    io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

use futures::{Stream, stream};
use rustix::{
    fs::{FlockOperation, flock},
    process::geteuid,
};
use tokio::net::{UnixListener, UnixStream};

/// Why there is no socket.
#[derive(Debug, thiserror::Error)]
pub enum AgentSocketError {
    /// Its directory, its lock or itself could not be made.
    #[error("cannot make {}", path.display())]
    Make {
        /// What.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A machine has one agent.
    #[error("another agent serves {}; stop it first", path.display())]
    Taken {
        /// The socket.
        path: PathBuf,
    },
}

/// A socket that takes connections of this process' own user and of root. What an agent that was killed left of it is cleared
/// away; two at once there are never, which a lock beside it sees to.
#[derive(Debug)]
pub struct AgentUnixSocket {
    path: PathBuf,
    socket: UnixListener,
    _lock: File,
}

impl AgentUnixSocket {
    /// Listens on a path; its directory is made where it is missing.
    pub fn bind(path: &Path) -> Result<Self, AgentSocketError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| AgentSocketError::Make { path, source }
        };
        let directory = path.parent().unwrap_or(Path::new("/"));
        DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed(directory))?;
        let lock_path = path.with_extension("lock");
        let lock = File::options().create(true).truncate(false).write(true).mode(0o600).open(&lock_path);
        let lock = lock.map_err(failed(&lock_path))?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(AgentSocketError::Taken { path: path.to_owned() });
        }
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(path)(error)),
            _ => {}
        }
        let socket = UnixListener::bind(path).map_err(failed(path))?;
        fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(failed(path))?;
        Ok(Self { path: path.to_owned(), socket, _lock: lock })
    }

    /// Connections of those who may.
    pub(crate) fn connections(self) -> impl Stream<Item = io::Result<UnixStream>> {
        stream::unfold(self, async |listener| {
            let connection = listener.accept().await;
            Some((connection, listener))
        })
    }

    async fn accept(&self) -> io::Result<UnixStream> {
        loop {
            let (stream, _) = self.socket.accept().await?;
            match stream.peer_cred() {
                Ok(peer) if peer.uid() == 0 || peer.uid() == geteuid().as_raw() => return Ok(stream),
                Ok(peer) => tracing::warn!(uid = peer.uid(), pid = peer.pid(), "refused a connection"),
                Err(error) => tracing::warn!(%error, "refused a connection of nobody knows whom"),
            }
        }
    }
}

impl Drop for AgentUnixSocket {
    fn drop(&mut self) {
        // The next agent clears it away, too.
        let _ = fs::remove_file(&self.path);
    }
}
