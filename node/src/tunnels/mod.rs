//! The tunnels of a worker: one to each gateway, one of which carries all.

pub(crate) mod choice;

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    net::{IpAddr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use futures::future::join_all;
use ipnet::IpNet;
use keelway_api::worker::ClusterInformation;
use keelway_vpn::{
    DataPath, DataPathError, DeviceConfig, InvalidKey, PeerConfig, Peers, PrivateKey, PublicKey, data_path,
    error::Chain,
    netlink::{
        NetlinkError,
        interface::{Interface, Route},
    },
    uapi::{Server, default_socket},
};
use serde::{Deserialize, Serialize};
use tokio::{net::TcpSocket, time::timeout};

use crate::peer::Given;
use choice::Choice;

/// Interfaces are called so, with a number.
pub(crate) const INTERFACE: &str = "keelway";
/// More gateways than a cluster may have.
pub(crate) const MOST: usize = 16;
/// WireGuard takes 80 bytes of a packet of 1500.
const MTU: u16 = 1420;
/// Seconds between keepalives: less than any NAT forgets in.
const KEEPALIVE: u16 = 15;
/// Metrics: of what the active gateway carries, and of what holds back all else while there is none.
const ACTIVE: u32 = 100;
const BLACKHOLE: u32 = 100_000;
/// How often each gateway is asked.
pub(crate) const ASK_EVERY: Duration = Duration::from_secs(2);
/// How long its answer may take.
const ANSWER: Duration = Duration::from_secs(1);
/// Nothing listens there (`discard`, RFC 863), so that a gateway that lives refuses.
const PORT: u16 = 9;

/// A tunnel cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum TunnelError {
    /// The gateway's key is none.
    #[error("the gateway at {endpoint} has no key that can be used")]
    Key {
        /// Where it is.
        endpoint: SocketAddr,
        /// Why.
        #[source]
        source: InvalidKey,
    },
    /// The device failed.
    #[error("cannot bring up the tunnel to the gateway at {endpoint}")]
    Device {
        /// Where it is.
        endpoint: SocketAddr,
        /// Why.
        #[source]
        source: DataPathError,
    },
    /// The kernel refused an interface, an address or a route.
    #[error("cannot set up the tunnel's network")]
    Network(#[source] NetlinkError),
}

/// One tunnel, as `node status` tells of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TunnelStatus {
    /// The interface.
    pub interface: String,
    /// Where its gateway is.
    pub endpoint: SocketAddr,
    /// Whether this one carries what leaves.
    pub active: bool,
    /// Whether the gateway answered last.
    pub answers: bool,
    /// Who moves the packets: `kernel` or `userspace`.
    pub data_path: String,
    /// When keys were last agreed on, in seconds since the Unix epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_handshake: Option<u64>,
    /// Bytes that came.
    pub received_bytes: u64,
    /// Bytes that went.
    pub sent_bytes: u64,
}

/// A gateway, as this worker reaches it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Gateway {
    endpoint: SocketAddr,
    key: PublicKey,
    addresses: Vec<IpAddr>,
}

struct Tunnel {
    gateway: Gateway,
    slot: usize,
    path: Box<dyn DataPath>,
    /// For `wg`, where the kernel does not serve it itself.
    _served: Option<Server>,
}

/// All tunnels of this worker. They are up until they are dropped.
pub(crate) struct Tunnels {
    key: PrivateKey,
    name_hash: usize,
    given: Given,
    ranges: Vec<IpNet>,
    open: Vec<Tunnel>,
    choice: Choice,
}

impl Tunnels {
    /// None yet. Workers of different names begin with different gateways.
    pub(crate) fn new(key: PrivateKey, name: &str) -> Self {
        let name_hash = name.bytes().fold(0usize, |hash, byte| hash.wrapping_mul(31).wrapping_add(byte.into()));
        Self {
            key,
            name_hash,
            given: Given::default(),
            ranges: Vec::new(),
            open: Vec::new(),
            choice: Choice::default(),
        }
    }

    /// Brings tunnels, addresses and routes to what the cluster tells. What stays keeps its sessions.
    pub(crate) fn set(&mut self, cluster: &ClusterInformation, given: &Given) -> Result<(), TunnelError> {
        let wanted = gateways(cluster)?;
        self.given = given.clone();
        self.ranges = [cluster.vpn_cidrs.clone(), cluster.pod_cidrs.clone()].concat();
        let own = given.addresses.iter().chain(&cluster.api.addresses);
        let lo = Interface::find("lo").map_err(TunnelError::Network)?;
        for address in own {
            lo.add_address(IpNet::from(*address)).map_err(TunnelError::Network)?;
        }
        for range in &self.ranges {
            let route = Route { destination: *range, metric: BLACKHOLE, source: None };
            route.set_blackhole().map_err(TunnelError::Network)?;
        }
        let active = self.open.get(self.choice.active()).map(|tunnel| tunnel.gateway.clone());
        let is_same = self.open.iter().map(|tunnel| &tunnel.gateway).eq(&wanted);
        self.open.retain(|tunnel| wanted.contains(&tunnel.gateway));
        for gateway in &wanted {
            if !self.open.iter().any(|tunnel| tunnel.gateway == *gateway) {
                let tunnel = self.open(gateway)?;
                self.open.push(tunnel);
            }
        }
        self.open.sort_by(|a, b| a.gateway.cmp(&b.gateway));
        if !is_same {
            let kept = active.and_then(|active| self.open.iter().position(|tunnel| tunnel.gateway == active));
            self.choice = Choice::new(self.open.len(), kept.unwrap_or(self.name_hash));
        }
        for tunnel in &mut self.open {
            let peers = tunnel.gateway.peers(&self.ranges);
            let endpoint = tunnel.gateway.endpoint;
            tunnel.path.set_peers(&peers).map_err(|source| TunnelError::Device { endpoint, source })?;
            // Linux takes nothing from another tunnel's peers on an interface without an address, also where its filter is loose.
            let interface = Interface::find(tunnel.path.name()).map_err(TunnelError::Network)?;
            for address in &given.addresses {
                interface.add_address(IpNet::from(*address)).map_err(TunnelError::Network)?;
            }
        }
        self.route().map_err(TunnelError::Network)
    }

    fn open(&self, gateway: &Gateway) -> Result<Tunnel, TunnelError> {
        let taken: BTreeSet<usize> = self.open.iter().map(|tunnel| tunnel.slot).collect();
        let slot = (0..MOST).find(|slot| !taken.contains(slot)).unwrap_or(MOST);
        let name = format!("{INTERFACE}{slot}");
        // One of the kernel's outlives a daemon that was killed.
        if let Ok(left) = Interface::find(&name) {
            left.delete().map_err(TunnelError::Network)?;
        }
        let config = DeviceConfig {
            name: name.clone(),
            private_key: Some(self.key.clone()),
            mtu: MTU,
            ..DeviceConfig::default()
        };
        let mut served = None;
        let path = data_path::open(&config, |device| served = device.serve(default_socket(&name)).ok());
        let path = path.map_err(|source| TunnelError::Device { endpoint: gateway.endpoint, source })?;
        Interface::find(&name).and_then(|interface| interface.bring_up(MTU)).map_err(TunnelError::Network)?;
        if let Err(error) = loosen(&name) {
            tracing::warn!(%error, interface = name, "answers by another gateway are dropped");
        }
        Ok(Tunnel { gateway: gateway.clone(), slot, path, _served: served })
    }

    /// Routes each gateway's own addresses into its tunnel, and all else of the cluster into the active one.
    fn route(&self) -> Result<(), NetlinkError> {
        for tunnel in &self.open {
            let interface = Interface::find(tunnel.path.name())?;
            for address in &tunnel.gateway.addresses {
                interface.set_route(&self.to(IpNet::from(*address)))?;
            }
        }
        let Some(active) = self.open.get(self.choice.active()) else { return Ok(()) };
        let interface = Interface::find(active.path.name())?;
        self.ranges.iter().try_for_each(|range| interface.set_route(&self.to(*range)))
    }

    fn to(&self, destination: IpNet) -> Route {
        let source = self.given.address(destination.addr().is_ipv4());
        Route { destination, metric: ACTIVE, source }
    }

    /// Asks all gateways, and goes over to another one where the active one is lost.
    pub(crate) async fn ask(&mut self) {
        let questions = self.open.iter().map(|tunnel| {
            let target = tunnel.gateway.addresses.iter().find_map(|to| Some((*to, self.given.address(to.is_ipv4())?)));
            async move { if let Some((to, from)) = target { answers(from, to).await } else { true } }
        });
        for (at, answered) in join_all(questions).await.into_iter().enumerate() {
            let before = self.choice.active();
            if !answered {
                self.meet_again(at);
            }
            if self.choice.note(at, answered) {
                let place = |at: usize| self.open.get(at).map(|tunnel| tunnel.gateway.endpoint);
                tracing::warn!(from = ?place(before), to = ?place(self.choice.active()), "another gateway is active");
                if let Err(error) = self.route() {
                    tracing::error!("routes stay as they were: {}", Chain(&error));
                }
            }
        }
    }

    /// A gateway that did not know this worker when it was first greeted is greeted again: by itself WireGuard does so after five
    /// seconds.
    fn meet_again(&mut self, at: usize) {
        let Some(tunnel) = self.open.get_mut(at) else { return };
        let is_met = tunnel.path.stats().is_ok_and(|peers| peers.iter().any(|peer| peer.last_handshake.is_some()));
        if is_met {
            return;
        }
        let peers = tunnel.gateway.peers(&self.ranges);
        let set = tunnel.path.set_peers(&Peers::default()).and_then(|_| tunnel.path.set_peers(&peers));
        if let Err(error) = set {
            tracing::warn!("the gateway is not greeted again: {}", Chain(&error));
        }
    }

    /// How they are.
    pub(crate) fn status(&mut self) -> Vec<TunnelStatus> {
        let choice = &self.choice;
        let tunnels = self.open.iter_mut().enumerate();
        let status = tunnels.map(|(at, tunnel)| {
            let peer = tunnel.path.stats().ok().and_then(|peers| peers.into_iter().next());
            TunnelStatus {
                interface: tunnel.path.name().to_owned(),
                endpoint: tunnel.gateway.endpoint,
                active: at == choice.active(),
                answers: choice.answers(at),
                data_path: tunnel.path.kind().to_string(),
                last_handshake: peer.as_ref().and_then(|peer| peer.last_handshake).map(|time| time.as_secs()),
                received_bytes: peer.as_ref().map_or(0, |peer| peer.received_bytes),
                sent_bytes: peer.as_ref().map_or(0, |peer| peer.sent_bytes),
            }
        });
        status.collect()
    }
}

impl Gateway {
    fn peers(&self, ranges: &[IpNet]) -> Peers {
        let peer = PeerConfig {
            endpoint: Some(self.endpoint),
            persistent_keepalive: KEEPALIVE,
            allowed_ips: ranges.iter().copied().collect(),
            ..PeerConfig::new(self.key)
        };
        [peer].into_iter().collect()
    }
}

/// The gateways of a cluster, ordered.
fn gateways(cluster: &ClusterInformation) -> Result<Vec<Gateway>, TunnelError> {
    let mut all = BTreeMap::new();
    for endpoint in &cluster.endpoints {
        let Some(gateway) = &endpoint.gateway else { continue };
        let endpoint = endpoint.address;
        let key = gateway.public_key.parse().map_err(|source| TunnelError::Key { endpoint, source })?;
        all.insert(endpoint, Gateway { endpoint, key, addresses: gateway.addresses.clone() });
    }
    Ok(all.into_values().take(MOST).collect())
}

/// Whether the gateway answers inside its tunnel: it refuses a connection to a port that it has nothing on.
async fn answers(from: IpAddr, to: IpAddr) -> bool {
    let asked = async {
        let socket = if to.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
        socket.bind(SocketAddr::new(from, 0))?;
        socket.connect(SocketAddr::new(to, PORT)).await
    };
    match timeout(ANSWER, asked).await {
        Ok(Ok(_)) => true,
        Ok(Err(error)) => error.kind() == io::ErrorKind::ConnectionRefused,
        Err(_) => false,
    }
}

/// Lets answers in by another tunnel than the one that the question went by.
fn loosen(interface: &str) -> io::Result<()> {
    fs::write(format!("/proc/sys/net/ipv4/conf/{interface}/rp_filter"), "2")
}

/// Where tunnels are shown to `wg`.
pub(crate) fn sockets() -> impl Iterator<Item = PathBuf> {
    (0..MOST).map(|slot| default_socket(&format!("{INTERFACE}{slot}")))
}

/// Takes away what tunnels leave behind on this machine: interfaces, routes, and addresses of `lo`.
pub(crate) fn clear(cluster: &ClusterInformation, given: &Given) -> Result<(), NetlinkError> {
    for slot in 0..MOST {
        if let Ok(interface) = Interface::find(&format!("{INTERFACE}{slot}")) {
            interface.delete()?;
        }
    }
    for range in cluster.vpn_cidrs.iter().chain(&cluster.pod_cidrs) {
        Route { destination: *range, metric: BLACKHOLE, source: None }.remove()?;
    }
    let lo = Interface::find("lo")?;
    for address in given.addresses.iter().chain(&cluster.api.addresses) {
        lo.remove_address(IpNet::from(*address))?;
    }
    Ok(())
}
