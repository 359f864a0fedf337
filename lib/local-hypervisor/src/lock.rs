//! Locks, so that only one process at a time changes a fleet.

use std::{
    fs::File,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    time::Duration,
};

use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};
use tokio::{sync::oneshot, time::timeout};

use crate::{
    Fleet, FleetProgress, FleetStep, LocalHypervisorError,
    files::{make_dir, none_if_missing},
    layout,
};

/// How long to wait for a lock: longer than the slowest creation of a fleet.
const PATIENCE: Duration = Duration::from_secs(180);

/// A held lock. It is released when it is dropped, and by the kernel when the process ends.
#[derive(Debug)]
pub(crate) struct FleetLock(#[expect(dead_code, reason = "holds the lock while it is open")] File);

impl FleetLock {
    /// Locks a fleet, so that no other process changes it.
    pub(crate) async fn of_fleet(fleet: &Fleet, progress: FleetProgress<'_>) -> Result<Self, LocalHypervisorError> {
        Self::acquire(fleet.state(), progress).await
    }

    /// Locks the parts that all fleets share, such as the choice of networks. A process may acquire it while it holds a fleet's lock, never before.
    pub(crate) async fn of_host(progress: FleetProgress<'_>) -> Result<Self, LocalHypervisorError> {
        Self::acquire(layout::STATE.into(), progress).await
    }

    async fn acquire(path: PathBuf, progress: FleetProgress<'_>) -> Result<Self, LocalHypervisorError> {
        if let Some(file) = lock(&path, FlockOperation::NonBlockingLockExclusive)? {
            return Ok(Self(file));
        }
        progress(&FleetStep::WaitForOthers);
        let (sender, receiver) = oneshot::channel();
        let waited_for = path.clone();
        // A thread instead of a task, because a runtime that shuts down would wait for the task. After the deadline, the thread finds no receiver,
        // and releases the lock.
        std::thread::spawn(move || {
            drop(sender.send(lock(&waited_for, FlockOperation::LockExclusive)));
        });
        match timeout(PATIENCE, receiver).await {
            Ok(Ok(Ok(Some(file)))) => Ok(Self(file)),
            Ok(Ok(Err(error))) => Err(error),
            Ok(Ok(Ok(None)) | Err(_)) | Err(_) => Err(LocalHypervisorError::Locked { path, waited: PATIENCE }),
        }
    }
}

/// Locks the directory, and creates it if it is missing. Returns `None` if another process holds the lock.
fn lock(path: &Path, operation: FlockOperation) -> Result<Option<File>, LocalHypervisorError> {
    loop {
        make_dir(path, 0o755)?;
        let Some(file) = none_if_missing(File::open(path)).map_err(LocalHypervisorError::file("open", path))? else {
            continue;
        };
        match flock(&file, operation) {
            Ok(()) if is_at(&file, path)? => return Ok(Some(file)),
            // The last holder removed the directory.
            Ok(()) | Err(Errno::INTR) => {}
            Err(Errno::WOULDBLOCK) => return Ok(None),
            Err(errno) => return Err(LocalHypervisorError::file("lock", path)(errno)),
        }
    }
}

fn is_at(file: &File, path: &Path) -> Result<bool, LocalHypervisorError> {
    let held = file.metadata().map_err(LocalHypervisorError::file("inspect", path))?;
    let found = none_if_missing(path.metadata()).map_err(LocalHypervisorError::file("inspect", path))?;
    Ok(found.is_some_and(|found| (found.dev(), found.ino()) == (held.dev(), held.ino())))
}
