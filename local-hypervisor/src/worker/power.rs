//! Workers that lose their power or their link, and get it back.

use super::{bring_up, known, network, record::WorkersRecord, wiring};
use crate::{
    Fleet, FleetProgress, Launcher, LocalHypervisorError, PowerState, ProgramSearch,
    create::{blocking, require_root},
    lock::FleetLock,
    namespace,
    power::power_off,
};

/// Which workers, and what they are started with.
#[derive(Debug, Clone)]
pub struct WorkersRequest {
    /// The fleet that they are with.
    pub fleet: Fleet,
    /// Their names.
    pub names: Vec<String>,
    /// Where programs are looked for.
    pub search: ProgramSearch,
    /// How to start the process that becomes their containerd.
    pub launcher: Launcher,
}

/// What becomes of a worker's link. Its processes go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkState {
    /// Nothing comes in or goes out, and nobody is told.
    Down,
    /// As before.
    Up,
}

/// Changes the power of workers. One that is switched on has its containerd, as at boot, and nothing else: `keelway node run` is whoever's
/// who starts its daemons.
///
/// # Errors
/// A name that no worker of the fleet has is one, before anything is done.
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
/// A name that no worker of the fleet has is one, and one that is down, before anything is done.
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
