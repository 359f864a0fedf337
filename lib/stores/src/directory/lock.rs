//! Ensures that only one process writes into a directory.

use std::{
    fs::{File, OpenOptions},
    io::{self, Read, Seek, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use rustix::fs::{FlockOperation, flock};

/// Why a directory could not be locked.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryLockError {
    /// Another process holds the lock.
    #[error("{} is in use by process {holder}; stop that process, or use another directory", path.display())]
    Held {
        /// The path of the directory.
        path: PathBuf,
        /// The process id that the holder wrote into the lock file.
        holder: String,
    },
    /// The lock file cannot be opened or locked.
    #[error("could not lock {}", path.display())]
    Io {
        /// The path of the lock file.
        path: PathBuf,
        /// The cause.
        #[source]
        cause: io::Error,
    },
}

/// The lock on a directory. The kernel releases it if the process ends.
#[derive(Debug)]
pub(super) struct DirectoryLock {
    _file: File,
}

impl DirectoryLock {
    pub(super) fn take(root: &Path) -> Result<Self, DirectoryLockError> {
        let path = root.join("lock");
        let fail = |cause| DirectoryLockError::Io { path: path.clone(), cause };
        let mut options = OpenOptions::new();
        let mut file =
            options.read(true).write(true).create(true).truncate(false).mode(0o600).open(&path).map_err(fail)?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => {
                let mut holder = String::new();
                let _ = (&file).take(20).read_to_string(&mut holder);
                return Err(DirectoryLockError::Held { path: root.to_owned(), holder: holder.trim().to_owned() });
            }
            Err(error) => return Err(fail(error.into())),
        }
        let mut tell = || {
            file.set_len(0)?;
            file.rewind()?;
            writeln!(file, "{}", std::process::id())
        };
        tell().map_err(fail)?;
        Ok(Self { _file: file })
    }
}
