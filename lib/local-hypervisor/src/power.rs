//! Switches machines off and on.

use crate::{
    AgentProgram, CreateRequest, FleetProgress, FleetStep, LocalHypervisorError,
    create::{blocking, bring_up_machine, require_root},
    destroy::remove_cgroup,
    files::remove_tree,
    fleet::FleetMachine,
    lock::FleetLock,
    mounts, processes,
    record::Record,
    wiring,
};

/// The change of a machine's power.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PowerState {
    /// Power loss: all processes are killed at once without notice to other machines. Network and `/run` are lost, disks stay.
    Off,
    /// Power on: containerd and the agent are started as at boot. The agent starts everything else.
    On,
    /// Power loss, then power on.
    Cycle,
}

/// Changes the power of machines of a fleet. `names` are the names of their documents.
///
/// Only the fleet, the programs and the agent of the request are used.
///
/// # Errors
/// A name is not a machine of the fleet. This is checked before anything is done.
pub async fn power(
    request: &CreateRequest,
    names: &[String],
    power: PowerState,
    progress: FleetProgress<'_>,
) -> Result<(), LocalHypervisorError> {
    require_root()?;
    let tools = request.search.tools()?;
    let fleet = &request.fleet;
    let _lock = FleetLock::of_fleet(fleet, progress).await?;
    let unknown =
        |name: &String| LocalHypervisorError::NoMachine { name: name.clone(), fleet: fleet.name().to_owned() };
    let Some(record) = Record::load(fleet)? else {
        return names.iter().map(unknown).try_for_each(Err);
    };
    let machines: Vec<_> = record.machines.iter().map(|entry| (fleet.machine(entry.id), entry.agent)).collect();
    let chosen = names.iter().map(|name| {
        let found = machines.iter().find(|(machine, _)| machine.name() == *name);
        found.ok_or_else(|| unknown(name))
    });
    let chosen = chosen.collect::<Result<Vec<_>, LocalHypervisorError>>()?;
    if power != PowerState::Off && chosen.iter().any(|(_, has_agent)| *has_agent) {
        request.agent.iter().try_for_each(AgentProgram::require)?;
    }
    if power != PowerState::On {
        for (machine, _) in &chosen {
            let (cut, network) = (machine.clone(), record.network);
            power_off(machine, move || wiring::cut(&cut, network), progress).await?;
        }
    }
    if power != PowerState::Off {
        for (machine, has_agent) in chosen {
            let agent = request.agent.as_ref().filter(|_| *has_agent);
            bring_up_machine(machine, record.network, &tools, (&request.launcher, agent), progress).await?;
        }
    }
    Ok(())
}

/// Switches a machine off. `cut` removes its links first, so that no process can notify another machine.
pub(crate) async fn power_off(
    machine: &FleetMachine,
    cut: impl FnOnce() -> Result<(), LocalHypervisorError> + Send + 'static,
    progress: FleetProgress<'_>,
) -> Result<(), LocalHypervisorError> {
    progress(&FleetStep::Stop { machine: machine.name() });
    let ended = machine.clone();
    blocking(move || {
        cut()?;
        processes::kill_all(&ended)
    })
    .await?;
    remove_cgroup(&machine.cgroup()).await?;
    let run = machine.run_parent();
    blocking(move || {
        mounts::unmount_below(&run)?;
        remove_tree(&run)
    })
    .await
}
