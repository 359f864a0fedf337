//! Links between the host, the fleet's bridges and its machines. Each step can be repeated. Blocking.

use std::{fs, path::Path};

use ipnet::Ipv4Net;
use rustix::{
    io::Errno,
    net::{AddressFamily, SocketType, netdevice::name_to_index, socket},
};

use crate::{
    LocalHypervisorError,
    fleet::{Fleet, FleetMachine, FleetMachineId},
    ip, namespace,
    network::FleetNetwork,
};

/// Creates the host's interface and its peer, which is a port of the public bridge.
pub(crate) fn ensure_fleet(fleet: &Fleet, network: FleetNetwork) -> Result<(), LocalHypervisorError> {
    let pin = fleet.namespace();
    if !namespace::is_pinned(&pin) {
        namespace::create(&pin, make_bridges)?;
    }
    let interface = fleet.interface();
    if !is_up(fleet)? {
        let host = namespace::of_this_process();
        let link = format!("link add host type veth peer name {interface} netns {}", host.display());
        namespace::within(&pin, || ip::batch(&[link]))?;
    }
    namespace::within(&pin, || ip::batch(&["link set host master public up".to_owned()]))?;
    ip::batch(&[
        format!("address replace {}/{} dev {interface}", network.host(), network.public().prefix_len()),
        format!("link set {interface} up"),
    ])
}

/// Whether the fleet's interface exists, and with it the route.
pub(crate) fn is_up(fleet: &Fleet) -> Result<bool, LocalHypervisorError> {
    let index = socket(AddressFamily::INET, SocketType::DGRAM, None)
        .and_then(|socket| name_to_index(socket, &fleet.interface()));
    match index {
        Ok(_) => Ok(true),
        Err(Errno::NODEV) => Ok(false),
        Err(errno) => Err(LocalHypervisorError::system("find the interface of the fleet")(errno)),
    }
}

/// Creates a machine's namespace, with a link to each of its networks.
pub(crate) fn ensure_machine(machine: &FleetMachine, network: FleetNetwork) -> Result<(), LocalHypervisorError> {
    let pin = machine.namespace();
    if namespace::is_pinned(&pin) {
        return Ok(());
    }
    let legs = legs(machine, network);
    let bridges = machine.fleet.namespace();
    namespace::create(&pin, || {
        alone()?;
        for leg in &legs {
            leg.attach(&bridges)?;
        }
        if legs.len() > 1 {
            guard_private(network.private())?;
        }
        Ok(())
    })
}

/// Sets up a new namespace: no forwarding, and `lo` up.
pub(crate) fn alone() -> Result<(), LocalHypervisorError> {
    closed_to_forwarding()?;
    ip::batch(&["link set lo up".to_owned()])
}

/// Removes a machine's links. Connections of other machines to it stay open, because nothing notifies these machines.
pub(crate) fn cut(machine: &FleetMachine, network: FleetNetwork) -> Result<(), LocalHypervisorError> {
    let bridges = machine.fleet.namespace();
    if !namespace::is_pinned(&bridges) {
        return Ok(());
    }
    namespace::within(&bridges, || legs(machine, network).iter().try_for_each(|leg| ip::remove_link(&leg.port)))
}

/// A machine's link to one network.
pub(crate) struct NetworkLeg {
    /// The interface in the machine.
    pub(crate) name: &'static str,
    /// The bridge of the network.
    pub(crate) bridge: &'static str,
    /// The port of the bridge.
    pub(crate) port: String,
    pub(crate) address: Ipv4Net,
}

impl NetworkLeg {
    /// Returns a locally administered address that stays the same across restarts of the machine, so that its neighbours reach it at once.
    fn hardware(&self) -> String {
        let [a, b, c, d] = self.address.addr().octets();
        format!("02:4b:{a:02x}:{b:02x}:{c:02x}:{d:02x}")
    }

    /// Creates the link. Call it in the machine's namespace.
    pub(crate) fn attach(&self, bridges: &Path) -> Result<(), LocalHypervisorError> {
        let Self { name, bridge, port, address } = self;
        // An interrupted attempt may have left the port for a moment.
        namespace::within(bridges, || ip::remove_link(port))?;
        ip::batch(&[
            format!(
                "link add {name} address {} type veth peer name {port} netns {}",
                self.hardware(),
                bridges.display()
            ),
            format!("address add {address} dev {name}"),
            format!("link set {name} up"),
        ])?;
        namespace::within(bridges, || ip::batch(&[format!("link set {port} master {bridge} up")]))
    }
}

/// Returns the links of a hypervisor. A worker has none here: `worker/wiring.rs` creates its only link.
fn legs(machine: &FleetMachine, network: FleetNetwork) -> Vec<NetworkLeg> {
    let FleetMachineId::Hypervisor(id) = machine.id else { return Vec::new() };
    let leg = |name, suffix, address, range: Ipv4Net| NetworkLeg {
        name,
        bridge: name,
        port: format!("{id}-{suffix}"),
        address: Ipv4Net::new_assert(address, range.prefix_len()),
    };
    let private = network.private_address(id);
    let public = network.public_address(id);
    [leg("private", "priv", private, network.private())]
        .into_iter()
        .chain(public.map(|address| leg("public", "pub", address, network.public())))
        .collect()
}

/// Creates two bridges that forward frames. Their namespace itself has no address.
fn make_bridges() -> Result<(), LocalHypervisorError> {
    closed_to_forwarding()?;
    for family in ["default", "all"] {
        set_if_there(&format!("ipv6/conf/{family}/disable_ipv6"), "1")?;
    }
    ip::batch(&[
        "link add public type bridge".to_owned(),
        "link add private type bridge".to_owned(),
        "link set public up".to_owned(),
        "link set private up".to_owned(),
    ])
}

/// Disables forwarding, because a new namespace inherits it from the host.
fn closed_to_forwarding() -> Result<(), LocalHypervisorError> {
    set_if_there("ipv4/ip_forward", "0")?;
    set_if_there("ipv6/conf/all/forwarding", "0")
}

/// Prohibits access to a machine's private address from the public network. Linux responds to all its addresses on every interface,
/// whatever routes a client sets. The rule therefore precedes the table of local addresses.
fn guard_private(private: Ipv4Net) -> Result<(), LocalHypervisorError> {
    ip::batch(&[
        "rule add preference 20 lookup local".to_owned(),
        format!("rule add preference 10 iif public to {private} prohibit"),
        "rule delete preference 0".to_owned(),
    ])
}

pub(crate) fn set_if_there(name: &str, value: &str) -> Result<(), LocalHypervisorError> {
    let path = Path::new("/proc/sys/net").join(name);
    if path.exists() {
        fs::write(&path, value).map_err(LocalHypervisorError::file("set", path))?;
    }
    Ok(())
}
