//! The sockets that the API server connects to.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixListener;
use tokio::sync::Semaphore;

use super::config::SocketMode;
use crate::connect::{Opener, serve};

/// Connections that are not tunnels yet; more are closed.
const MOST_CONVERSATIONS: usize = 256;

/// Listens at a path, in place of what an earlier process left there. Nobody can connect before the permissions are right.
pub(super) fn listen(path: &Path, mode: SocketMode) -> io::Result<UnixListener> {
    let next = path.with_extension("next");
    match fs::remove_file(&next) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&next)?;
    fs::set_permissions(&next, Permissions::from_mode(mode.0))?;
    fs::rename(&next, path)?;
    Ok(listener)
}

/// Answers whoever connects, until it is dropped.
pub(super) async fn accept<O: Opener>(listener: UnixListener, opener: Arc<O>) {
    let room = Arc::new(Semaphore::new(MOST_CONVERSATIONS));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Only a shortage of descriptors or memory comes here, and that takes a moment to pass.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let Ok(place) = Arc::clone(&room).try_acquire_owned() else {
            tracing::warn!("closed: too many connections that are no tunnels yet");
            continue;
        };
        let opener = Arc::clone(&opener);
        tokio::spawn(async move {
            let _place = place;
            if let Err(error) = serve(stream, opener).await {
                tracing::debug!(%error, "a connection broke off");
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_takes_the_place_of_the_one_before_with_its_permissions() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cluster.sock");
        drop(listen(&path, SocketMode(0o660)).unwrap());
        let listener = listen(&path, SocketMode(0o600)).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let (connected, accepted) = tokio::join!(tokio::net::UnixStream::connect(&path), listener.accept());
        assert!(connected.is_ok() && accepted.is_ok());
    }
}
