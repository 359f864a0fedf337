//! Unix sockets, protected by the permissions of the file system.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use tokio::net::UnixListener;

/// Listens at a path, and replaces a socket of an earlier process. No client can connect before the permissions are set.
///
/// # Errors
/// The socket cannot be created, or cannot be renamed to its path.
pub fn listen(path: &Path, mode: u32) -> io::Result<UnixListener> {
    let next = path.with_extension("next");
    match fs::remove_file(&next) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let listener = UnixListener::bind(&next)?;
    fs::set_permissions(&next, Permissions::from_mode(mode))?;
    fs::rename(&next, path)?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_socket_replaces_an_earlier_one_and_sets_permissions() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("cluster.sock");
        drop(listen(&path, 0o660).unwrap());
        let listener = listen(&path, 0o600).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let (connected, accepted) = tokio::join!(tokio::net::UnixStream::connect(&path), listener.accept());
        assert!(connected.is_ok() && accepted.is_ok());
    }
}
