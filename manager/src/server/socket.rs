//! The Unix socket of the API.

use std::{
    fs::{self, DirBuilder},
    io,
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

use futures::Stream;
use keelway_base::unix_listener;
use tokio::net::{UnixListener, UnixStream};
use tokio_stream::wrappers::UnixListenerStream;

/// The socket cannot be created.
#[derive(Debug, thiserror::Error)]
#[error("could not listen on {}", path.display())]
pub struct ManagerSocketError {
    path: PathBuf,
    #[source]
    cause: io::Error,
}

/// A listening socket. Its file is removed when serving ends.
#[derive(Debug)]
pub struct ManagerUnixSocket {
    path: PathBuf,
    socket: UnixListener,
}

impl ManagerUnixSocket {
    /// Listens on a path, for its owner and its group. Creates the directory if it does not exist. Replaces a socket that another manager left there:
    /// the caller holds the lock of the store, so that manager has ended.
    ///
    /// # Errors
    /// The socket cannot be created.
    pub fn bind(path: &Path) -> Result<Self, ManagerSocketError> {
        let make = || {
            let directory = path.parent().unwrap_or(Path::new("/"));
            DirBuilder::new().recursive(true).mode(0o755).create(directory)?;
            unix_listener::listen(path, 0o660)
        };
        let socket = make().map_err(|cause| ManagerSocketError { path: path.to_owned(), cause })?;
        Ok(Self { path: path.to_owned(), socket })
    }

    pub(super) fn connections(self) -> impl Stream<Item = io::Result<UnixStream>> {
        let guard = Removed(self.path);
        let stream = UnixListenerStream::new(self.socket);
        futures::stream::unfold((stream, guard), async |(mut stream, guard)| {
            let connection = futures::StreamExt::next(&mut stream).await?;
            Some((connection, (stream, guard)))
        })
    }
}

struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}
