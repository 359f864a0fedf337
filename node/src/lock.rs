//! One at a time: `join`, `leave` and `forget` of one worker.

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

/// It cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum WorkerLockError {
    /// Somebody has it.
    #[error("another `keelway node join`, `leave` or `forget` is at work on {0}")]
    Busy(String),
    /// The directory failed.
    #[error(transparent)]
    File(#[from] NodeFileError),
}

/// The worker's directory, locked for as long as this lives.
#[derive(Debug)]
pub struct WorkerLock {
    _directory: File,
    /// Removed at the end where nothing came into it.
    made: Option<PathBuf>,
}

impl Drop for WorkerLock {
    fn drop(&mut self) {
        if let Some(path) = &self.made {
            // It fails where the machine is a worker now, as it should.
            let _ = fs::remove_dir(path);
        }
    }
}

/// Locks the worker's directory, which is made for that where `join` is about to. None where there is no such directory.
///
/// # Errors
/// Where somebody else has it, or it cannot be made or opened.
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
        // Who had it before may have removed it, and the next one has made another.
        let own = directory.metadata().map_err(NodeFileError::new("look at", root))?;
        if fs::metadata(root).is_ok_and(|now| (now.dev(), now.ino()) == (own.dev(), own.ino())) {
            return Ok(Some(WorkerLock { _directory: directory, made: is_new.then(|| root.to_owned()) }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let layout = Layout::new(directory.path().join("node"));
        assert!(acquire(&layout, false).unwrap().is_none());
        let held = acquire(&layout, true).unwrap().unwrap();
        assert!(matches!(acquire(&layout, true), Err(WorkerLockError::Busy(_))));
        drop(held);
        assert!(!layout.root().exists(), "nothing came into it, and it stays");
        let held = acquire(&layout, true).unwrap();
        fs::write(layout.options(), "{}").unwrap();
        drop(held);
        assert!(acquire(&layout, false).unwrap().is_some());
    }
}
