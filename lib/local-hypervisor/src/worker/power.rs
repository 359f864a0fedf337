//! Switches workers or their links off and on.

use super::{bring_up, known, network, record::WorkersRecord, wiring};
use crate::{
    Fleet, FleetProgress, Launcher, LocalHypervisorError, PowerState, ProgramSearch,
    create::{blocking, require_root},
    lock::FleetLock,
    namespace,
    power::power_off,
};

/// The workers, and how to start them.
#[derive(Debug, Clone)]
pub struct WorkersRequest {
    /// The fleet of the workers.
    pub fleet: Fleet,
    /// The names of the workers.
    pub names: Vec<String>,
    /// The search path of programs.
    pub search: ProgramSearch,
    /// How to start the process that becomes a worker's containerd.
    pub launcher: Launcher,
}

/// The state of a worker's link. Its processes continue to run in both states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkState {
    /// No packet passes, and nothing notifies other machines.
    Down,
    /// Packets pass again.
    Up,
}

/// Changes the power of workers. A worker that is switched on has only containerd, as at boot. The caller starts `keelway node run`.
///
/// # Errors
/// A name is not a worker of the fleet. This is checked before anything is done.
pub async fn power_workers(
    request: &WorkersRequest,
    power: PowerState,
    progress: FleetProgress<'_>,
) -> Result<(), LocalHypervisorError> {
    require_root()?;
    let tools = request.search.tools()?;
    let fleet = &request.fleet;
    let _lock = FleetLock::of_fleet(fleet, progress).await?;
    let network = network(fleet)?;
    let workers = WorkersRecord::load(fleet)?;
    let machines = known(fleet, &request.names, &workers)?;
    if power != PowerState::On {
        for machine in &machines {
            let (ended, workers) = (machine.clone(), workers.clone());
            power_off(machine, move || wiring::cut(&ended, &workers), progress).await?;
        }
    }
    if power != PowerState::Off {
        for machine in &machines {
            bring_up(machine, &workers, network, (&tools, &request.launcher), progress).await?;
        }
    }
    Ok(())
}

/// Changes the links of workers.
///
/// # Errors
/// A name is not a worker of the fleet, or the worker is down. This is checked before anything is done.
pub async fn link_workers(
    fleet: &Fleet,
    names: &[String],
    link: LinkState,
    progress: FleetProgress<'_>,
) -> Result<(), LocalHypervisorError> {
    require_root()?;
    let _lock = FleetLock::of_fleet(fleet, progress).await?;
    let workers = WorkersRecord::load(fleet)?;
    let machines = known(fleet, names, &workers)?;
    for (name, machine) in names.iter().zip(&machines) {
        if !namespace::is_pinned(&machine.namespace()) {
            return Err(LocalHypervisorError::WorkerDown { name: name.clone() });
        }
    }
    let state = match link {
        LinkState::Down => "down",
        LinkState::Up => "up",
    };
    blocking(move || machines.iter().try_for_each(|machine| wiring::set_link(machine, &workers, state))).await
}
