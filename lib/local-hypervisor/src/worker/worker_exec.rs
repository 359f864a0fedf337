//! Runs commands on a worker.

use core::convert::Infallible;
use std::{ffi::OsString, os::unix::process::CommandExt, process::Command};

use super::record::WorkersRecord;
use crate::{
    Fleet, LocalHypervisorError,
    create::require_root,
    launch,
    processes::{self, PROCESS_GROUP},
};

/// Turns this process into a command on a worker. It returns only on an error.
///
/// Call it before the process has a second thread.
pub fn enter_worker(fleet: &Fleet, name: &str, command: &[OsString]) -> Result<Infallible, LocalHypervisorError> {
    require_root()?;
    if !WorkersRecord::load(fleet)?.workers.contains_key(name) {
        return Err(LocalHypervisorError::NoWorker { name: name.to_owned(), fleet: fleet.name().to_owned() });
    }
    let machine = fleet.worker(name);
    let down = || LocalHypervisorError::WorkerDown { name: name.to_owned() };
    let pid = processes::any_inside(&machine)?.ok_or_else(down)?;
    launch::enter(pid, &machine.cgroup().join(PROCESS_GROUP))?;
    let program = command.first().cloned().unwrap_or_else(|| "sh".into());
    let error = Command::new(&program).args(command.iter().skip(1)).current_dir("/").exec();
    Err(LocalHypervisorError::Spawn { program: program.into(), source: error })
}
