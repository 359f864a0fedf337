//! Links of workers and NATs. Each step can be repeated. Blocking.

use std::path::PathBuf;

use super::{
    nat::masquerade,
    record::{NetworkPosition, WorkersRecord},
};
use crate::{
    Fleet, LocalHypervisorError,
    files::make_dir,
    fleet::{FleetMachine, FleetMachineId},
    ip, namespace,
    network::FleetNetwork,
    wiring::{NetworkLeg, alone, set_if_there},
};

/// The bridge in a NAT's namespace to which the machines behind it are linked.
const INSIDE: &str = "inside";
/// A NAT's interface to the outside.
pub(super) const OUTSIDE: &str = "outside";
/// A worker's interface.
const UPLINK: &str = "uplink";

/// Creates the NATs that a worker is behind, outer ones first, because the inner ones are linked to them.
pub(super) fn ensure_nats(
    machine: &FleetMachine,
    workers: &WorkersRecord,
    network: FleetNetwork,
) -> Result<(), LocalHypervisorError> {
    let FleetMachineId::Worker(name) = &machine.id else { return Ok(()) };
    workers.behind(name).iter().rev().try_for_each(|nat| ensure_nat(&machine.fleet, workers, nat, network))
}

/// Creates a NAT. It masquerades connections from inside, and drops connections from outside.
fn ensure_nat(
    fleet: &Fleet,
    workers: &WorkersRecord,
    name: &str,
    network: FleetNetwork,
) -> Result<(), LocalHypervisorError> {
    let pin = fleet.nat(name);
    let (false, Some(nat)) = (namespace::is_pinned(&pin), workers.nats.get(name)) else {
        return Ok(());
    };
    make_dir(&fleet.nat_run(name), 0o755)?;
    namespace::create(&pin, || {
        alone()?;
        set_if_there("ipv4/ip_forward", "1")?;
        link(fleet, workers, &nat.place, OUTSIDE, network)?;
        ip::batch(&[
            format!("link add {INSIDE} type bridge"),
            format!("address add {} dev {INSIDE}", nat.inside()),
            format!("link set {INSIDE} up"),
        ])?;
        masquerade()
    })
}

/// Creates a worker's namespace, with one link.
pub(super) fn ensure_worker(
    machine: &FleetMachine,
    workers: &WorkersRecord,
    network: FleetNetwork,
) -> Result<(), LocalHypervisorError> {
    let pin = machine.namespace();
    let (false, Some(place)) = (namespace::is_pinned(&pin), place(machine, workers)) else {
        return Ok(());
    };
    namespace::create(&pin, || {
        alone()?;
        link(&machine.fleet, workers, place, UPLINK, network)
    })
}

/// Removes a worker's link.
pub(super) fn cut(machine: &FleetMachine, workers: &WorkersRecord) -> Result<(), LocalHypervisorError> {
    let Some(place) = place(machine, workers) else { return Ok(()) };
    let bridges = bridges(&machine.fleet, place);
    if namespace::is_pinned(&bridges) {
        namespace::within(&bridges, || ip::remove_link(&port(place)))?;
    }
    Ok(())
}

/// Sets the other end of a worker's link down or up. The worker observes a lost carrier, and keeps its addresses.
pub(super) fn set_link(
    machine: &FleetMachine,
    workers: &WorkersRecord,
    state: &str,
) -> Result<(), LocalHypervisorError> {
    let Some(place) = place(machine, workers) else { return Ok(()) };
    let command = format!("link set {} {state}", port(place));
    namespace::within(&bridges(&machine.fleet, place), || ip::batch(&[command]))
}

fn place<'a>(machine: &FleetMachine, workers: &'a WorkersRecord) -> Option<&'a NetworkPosition> {
    let FleetMachineId::Worker(name) = &machine.id else { return None };
    workers.workers.get(name)
}

/// Links a machine. Call it in the machine's namespace.
fn link(
    fleet: &Fleet,
    workers: &WorkersRecord,
    place: &NetworkPosition,
    name: &'static str,
    network: FleetNetwork,
) -> Result<(), LocalHypervisorError> {
    let bridge = if place.behind.is_some() { INSIDE } else { "public" };
    let leg = NetworkLeg { name, bridge, port: port(place), address: workers.address(place, network) };
    leg.attach(&bridges(fleet, place))?;
    default_route(workers, place)
}

/// Sets the default route through the nearest NAT. A machine in the public network has none.
pub(super) fn default_route(workers: &WorkersRecord, place: &NetworkPosition) -> Result<(), LocalHypervisorError> {
    match place.behind.as_ref().and_then(|nat| workers.nats.get(nat)) {
        Some(nat) => ip::batch(&[format!("route replace default via {}", nat.inside().addr())]),
        None => Ok(()),
    }
}

/// Returns the namespace of the bridge that a machine is linked to.
fn bridges(fleet: &Fleet, place: &NetworkPosition) -> PathBuf {
    place.behind.as_ref().map_or_else(|| fleet.namespace(), |nat| fleet.nat(nat))
}

/// Renames a port after a change of the address. The name contains the address, so that no other port has the same name.
pub(super) fn rename_port(
    fleet: &Fleet,
    before: &NetworkPosition,
    after: &NetworkPosition,
) -> Result<(), LocalHypervisorError> {
    let (old, new) = (port(before), port(after));
    let commands = [format!("link set {old} down"), format!("link set {old} name {new}"), format!("link set {new} up")];
    namespace::within(&bridges(fleet, after), || ip::batch(&commands))
}

fn port(place: &NetworkPosition) -> String {
    format!("guest-{}", place.octet)
}
