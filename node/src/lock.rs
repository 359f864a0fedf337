//! A lock, so that only one of `join`, `leave` and `forget` of a worker runs at a time.

use std::{
    fs::{self, File},
    io,
    os::unix::fs::MetadataExt,
    path::PathBuf,
};

use rustix::fs::{FlockOperation, flock};

use crate::{
    files::{self, NodeFileError},
    settings::Layout,
};

/// The lock cannot be acquired.
#[derive(Debug, thiserror::Error)]
pub enum WorkerLockError {
    /// Another process holds the lock.
    #[error(
        "another `keelway node join`, `leave`, `forget` or `upgrade`, or an upgrade that the control plane ordered, is running on {0}"
    )]
    Busy(String),
    /// The directory cannot be created or opened.
    #[error(transparent)]
    File(#[from] NodeFileError),
}

/// The worker's directory, locked until this value is dropped.
#[derive(Debug)]
pub struct WorkerLock {
    _directory: File,
    /// The directory, if this process created it. It is removed at the end if it is empty.
    made: Option<PathBuf>,
}

impl Drop for WorkerLock {
    fn drop(&mut self) {
        if let Some(path) = &self.made {
            // This fails if the machine is a worker now, as intended.
            let _ = fs::remove_dir(path);
        }
    }
}

/// Locks the worker's directory. If `may_make` is set, as for `join`, it creates the directory. Otherwise it returns `None` if there is none.
///
/// # Errors
/// Another process holds the lock, or the directory cannot be created or opened.
pub fn acquire(layout: &Layout, may_make: bool) -> Result<Option<WorkerLock>, WorkerLockError> {
    let root = layout.root();
    loop {
        let is_new = may_make && !root.exists();
        if is_new {
            files::make_dir(root, 0o700)?;
        }
        let directory = match File::open(root) {
            Err(error) if error.kind() == io::ErrorKind::NotFound && may_make => continue,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(NodeFileError::new("open", root))?,
        };
        if flock(&directory, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Err(WorkerLockError::Busy(root.display().to_string()));
        }
        // The previous holder may have removed the directory, and another process may have created it again.
        let own = directory.metadata().map_err(NodeFileError::new("read the metadata of", root))?;
        if fs::metadata(root).is_ok_and(|now| (now.dev(), now.ino()) == (own.dev(), own.ino())) {
            return Ok(Some(WorkerLock { _directory: directory, made: is_new.then(|| root.to_owned()) }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_process_holds_the_lock() {
        let directory = tempfile::tempdir().unwrap();
        let layout = Layout::new(directory.path().join("node"));
        assert!(acquire(&layout, false).unwrap().is_none());
        let held = acquire(&layout, true).unwrap().unwrap();
        assert!(matches!(acquire(&layout, true), Err(WorkerLockError::Busy(_))));
        drop(held);
        assert!(!layout.root().exists(), "the directory is empty, but was not removed");
        let held = acquire(&layout, true).unwrap();
        fs::write(layout.options(), "{}").unwrap();
        drop(held);
        assert!(acquire(&layout, false).unwrap().is_some());
    }
}
