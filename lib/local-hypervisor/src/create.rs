//! Creates fleets, and adds what is missing in existing ones.

use futures::future::join_all;
use keelway_api::{Hypervisor, hypervisor::HypervisorRole};
use rustix::process::geteuid;

use crate::{
    AgentProgram, Fleet, FleetProgress, FleetStep, Launcher, LocalHypervisorError, ProgramSearch, agent, cgroup,
    containerd,
    destroy::{remove_all, remove_machines},
    document::documents,
    files::make_dir,
    fleet::{FleetMachine, MOST},
    ip,
    lock::FleetLock,
    network::FleetNetwork,
    processes::{AGENT_GROUP, RUNTIME_GROUP},
    record::{Record, networks_of_others},
    tools::Tools,
    wiring,
};

/// The fleet to create.
#[derive(Debug, Clone)]
pub struct CreateRequest {
    /// The fleet. It is created if it does not exist.
    pub fleet: Fleet,
    /// The number of public machines, at most 99. A fleet that has more keeps them.
    pub public: u8,
    /// The number of private machines, at most 99.
    pub private: u8,
    /// Zones that are assigned to new machines in turn, for each role. If it is empty, machines have no zone.
    pub zones: Vec<String>,
    /// The search path of programs.
    pub search: ProgramSearch,
    /// How to start the process that becomes a machine.
    pub launcher: Launcher,
    /// The agent of new machines. `None`: machines have only containerd.
    pub agent: Option<AgentProgram>,
}

/// Creates or completes a fleet, and returns the documents of all its machines, including existing ones.
///
/// The same request again changes nothing and returns the same. An interrupted request continues. If the containerd of a machine has died, the
/// machine gets a new one, and its containers continue to run.
///
/// # Errors
/// Everything that this call created is removed. What existed before stays.
pub async fn create(
    request: &CreateRequest,
    progress: FleetProgress<'_>,
) -> Result<Vec<Hypervisor>, LocalHypervisorError> {
    if let Some(asked) = [request.public, request.private].into_iter().find(|n| *n > MOST) {
        return Err(LocalHypervisorError::TooMany { asked, most: MOST });
    }
    require_root()?;
    let tools = request.search.tools()?;
    request.agent.iter().try_for_each(AgentProgram::require)?;
    let fleet = &request.fleet;
    let _lock = FleetLock::of_fleet(fleet, progress).await?;
    let before = Record::load(fleet)?;
    match bring_up(request, before.as_ref(), &tools, progress).await {
        Ok(record) => Ok(documents(fleet, &record)),
        Err(error) => {
            // If this fails, too, the next call finds what is left. The first error is the one to report.
            drop(undo(fleet, before.as_ref(), progress).await);
            Err(error)
        }
    }
}

pub(crate) fn require_root() -> Result<(), LocalHypervisorError> {
    if geteuid().is_root() { Ok(()) } else { Err(LocalHypervisorError::NotRoot) }
}

async fn bring_up(
    request: &CreateRequest,
    before: Option<&Record>,
    tools: &Tools,
    progress: FleetProgress<'_>,
) -> Result<Record, LocalHypervisorError> {
    let record = ensure_networks(request, before, progress).await?;
    let machines = record.machines.iter().map(|entry| async {
        let machine = request.fleet.machine(entry.id);
        let agent = request.agent.as_ref().filter(|_| entry.agent);
        bring_up_machine(&machine, record.network, tools, (&request.launcher, agent), progress).await
    });
    let outcomes: Vec<Result<(), LocalHypervisorError>> = join_all(machines).await;
    outcomes.into_iter().collect::<Result<(), LocalHypervisorError>>()?;
    Ok(record)
}

/// Creates what is missing of one machine.
pub(crate) async fn bring_up_machine(
    machine: &FleetMachine,
    network: FleetNetwork,
    tools: &Tools,
    (launcher, agent): (&Launcher, Option<&AgentProgram>),
    progress: FleetProgress<'_>,
) -> Result<(), LocalHypervisorError> {
    ensure_machine(machine, network, progress).await?;
    let seen = agent.map(AgentProgram::directories).unwrap_or_default();
    containerd::ensure_running(machine, tools, &seen, launcher, progress).await?;
    if let Some(agent) = agent {
        agent::ensure_running(machine, (network, agent), launcher, progress).await?;
    }
    progress(&FleetStep::Ready { machine: machine.name() });
    Ok(())
}

/// Creates the record and the parts that the fleet's machines share. It holds the host's lock, so that no two fleets choose the same network,
/// and no process removes a directory that is about to be used.
async fn ensure_networks(
    request: &CreateRequest,
    before: Option<&Record>,
    progress: FleetProgress<'_>,
) -> Result<Record, LocalHypervisorError> {
    let fleet = &request.fleet;
    let _lock = FleetLock::of_host(progress).await?;
    progress(&FleetStep::Networks { fleet: fleet.name().to_owned() });
    let mut record = match before {
        Some(record) => still_free(fleet, record.clone())?,
        None => Record::new(pick_network(fleet)?),
    };
    record.grow(HypervisorRole::Public, request.public, &request.zones, request.agent.is_some());
    record.grow(HypervisorRole::Private, request.private, &request.zones, request.agent.is_some());
    if before != Some(&record) {
        record.save(fleet)?;
    }
    make_dir(&fleet.run(), 0o755)?;
    cgroup::ensure(&fleet.cgroup())?;
    wiring::ensure_fleet(fleet, record.network)?;
    Ok(record)
}

fn pick_network(fleet: &Fleet) -> Result<FleetNetwork, LocalHypervisorError> {
    let taken = networks_of_others(fleet)?;
    FleetNetwork::lowest_free(&taken, &ip::routes()?).ok_or(LocalHypervisorError::NoFreeNetwork)
}

/// Checks the network of a fleet that is down, as after a reboot. The fleet keeps its addresses, because documents contain them.
fn still_free(fleet: &Fleet, record: Record) -> Result<Record, LocalHypervisorError> {
    if wiring::is_up(fleet)? {
        return Ok(record);
    }
    match record.network.conflict(&ip::routes()?) {
        None => Ok(record),
        Some(range) => Err(LocalHypervisorError::NetworkTaken { fleet: fleet.name().to_owned(), range }),
    }
}

async fn ensure_machine(
    machine: &FleetMachine,
    network: FleetNetwork,
    progress: FleetProgress<'_>,
) -> Result<(), LocalHypervisorError> {
    progress(&FleetStep::Machine { machine: machine.name() });
    let machine = machine.clone();
    let make = move || {
        make_directories(&machine, &[RUNTIME_GROUP, AGENT_GROUP])?;
        wiring::ensure_machine(&machine, network)
    };
    blocking(make).await
}

/// Creates a machine's own directories, and the groups in its cgroup.
pub(crate) fn make_directories(machine: &FleetMachine, groups: &[&str]) -> Result<(), LocalHypervisorError> {
    make_dir(&machine.state(), 0o700)?;
    for directory in [machine.lib(), machine.log(), machine.run()] {
        make_dir(&directory, 0o755)?;
    }
    groups.iter().try_for_each(|group| cgroup::ensure(&machine.cgroup().join(group)))
}

/// Runs system calls and programs that take some milliseconds on a thread for blocking work.
pub(crate) async fn blocking<T: Send + 'static>(
    function: impl FnOnce() -> Result<T, LocalHypervisorError> + Send + 'static,
) -> Result<T, LocalHypervisorError> {
    let joined = tokio::task::spawn_blocking(function).await;
    joined.map_err(LocalHypervisorError::system("finish a step"))?
}

async fn undo(fleet: &Fleet, before: Option<&Record>, progress: FleetProgress<'_>) -> Result<(), LocalHypervisorError> {
    let Some(before) = before else {
        return remove_all(fleet, progress).await;
    };
    if let Some(record) = Record::load(fleet)? {
        let added = record.added_since(Some(before));
        remove_machines(added.into_iter().map(|id| fleet.machine(id)), progress).await?;
    }
    before.save(fleet)
}
