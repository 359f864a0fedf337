//! A Unix socket of one process that only root can use.

use std::{
    fs::{self, DirBuilder, File},
    io,
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
};

use futures::{Stream, stream};
use rustix::{
    fs::{FlockOperation, flock},
    process::geteuid,
};
use tokio::net::{UnixListener, UnixStream};

use crate::unix_listener;

/// The socket could not be created.
#[derive(Debug, thiserror::Error)]
pub enum RootSocketError {
    /// The directory, the lock file or the socket could not be created.
    #[error("cannot create {}", path.display())]
    Make {
        /// The path that failed.
        path: PathBuf,
        /// The error of the operation.
        #[source]
        source: io::Error,
    },
    /// Another process uses the socket.
    #[error("another process serves {}; stop it first", path.display())]
    Taken {
        /// The path of the socket.
        path: PathBuf,
    },
}

/// A socket that accepts connections of this process' own user and of root. A lock file beside it ensures that only one process uses it. What a killed
/// process left is removed.
#[derive(Debug)]
pub struct RootSocket {
    path: PathBuf,
    socket: UnixListener,
    _lock: File,
}

impl RootSocket {
    /// Listens on a path. Creates the directory if it is missing.
    pub fn bind(path: &Path) -> Result<Self, RootSocketError> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| RootSocketError::Make { path, source }
        };
        let directory = path.parent().unwrap_or(Path::new("/"));
        DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(failed(directory))?;
        let lock_path = path.with_extension("lock");
        let lock = File::options().create(true).truncate(false).write(true).mode(0o600).open(&lock_path);
        let lock = lock.map_err(failed(&lock_path))?;
        if flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(RootSocketError::Taken { path: path.to_owned() });
        }
        let socket = unix_listener::listen(path, 0o600).map_err(failed(path))?;
        Ok(Self { path: path.to_owned(), socket, _lock: lock })
    }

    /// Returns a stream of the permitted connections.
    pub fn connections(self) -> impl Stream<Item = io::Result<UnixStream>> {
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
                Err(error) => tracing::warn!(%error, "refused a connection of an unknown process"),
            }
        }
    }
}

impl Drop for RootSocket {
    fn drop(&mut self) {
        // If this fails, the next process removes the socket.
        let _ = fs::remove_file(&self.path);
    }
}
