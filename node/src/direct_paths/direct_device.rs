//! The WireGuard device of direct paths, and the routes into it.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::IpAddr,
};

use ipnet::IpNet;
use keelway_api::worker::ClusterInformation;
use keelway_vpn::{
    DataPath, DataPathError, DeviceConfig, PeerConfig, PeerSet, PeerStats, PrivateKey, PublicKey, data_path,
    netlink::{
        NetlinkError,
        interface::{Interface, KernelRoute},
    },
    uapi::{UapiServer, default_socket},
};

use super::{INTERFACE, link_socket::BoundInterface};
use crate::{
    peer::PeerAssignment,
    tunnels::{have, loosen},
};

/// The metric of routes to direct peers: smaller than that of routes through a gateway, although more specific routes precede those anyway.
const DIRECT: u32 = 50;
/// The metric of the routes of probes, which are bound to this device. All other packets use the routes through the active gateway, with a smaller
/// metric.
const PROBES: u32 = 150;

/// The device of direct paths cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum DirectDeviceError {
    #[error("cannot use the WireGuard device {INTERFACE}")]
    Device(#[source] DataPathError),
    #[error("cannot set up the network of {INTERFACE}")]
    Network(#[source] NetlinkError),
    #[error("cannot open a socket on {INTERFACE}")]
    Socket(#[source] io::Error),
}

/// The device. It is up until it is dropped, and its routes with it.
pub(super) struct DirectDevice {
    path: Box<dyn DataPath>,
    pub(super) port: u16,
    index: u32,
    peers: PeerSet,
    routes: BTreeSet<IpNet>,
    /// The socket for `wg`, if the kernel does not serve the device itself.
    _served: Option<UapiServer>,
}

impl DirectDevice {
    /// Creates the device, with this outer port. It replaces one that a killed daemon left.
    pub(super) fn open(key: &PrivateKey, port: u16, mtu: u16) -> Result<Self, DirectDeviceError> {
        remove().map_err(DirectDeviceError::Network)?;
        let config = DeviceConfig {
            name: INTERFACE.to_owned(),
            private_key: Some(key.clone()),
            listen_port: port,
            mtu,
            ..DeviceConfig::default()
        };
        let mut served = None;
        let path = data_path::open(&config, |device| served = device.serve(default_socket(INTERFACE)).ok());
        let path = path.map_err(DirectDeviceError::Device)?;
        if let Err(error) = loosen(INTERFACE) {
            tracing::warn!(%error, interface = INTERFACE, "cannot loosen reverse path filtering");
        }
        let index = Interface::find(INTERFACE).map_err(DirectDeviceError::Network)?.index();
        let (peers, routes) = (PeerSet::default(), BTreeSet::new());
        Ok(Self { path, port, index, peers, routes, _served: served })
    }

    /// Whether the interface still exists: another program may remove it.
    pub(super) fn is_present(&self) -> bool {
        Interface::find(INTERFACE).is_ok_and(|found| found.index() == self.index)
    }

    /// Returns the interface, to which sockets of probes are bound.
    pub(super) fn interface(&self) -> BoundInterface {
        BoundInterface { name: INTERFACE.to_owned(), index: self.index }
    }

    /// Brings the interface up, with this worker's addresses and the routes of probes.
    pub(super) fn settle(cluster: &ClusterInformation, assignment: &PeerAssignment) -> Result<(), DirectDeviceError> {
        let settle = || {
            let interface = Interface::find(INTERFACE)?;
            interface.bring_up(cluster.vpn_mtu)?;
            have(&interface, assignment.addresses.iter())?;
            let routes = cluster.vpn_cidrs.iter().map(|range| route(*range, PROBES, assignment));
            routes.map(|route| interface.set_route(&route)).fold(Ok(()), Result::and)
        };
        settle().map_err(DirectDeviceError::Network)
    }

    /// Sets the peers. Those of `anew` lose their sessions, because WireGuard repeats a handshake at another endpoint only after five seconds.
    pub(super) fn set_peers(&mut self, peers: PeerSet, anew: &BTreeSet<PublicKey>) -> Result<(), DirectDeviceError> {
        let mut set = |peers: &PeerSet| self.path.set_peers(peers).map(drop).map_err(DirectDeviceError::Device);
        if !anew.is_empty() {
            set(&peers.iter().filter(|peer: &&PeerConfig| !anew.contains(&peer.public_key)).cloned().collect())?;
        } else if peers == self.peers {
            return Ok(());
        }
        set(&peers)?;
        self.peers = peers;
        Ok(())
    }

    /// Routes exactly these destinations into the device. All others use a gateway.
    pub(super) fn set_routes(
        &mut self,
        wanted: &BTreeSet<IpNet>,
        assignment: &PeerAssignment,
    ) -> Result<(), DirectDeviceError> {
        let (stale, new): (Vec<IpNet>, Vec<IpNet>) =
            (self.routes.difference(wanted).copied().collect(), wanted.difference(&self.routes).copied().collect());
        let mut outcome = Ok(());
        for destination in stale {
            let removed = KernelRoute { destination, metric: DIRECT, source: None }.remove();
            if removed.is_ok() {
                self.routes.remove(&destination);
            }
            outcome = outcome.and(removed);
        }
        for destination in new {
            let added = Interface::find(INTERFACE)
                .and_then(|interface| interface.set_route(&route(destination, DIRECT, assignment)));
            if added.is_ok() {
                self.routes.insert(destination);
            }
            outcome = outcome.and(added);
        }
        outcome.map_err(DirectDeviceError::Network)
    }

    /// Returns what the device observes of each peer.
    pub(super) fn stats(&mut self) -> Result<BTreeMap<PublicKey, PeerStats>, DirectDeviceError> {
        let stats = self.path.stats().map_err(DirectDeviceError::Device)?;
        Ok(stats.into_iter().map(|peer| (peer.public_key, peer)).collect())
    }
}

fn route(destination: IpNet, metric: u32, assignment: &PeerAssignment) -> KernelRoute {
    let source: Option<IpAddr> = assignment.address(destination.addr().is_ipv4());
    KernelRoute { destination, metric, source }
}

/// Removes the interface that a daemon left, with its routes.
pub(crate) fn remove() -> Result<(), NetlinkError> {
    Interface::find(INTERFACE).map_or(Ok(()), |interface| interface.delete())
}
