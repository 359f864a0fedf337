//! One process at a time.

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

/// Longer than the slowest creation of a fleet.
const PATIENCE: Duration = Duration::from_secs(180);

/// A held lock. Freed when dropped, and by the kernel when the process ends.
#[derive(Debug)]
pub(crate) struct FleetLock(#[expect(dead_code, reason = "holds the lock while it is open")] File);

impl FleetLock {
    /// Nobody else changes this fleet.
    pub(crate) async fn of_fleet(fleet: &Fleet, progress: FleetProgress<'_>) -> Result<Self, LocalHypervisorError> {
        Self::acquire(fleet.state(), progress).await
    }

    /// Nobody else picks a network, or makes or removes what fleets share. Taken within a fleet's lock, never around one.
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
        // Not a task: a runtime that shuts down would wait for it. Nobody listens after the deadline; the lock is freed then.
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

/// Locks the directory, made where it is missing. `None`: somebody else has the lock.
fn lock(path: &Path, operation: FlockOperation) -> Result<Option<File>, LocalHypervisorError> {
    loop {
        make_dir(path, 0o755)?;
        let Some(file) = none_if_missing(File::open(path)).map_err(LocalHypervisorError::file("open", path))? else {
            continue;
        };
        match flock(&file, operation) {
            Ok(()) if is_at(&file, path)? => return Ok(Some(file)),
            // Its last holder removed it.
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
