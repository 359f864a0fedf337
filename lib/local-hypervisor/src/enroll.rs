//! Makes agents of local hypervisors reachable over a network.

use std::{collections::BTreeMap, net::SocketAddr};

use crate::{
    CreateRequest, FleetProgress, LocalHypervisorError, agent,
    create::{blocking, require_root},
    files::{make_dir, read_if_there, write_atomically, write_private},
    fleet::FleetMachine,
    layout::AGENT_IDENTITY,
    lock::FleetLock,
    network::FleetNetwork,
    processes,
    record::Record,
};

/// The file with the arguments for the network addresses of an agent, one per line.
const PLACES: &str = "places";
/// The files of an agent's identity, and the arguments that name them.
const FILES: [(&str, &str); 3] =
    [("agent.crt", "--tls-certificate"), ("agent.key", "--tls-key"), ("ca.crt", "--tls-authority")];

/// The identity of an agent on a network.
pub struct LocalAgentIdentity {
    /// The address on which the agent listens, on its machine.
    pub listen: Option<SocketAddr>,
    /// Addresses of other agents to which the agent connects, and through which it receives calls.
    pub connect: Vec<SocketAddr>,
    /// Certificate, key and authorities, PEM.
    pub files: [Vec<u8>; 3],
}

/// Issues network identities to the agents of a fleet, by the names of their machines. An agent whose addresses change is restarted. Its
/// components continue to run.
///
/// Only the fleet, the programs and the agent of the request are used.
///
/// # Errors
/// A name is not a machine of the fleet. This is checked before anything is done.
pub async fn enroll(
    request: &CreateRequest,
    identities: &BTreeMap<String, LocalAgentIdentity>,
    progress: FleetProgress<'_>,
) -> Result<(), LocalHypervisorError> {
    require_root()?;
    let Some(agent) = &request.agent else { return Ok(()) };
    agent.require()?;
    let fleet = &request.fleet;
    let _lock = FleetLock::of_fleet(fleet, progress).await?;
    let record = Record::load(fleet)?;
    let entries = record.iter().flat_map(|record| record.machines.iter().map(|entry| (record.network, entry.id)));
    let machines: BTreeMap<String, (FleetNetwork, FleetMachine)> = entries
        .map(|(network, id)| (network, fleet.machine(id)))
        .map(|(network, machine)| (machine.name(), (network, machine)))
        .collect();
    let unknown =
        |name: &String| LocalHypervisorError::NoMachine { name: name.clone(), fleet: fleet.name().to_owned() };
    let chosen = identities
        .iter()
        .map(|(name, identity)| machines.get(name).map(|machine| (machine, identity)).ok_or_else(|| unknown(name)));
    for ((network, machine), identity) in chosen.collect::<Result<Vec<_>, LocalHypervisorError>>()? {
        if write(machine, identity)? {
            let before = machine.clone();
            blocking(move || processes::end_agent(&before)).await?;
        }
        agent::ensure_running(machine, (*network, agent), &request.launcher, progress).await?;
    }
    Ok(())
}

/// Writes the files. Returns whether the agent must be restarted. An agent reads changed files again by itself.
fn write(machine: &FleetMachine, identity: &LocalAgentIdentity) -> Result<bool, LocalHypervisorError> {
    let folder = machine.agent_identity();
    make_dir(&folder, 0o700)?;
    for ((name, _), content) in FILES.iter().zip(&identity.files) {
        write_private(&folder.join(name), content)?;
    }
    let listen = identity.listen.iter().map(|address| format!("--listen={address}\n"));
    let connect = identity.connect.iter().map(|address| format!("--connect={address}\n"));
    let (path, places) = (folder.join(PLACES), listen.chain(connect).collect::<String>());
    let moves = read_if_there(&path)?.is_none_or(|before| before != places);
    if moves {
        write_atomically(&path, places.as_bytes())?;
    }
    Ok(moves)
}

/// Returns the arguments of a machine's agent for the network.
pub(crate) fn arguments(machine: &FleetMachine) -> Result<Vec<String>, LocalHypervisorError> {
    let Some(places) = read_if_there(&machine.agent_identity().join(PLACES))? else { return Ok(Vec::new()) };
    let files = FILES.iter().map(|(name, argument)| format!("{argument}=/var/lib/{AGENT_IDENTITY}/{name}"));
    Ok(places.lines().map(str::to_owned).chain(files).collect())
}
