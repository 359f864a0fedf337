//! A machine that goes down and comes up again.

use crate::{
    CreateRequest, Error, Progress, Step,
    create::{blocking, bring_up_machine, require_root},
    destroy::remove_cgroup,
    files::remove_tree,
    fleet::Machine,
    lock::Lock,
    mounts, processes,
    record::Record,
};

/// Reboots machines of a fleet, by the names of their documents: all their processes are killed at once, their network and
/// `/run` are lost, and what their disks hold is there again, with containerd and the agent started as at boot. Nothing else is
/// started; that is the agent's.
///
/// Of the request only the fleet, the programs and the agent count.
///
/// # Errors
/// A name that no machine of the fleet has is one, before anything is done.
pub async fn reboot(request: &CreateRequest, names: &[String], progress: Progress<'_>) -> Result<(), Error> {
    require_root()?;
    let tools = request.search.tools()?;
    let fleet = &request.fleet;
    let _lock = Lock::of_fleet(fleet, progress).await?;
    let record = Record::load(fleet)?;
    let entries = record.iter().flat_map(|record| &record.machines);
    let machines: Vec<_> = entries.map(|entry| (fleet.machine(entry.id), entry.agent)).collect();
    let mut chosen = Vec::new();
    for name in names {
        let found = machines.iter().find(|(machine, _)| machine.name() == *name);
        chosen.push(found.ok_or_else(|| Error::NoMachine { name: name.clone(), fleet: fleet.name().to_owned() })?);
    }
    for (machine, _) in &chosen {
        take_down(machine, progress).await?;
    }
    let Some(record) = &record else { return Ok(()) };
    for (machine, has_agent) in chosen {
        let agent = request.agent.as_ref().filter(|_| *has_agent);
        bring_up_machine(machine, record.network, &tools, (&request.launcher, agent), progress).await?;
    }
    Ok(())
}

async fn take_down(machine: &Machine, progress: Progress<'_>) -> Result<(), Error> {
    progress(&Step::Stop { machine: machine.name() });
    let ended = machine.clone();
    blocking(move || processes::kill_all(&ended)).await?;
    remove_cgroup(&machine.cgroup()).await?;
    let run = machine.run_parent();
    blocking(move || {
        mounts::unmount_below(&run)?;
        remove_tree(&run)
    })
    .await
}
