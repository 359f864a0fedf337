//! A network namespace that is connected to the worker's bridge as a pod is.

use std::{
    fs::File,
    io,
    net::{IpAddr, TcpStream},
    os::fd::AsFd,
    panic::resume_unwind,
    path::Path,
    thread,
    time::Duration,
};

use ipnet::IpNet;
use keelway_api::worker::ClusterInformation;
use keelway_vpn::netlink::{NetlinkError, bridge_port::BridgePort, interface::Interface};
use rustix::{
    io::Errno,
    thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space},
};

use super::{
    PodProbeError,
    probed_target::{ProbedRole, ProbedTarget},
    reserved_address::{ADDRESSES, ReservedAddress},
};
use crate::{changes::BRIDGE, peer::PeerAssignment};

/// The port of the bridge, and its other end.
const PORT: &str = "kwprobe0";
const END: &str = "eth0";
/// A bridge has the smallest address of its ports. This one is larger than those of pods, so that the bridge keeps its address.
const PORT_ADDRESS: [u8; 6] = [0xfe, 0xff, 0x6b, 0x77, 0x00, 0x01];
/// How long a connection may take. Its first packet is repeated after a second.
const ANSWER: Duration = Duration::from_secs(2);

/// The network of such an end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PodEndConfig {
    bridge: u32,
    mtu: u16,
    /// The worker's pod ranges, each with the address of the bridge.
    ranges: Vec<(IpNet, IpAddr)>,
}

impl PodEndConfig {
    /// Returns the network of pods. `None` if the worker has no bridge yet, or the cluster has its own CNI plugins.
    pub(super) fn observe(cluster: &ClusterInformation, assignment: &PeerAssignment) -> Option<Self> {
        let bridge = Interface::find(BRIDGE).ok().filter(|_| cluster.cni.enabled)?;
        let addresses = bridge.addresses().ok()?;
        let gateway = |range: &IpNet| Some((*range, *addresses.iter().find(|address| range.contains(*address))?));
        let ranges: Vec<_> = assignment.pod_cidrs.iter().filter_map(gateway).collect();
        (!ranges.is_empty()).then(|| Self { bridge: bridge.index(), mtu: cluster.vpn_mtu, ranges })
    }
}

/// The end. The namespace, and the port of the bridge with it, ends when this is dropped.
pub(super) struct PodEnd {
    pub(super) config: PodEndConfig,
    namespace: File,
    addresses: Vec<ReservedAddress>,
}

impl PodEnd {
    pub(super) fn create(config: PodEndConfig) -> Result<Self, PodProbeError> {
        Self::create_with(config, Path::new(ADDRESSES))
    }

    /// `directory` is that of the plugin that assigns addresses to pods.
    pub(super) fn create_with(config: PodEndConfig, directory: &Path) -> Result<Self, PodProbeError> {
        let take = |(range, gateway): &(IpNet, IpAddr)| ReservedAddress::take(directory, range, *gateway);
        let addresses = config.ranges.iter().map(take).collect::<Result<Vec<_>, _>>()?;
        remove()?;
        let namespace = on_a_thread(|| {
            unshare()?;
            File::open("/proc/thread-self/ns/net").map_err(PodProbeError::Open)
        })?;
        let port =
            BridgePort { name: PORT, address: PORT_ADDRESS, end: END, namespace: namespace.as_fd(), mtu: config.mtu };
        Interface::find(BRIDGE)?.add_port(&port)?;
        let end = Self { config, namespace, addresses };
        end.within(|| end.configure())??;
        Ok(end)
    }

    fn configure(&self) -> Result<(), NetlinkError> {
        let interface = Interface::find(END)?;
        interface.bring_up(self.config.mtu)?;
        for (reserved, (range, gateway)) in self.addresses.iter().zip(&self.config.ranges) {
            interface.add_address(IpNet::new_assert(reserved.address, range.prefix_len()))?;
            interface.add_default_route(*gateway)?;
        }
        Ok(())
    }

    /// Whether another program removed the port.
    pub(super) fn is_gone() -> bool {
        Interface::find(PORT).is_err()
    }

    /// Connects to each target, and returns whether it responded.
    pub(super) fn connect(&self, targets: Vec<ProbedTarget>) -> Result<Vec<(ProbedTarget, bool)>, PodProbeError> {
        self.within(|| {
            let mut round: Vec<(ProbedTarget, bool)> = Vec::new();
            for target in targets {
                // A connection to the API costs one to an ingress, too.
                let is_implied = round.iter().any(|(other, has_responded)| *has_responded && other.implies(target));
                round.push((target, is_implied || responds(target)));
            }
            round
        })
    }

    fn within<T: Send>(&self, function: impl FnOnce() -> T + Send) -> Result<T, PodProbeError> {
        on_a_thread(|| {
            let network = Some(LinkNameSpaceType::Network);
            move_into_link_name_space(self.namespace.as_fd(), network).map_err(PodProbeError::Namespace)?;
            Ok(function())
        })
    }
}

/// A gateway refuses the connection.
fn responds(target: ProbedTarget) -> bool {
    match TcpStream::connect_timeout(&target.address, ANSWER) {
        Ok(_) => true,
        Err(error) => target.role == ProbedRole::Gateway && error.kind() == io::ErrorKind::ConnectionRefused,
    }
}

/// Removes the port of the bridge that an earlier daemon left. It outlives the daemon for a moment.
pub(crate) fn remove() -> Result<(), NetlinkError> {
    let Ok(left) = Interface::find(PORT) else { return Ok(()) };
    match left.delete() {
        Err(error) if error.errno() == Some(Errno::NODEV.raw_os_error()) => Ok(()),
        deleted => deleted,
    }
}

fn unshare() -> Result<(), PodProbeError> {
    #[expect(
        deprecated,
        reason = "its successor is unsafe for the sake of UnshareFlags::FILES, which is not passed here"
    )]
    rustix::thread::unshare(UnshareFlags::NEWNET).map_err(PodProbeError::Namespace)
}

/// Runs a function on a thread of its own, because a thread stays in the namespace that it entered.
fn on_a_thread<T: Send>(function: impl FnOnce() -> Result<T, PodProbeError> + Send) -> Result<T, PodProbeError> {
    thread::scope(|scope| scope.spawn(function).join()).unwrap_or_else(|panic| resume_unwind(panic))
}
