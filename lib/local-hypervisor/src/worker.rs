//! Workers: machines for pods of clusters, in a fleet's public network or behind NATs.
//!
//! ```text
//!  [ public ]──┬── nat-a ──[ 192.168.1.0/24 ]── w1
//!              ├── nat-c ──[ 192.168.2.0/24 ]── nat-b ──[ 192.168.1.0/24 ]── w2
//!              └── w3
//! ```
//!
//! A worker's machine is like a hypervisor's, but its changes of `/etc`, `/opt` and `/usr/local` are its own, too. The NAT next to a worker has
//! the same range for every worker, so that workers behind different NATs have equal addresses.

mod nat;
mod power;
mod record;
mod wiring;
mod worker_exec;

use std::{net::Ipv4Addr, path::PathBuf};

use futures::future::join_all;

use crate::{
    Fleet, FleetProgress, FleetStep, Launcher, LocalHypervisorError, ProgramSearch, containerd,
    create::{blocking, make_directories, require_root},
    destroy::remove_machines,
    fleet::FleetMachine,
    lock::FleetLock,
    namespace,
    network::FleetNetwork,
    processes::{PROCESS_GROUP, RUNTIME_GROUP},
    record::Record,
    tools::Tools,
};

pub use nat::{forget, renumber};
pub use power::{LinkState, WorkersRequest, link_workers, power_workers};
use record::WorkersRecord;
pub use worker_exec::enter_worker;

/// The worker to create.
#[derive(Debug, Clone)]
pub struct WorkerRequest {
    /// The fleet of the worker, which must exist.
    pub fleet: Fleet,
    /// The name of the worker, which is also its host name: an RFC 1123 label of at most 20 characters.
    pub name: String,
    /// The NATs that the worker is behind, nearest first. Missing ones are created. If it is empty, the worker is in the public network.
    pub behind: Vec<String>,
    /// The search path of programs.
    pub search: ProgramSearch,
    /// How to start the process that becomes the worker's containerd.
    pub launcher: Launcher,
}

/// A worker's machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerMachine {
    /// The name of the worker.
    pub name: String,
    /// The NATs that the worker is behind, nearest first.
    pub behind: Vec<String>,
    /// The worker's own address.
    pub address: Ipv4Addr,
    /// The worker's address as machines in the public network see it.
    pub public_address: Ipv4Addr,
    /// containerd's socket, as a path on the host.
    pub socket: PathBuf,
}

/// Creates or completes a worker, with the NATs that it is behind. The same request again changes nothing. If the containerd of the machine
/// has died, the machine gets a new one.
///
/// # Errors
/// Everything that this call created is removed.
pub async fn create_worker(
    request: &WorkerRequest,
    progress: FleetProgress<'_>,
) -> Result<WorkerMachine, LocalHypervisorError> {
    require_root()?;
    let tools = request.search.tools()?;
    let fleet = &request.fleet;
    let _lock = FleetLock::of_fleet(fleet, progress).await?;
    let network = network(fleet)?;
    let before = WorkersRecord::load(fleet)?;
    let mut after = before.clone();
    after.place(&request.name, &request.behind)?;
    if after != before {
        after.save(fleet)?;
    }
    match bring_up(&fleet.worker(&request.name), &after, network, (&tools, &request.launcher), progress).await {
        Ok(()) => after.worker(fleet, network, &request.name),
        Err(error) => {
            // If this fails, too, the next call finds what is left. The first error is the one to report.
            if !before.workers.contains_key(&request.name) {
                drop(remove(fleet, std::slice::from_ref(&request.name), after, progress).await);
            }
            Err(error)
        }
    }
}

async fn bring_up(
    machine: &FleetMachine,
    workers: &WorkersRecord,
    network: FleetNetwork,
    (tools, launcher): (&Tools, &Launcher),
    progress: FleetProgress<'_>,
) -> Result<(), LocalHypervisorError> {
    progress(&FleetStep::Machine { machine: machine.name() });
    let (made, workers) = (machine.clone(), workers.clone());
    blocking(move || {
        wiring::ensure_nats(&made, &workers, network)?;
        make_directories(&made, &[RUNTIME_GROUP, PROCESS_GROUP])?;
        wiring::ensure_worker(&made, &workers, network)
    })
    .await?;
    containerd::ensure_running(machine, tools, &[], launcher, progress).await?;
    progress(&FleetStep::Ready { machine: machine.name() });
    Ok(())
}

/// Returns the recorded workers of a fleet, running or not, ordered by name.
pub fn workers(fleet: &Fleet) -> Result<Vec<WorkerMachine>, LocalHypervisorError> {
    let Some(record) = Record::load(fleet)? else { return Ok(Vec::new()) };
    let workers = WorkersRecord::load(fleet)?;
    workers.workers.keys().map(|name| workers.worker(fleet, record.network, name)).collect()
}

/// Removes workers with all their data, and NATs without a remaining worker.
///
/// # Errors
/// A name is not a worker of the fleet. This is checked before anything is done.
pub async fn destroy_workers(
    fleet: &Fleet,
    names: &[String],
    progress: FleetProgress<'_>,
) -> Result<(), LocalHypervisorError> {
    require_root()?;
    let _lock = FleetLock::of_fleet(fleet, progress).await?;
    let workers = WorkersRecord::load(fleet)?;
    known(fleet, names, &workers)?;
    remove(fleet, names, workers, progress).await
}

/// Returns the machines with these names, all of which must exist.
fn known(fleet: &Fleet, names: &[String], workers: &WorkersRecord) -> Result<Vec<FleetMachine>, LocalHypervisorError> {
    match names.iter().find(|name| !workers.workers.contains_key(*name)) {
        Some(name) => Err(LocalHypervisorError::NoWorker { name: name.clone(), fleet: fleet.name().to_owned() }),
        None => Ok(names.iter().map(|name| fleet.worker(name)).collect()),
    }
}

/// Removes workers. The record is updated last, because it is needed to find them.
async fn remove(
    fleet: &Fleet,
    names: &[String],
    mut workers: WorkersRecord,
    progress: FleetProgress<'_>,
) -> Result<(), LocalHypervisorError> {
    let going: Vec<FleetMachine> = names.iter().map(|name| fleet.worker(name)).collect();
    if namespace::is_pinned(&fleet.namespace()) {
        join_all(going.iter().map(|machine| {
            let (machine, workers) = (machine.clone(), workers.clone());
            blocking(move || wiring::cut(&machine, &workers))
        }))
        .await
        .into_iter()
        .collect::<Result<(), LocalHypervisorError>>()?;
    }
    remove_machines(going, progress).await?;
    workers.workers.retain(|name, _| !names.contains(name));
    for nat in workers.idle() {
        nat::remove(fleet, &nat)?;
        workers.nats.remove(&nat);
    }
    workers.save(fleet)
}

fn network(fleet: &Fleet) -> Result<FleetNetwork, LocalHypervisorError> {
    let name = || fleet.name().to_owned();
    let record = Record::load(fleet)?.ok_or_else(|| LocalHypervisorError::NoFleet { fleet: name() })?;
    if namespace::is_pinned(&fleet.namespace()) {
        Ok(record.network)
    } else {
        Err(LocalHypervisorError::FleetDown { fleet: name() })
    }
}
