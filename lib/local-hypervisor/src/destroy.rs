//! Removes fleets, and restores the host.
//!
//! It searches the host, not the record, for what to remove, so that it removes an incomplete fleet, too.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    path::Path,
    time::Duration,
};

use futures::future::join_all;
use keelway_api::{Hypervisor, hypervisor::HypervisorRole};
use tokio::time::{Instant, interval};

use crate::{
    FLEET_LABEL, Fleet, FleetProgress, FleetStep, LocalHypervisorError, cgroup,
    create::{blocking, require_root},
    files::{names, remove_if_empty, remove_tree},
    fleet::{FleetMachine, MOST, MachineId, WORKER_PREFIX},
    ip, layout,
    lock::FleetLock,
    mounts, processes,
    record::Record,
};

/// How long the kernel may take to observe that a cgroup's last process has ended.
const CGROUP_PATIENCE: Duration = Duration::from_secs(10);

/// The interval of checks. The kernel reports an empty cgroup in version 2 only.
const CGROUP_INTERVAL: Duration = Duration::from_millis(5);

/// Removes a fleet: its processes, networks, mounts, cgroups and files. It succeeds if the fleet does not exist.
pub async fn destroy(fleet: &Fleet, progress: FleetProgress<'_>) -> Result<(), LocalHypervisorError> {
    require_root()?;
    let _lock = FleetLock::of_fleet(fleet, progress).await?;
    remove_all(fleet, progress).await
}

/// Removes the machines of these documents, and each fleet without a remaining machine, with its workers. It succeeds if they do not exist.
pub async fn destroy_machines(
    hypervisors: &[Hypervisor],
    progress: FleetProgress<'_>,
) -> Result<(), LocalHypervisorError> {
    require_root()?;
    for (fleet, documents) in by_fleet(hypervisors)? {
        let _lock = FleetLock::of_fleet(&fleet, progress).await?;
        let there = hypervisors_on_host(&fleet)?;
        let named = |id: &MachineId| documents.contains(&fleet.machine(*id).name());
        let (going, staying): (BTreeSet<_>, BTreeSet<_>) = there.into_iter().partition(named);
        if staying.is_empty() {
            remove_all(&fleet, progress).await?;
        } else if let Some(mut record) = Record::load(&fleet)? {
            remove_machines(going.iter().map(|id| fleet.machine(*id)), progress).await?;
            record.machines.retain(|entry| !going.contains(&entry.id));
            record.save(&fleet)?;
        }
    }
    Ok(())
}

/// Groups the names of documents by fleet. All documents are checked before anything is done.
fn by_fleet(hypervisors: &[Hypervisor]) -> Result<BTreeMap<Fleet, BTreeSet<String>>, LocalHypervisorError> {
    let mut fleets: BTreeMap<Fleet, BTreeSet<String>> = BTreeMap::new();
    for hypervisor in hypervisors {
        let name = hypervisor.metadata.name.clone().unwrap_or_default();
        let labels = hypervisor.metadata.labels.as_ref();
        let Some(fleet) = labels.and_then(|labels| labels.get(FLEET_LABEL)) else {
            return Err(LocalHypervisorError::NotLocal { name });
        };
        fleets.entry(Fleet::new(fleet)?).or_default().insert(name);
    }
    Ok(fleets)
}

/// Removes a fleet. The caller holds the fleet's lock.
pub(crate) async fn remove_all(fleet: &Fleet, progress: FleetProgress<'_>) -> Result<(), LocalHypervisorError> {
    let hypervisors = hypervisors_on_host(fleet)?.into_iter().map(|id| fleet.machine(id));
    remove_machines(hypervisors.chain(workers_on_host(fleet)?), progress).await?;
    ip::remove_link(&fleet.interface())?;
    mounts::unmount_below(&fleet.run())?;
    remove_tree(&fleet.run())?;
    remove_cgroup(&fleet.cgroup()).await?;
    let _lock = FleetLock::of_host(progress).await?;
    remove_tree(&fleet.state())?;
    remove_shared()
}

/// Removes the parts that all fleets share, if no fleet exists.
fn remove_shared() -> Result<(), LocalHypervisorError> {
    cgroup::remove_if_empty(layout::CGROUP.as_ref())?;
    remove_if_empty(layout::RUN.as_ref())?;
    remove_if_empty(layout::STATE.as_ref())
}

pub(crate) async fn remove_machines(
    machines: impl IntoIterator<Item = FleetMachine>,
    progress: FleetProgress<'_>,
) -> Result<(), LocalHypervisorError> {
    let removals = machines.into_iter().map(|machine| async move { remove_machine(&machine, progress).await });
    let outcomes: Vec<Result<(), LocalHypervisorError>> = join_all(removals).await;
    outcomes.into_iter().collect()
}

/// Removes a machine. The directory by which a machine is found is removed last.
async fn remove_machine(machine: &FleetMachine, progress: FleetProgress<'_>) -> Result<(), LocalHypervisorError> {
    let name = machine.name();
    progress(&FleetStep::Stop { machine: name.clone() });
    let ended = machine.clone();
    blocking(move || processes::end_all(&ended)).await?;
    remove_cgroup(&machine.cgroup()).await?;
    let (run, state) = (machine.run_parent(), machine.state());
    let remove = move || {
        for directory in [run, state] {
            mounts::unmount_below(&directory)?;
            remove_tree(&directory)?;
        }
        Ok(())
    };
    blocking(remove).await?;
    progress(&FleetStep::Removed { machine: name });
    Ok(())
}

pub(crate) async fn remove_cgroup(group: &Path) -> Result<(), LocalHypervisorError> {
    let deadline = Instant::now() + CGROUP_PATIENCE;
    let mut attempts = interval(CGROUP_INTERVAL);
    loop {
        attempts.tick().await;
        if cgroup::remove(group)? {
            return Ok(());
        }
        if Instant::now() > deadline {
            let busy = io::Error::from(io::ErrorKind::ResourceBusy);
            return Err(LocalHypervisorError::file("remove the cgroup", group)(busy));
        }
    }
}

fn names_on_host(fleet: &Fleet) -> Result<BTreeSet<String>, LocalHypervisorError> {
    let mut found = cgroup::children(&fleet.cgroup())?;
    found.extend(names(&fleet.state())?);
    found.extend(names(&fleet.run())?);
    Ok(found)
}

fn workers_on_host(fleet: &Fleet) -> Result<Vec<FleetMachine>, LocalHypervisorError> {
    let found = names_on_host(fleet)?;
    Ok(found.iter().filter_map(|name| name.strip_prefix(WORKER_PREFIX)).map(|name| fleet.worker(name)).collect())
}

fn hypervisors_on_host(fleet: &Fleet) -> Result<BTreeSet<MachineId>, LocalHypervisorError> {
    let found = names_on_host(fleet)?;
    let roles = [HypervisorRole::Public, HypervisorRole::Private];
    let all = roles.into_iter().flat_map(|role| (1..=MOST).map(move |ordinal| MachineId { role, ordinal }));
    Ok(all.filter(|id| found.contains(&id.to_string())).collect())
}
