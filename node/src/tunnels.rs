//! The tunnels of a worker: one to each gateway. One of them, the active one, carries all traffic.

pub(crate) mod choice;
mod endpoint_choice;
mod gateways;
mod tls_stream;
mod udp_check;
mod worker_tunnel;

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
use keelway_base::error_chain::ErrorChain;
use keelway_http_proxy::HttpProxies;
use keelway_vpn::{
    DataPathError, DeviceConfig, InvalidKey, PrivateKey, PublicKey, data_path,
    netlink::{
        NetlinkError,
        interface::{Interface, KernelRoute},
    },
    uapi::default_socket,
};
use serde::{Deserialize, Serialize};
use tokio::{
    net::TcpSocket,
    time::{Instant, timeout},
};

use crate::{direct_paths, information::TrustedInformation, peer::PeerAssignment};
use choice::{GatewayChoice, GatewayPreference, GatewayState};
pub use endpoint_choice::TunnelTransport;
use gateways::{TunnelGateway, gateways};
pub(crate) use tls_stream::GATEWAY_NAME;
use tls_stream::TlsTransport;
use worker_tunnel::WorkerTunnel;

/// The prefix of the interfaces' names. A number follows.
pub(crate) const INTERFACE: &str = "keelway";
/// A limit above the number of gateways that a cluster can have.
pub(crate) const MOST: usize = 16;
/// Route metrics: of routes through the active gateway, and of blackholes, which apply while there is no active gateway.
const ACTIVE: u32 = 100;
const BLACKHOLE: u32 = 100_000;
/// The interval of health checks of each gateway.
pub(crate) const ASK_EVERY: Duration = Duration::from_secs(2);
/// How long a response may take.
pub(crate) const ANSWER: Duration = Duration::from_secs(1);
/// No program listens on this port (`discard`, RFC 863), so a healthy gateway refuses the connection.
pub(crate) const PORT: u16 = 9;

/// A tunnel cannot be set up.
#[derive(Debug, thiserror::Error)]
pub enum TunnelError {
    /// The gateway's key is invalid.
    #[error("the gateway at {endpoint} has no valid key")]
    Key {
        /// The endpoint of the gateway.
        endpoint: SocketAddr,
        /// Why the key is invalid.
        #[source]
        source: InvalidKey,
    },
    /// The device failed.
    #[error("cannot bring up the tunnel to the gateway at {endpoint}")]
    Device {
        /// The endpoint of the gateway.
        endpoint: SocketAddr,
        /// The error of the data path.
        #[source]
        source: DataPathError,
    },
    /// The kernel refused an interface, an address or a route.
    #[error("cannot set up the tunnel's network")]
    Network(#[source] NetlinkError),
}

/// The state of one tunnel in `node status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TunnelStatus {
    /// The name of the interface.
    pub interface: String,
    /// The endpoint of the gateway that is in use.
    pub endpoint: SocketAddr,
    /// How the tunnel's datagrams reach this endpoint.
    #[serde(default)]
    pub transport: TunnelTransport,
    /// The other endpoints of the gateway, which the worker tries if the one in use is silent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_endpoints: Vec<SocketAddr>,
    /// Whether this tunnel carries the worker's outgoing packets.
    pub active: bool,
    /// Whether the gateway responded to the last check. Absent before the first check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answers: Option<bool>,
    /// The data path that moves the packets: `kernel` or `userspace`.
    pub data_path: String,
    /// The time of the last handshake, in seconds since the Unix epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_handshake: Option<u64>,
    /// The duration of the last successful check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_microseconds: Option<u64>,
    /// The number of received bytes.
    pub received_bytes: u64,
    /// The number of sent bytes.
    pub sent_bytes: u64,
}

impl TunnelStatus {
    /// Returns all endpoints of the gateway, first the one that is in use.
    pub fn endpoints(&self) -> impl Iterator<Item = SocketAddr> {
        std::iter::once(self.endpoint).chain(self.other_endpoints.iter().copied())
    }
}

/// The interface through which this worker reaches a gateway's own addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GatewayLink {
    pub(crate) key: PublicKey,
    pub(crate) interface: String,
    /// The number of the interface. One of the same name that replaces it has another number.
    pub(crate) index: u32,
    pub(crate) addresses: Vec<IpAddr>,
}

/// The desired state of the tunnels.
#[derive(Debug, Default)]
struct DesiredTunnels {
    assignment: PeerAssignment,
    /// The addresses on which this worker's balancer serves the API.
    api: Vec<IpAddr>,
    ranges: Vec<IpNet>,
    mtu: u16,
    gateways: Vec<TunnelGateway>,
    /// How tunnels without UDP connect. `None` if the authorities cannot be used.
    tls: Option<TlsTransport>,
}

/// All tunnels of this worker. They are up until they are dropped.
pub(crate) struct WorkerTunnels {
    key: PrivateKey,
    proxies: HttpProxies,
    wanted: DesiredTunnels,
    open: Vec<WorkerTunnel>,
    choice: GatewayChoice,
    /// The faults of the last pass. A fault that persists is logged once.
    faults: Vec<String>,
}

impl WorkerTunnels {
    /// Creates a value without tunnels.
    pub(crate) fn new(key: PrivateKey, proxies: HttpProxies) -> Self {
        Self {
            key,
            proxies,
            wanted: DesiredTunnels::default(),
            open: Vec::new(),
            choice: GatewayChoice::default(),
            faults: Vec::new(),
        }
    }

    /// Deletes interfaces that a killed daemon left: the kernel's interfaces outlive the daemon. The desired ones are created again.
    pub(crate) fn clear_left() {
        for slot in 0..=MOST {
            if let Ok(left) = Interface::find(&format!("{INTERFACE}{slot}"))
                && let Err(error) = left.delete()
            {
                tracing::warn!(slot, "cannot delete the tunnel of an earlier daemon: {}", ErrorChain(&error));
            }
        }
    }

    /// Reconciles tunnels, addresses and routes with the cluster's information.
    pub(crate) fn set(&mut self, known: &TrustedInformation, assignment: &PeerAssignment) {
        self.note(known, assignment);
        self.converge();
    }

    /// Sets the desired state and adds this worker's addresses. [`WorkerTunnels::converge`] does the rest, and also reports errors.
    pub(crate) fn set_desired(&mut self, known: &TrustedInformation, assignment: &PeerAssignment) {
        self.note(known, assignment);
        let _ = self.wanted.addresses();
    }

    fn note(&mut self, known: &TrustedInformation, assignment: &PeerAssignment) {
        let cluster = &known.cluster;
        let (gateways, faults) = gateways(cluster);
        for error in &faults {
            tracing::error!("ignoring a gateway: {}", ErrorChain(error));
        }
        let tls = TlsTransport::new(&known.authorities, self.proxies.clone());
        let tls = tls.inspect_err(|error| tracing::error!("no tunnel can use TLS: {}", ErrorChain(error))).ok();
        self.wanted = DesiredTunnels {
            tls,
            assignment: assignment.clone(),
            api: cluster.api.addresses.clone(),
            ranges: [cluster.vpn_cidrs.clone(), cluster.pod_cidrs.clone()].concat(),
            mtu: cluster.vpn_mtu,
            gateways,
        };
    }

    /// Creates what is missing: the first time, after an error, and after another program removed it. Existing tunnels keep their sessions, and
    /// one error does not prevent the rest. It logs each fault once.
    pub(crate) fn converge(&mut self) {
        let mut faults = Vec::new();
        let mut note = |outcome: Result<(), TunnelError>| {
            if let Err(error) = outcome {
                faults.push(ErrorChain(&error).to_string());
            }
        };
        note(self.wanted.addresses().map_err(TunnelError::Network));
        note(self.wanted.block_routes().map_err(TunnelError::Network));
        let active = self.open.get(self.choice.active()).map(|tunnel| tunnel.gateway.key);
        let state = |(at, tunnel): (usize, &WorkerTunnel)| Some((tunnel.gateway.key, self.choice.state(at)?));
        let known: BTreeMap<PublicKey, GatewayState> = self.open.iter().enumerate().filter_map(state).collect();
        self.open
            .retain_mut(|tunnel| tunnel.adopt(&self.wanted.gateways) && Interface::find(tunnel.path.name()).is_ok());
        for gateway in &self.wanted.gateways {
            if !self.open.iter().any(|tunnel| tunnel.gateway == *gateway) {
                note(self.open(gateway).map(|tunnel| self.open.push(tunnel)));
            }
        }
        self.open.sort_by(|a, b| a.gateway.cmp(&b.gateway));
        let kept = active.and_then(|active| self.open.iter().position(|tunnel| tunnel.gateway.key == active));
        let own = self.key.public();
        let new = |gateway: &PublicKey| GatewayState::new(GatewayPreference::of(&own, gateway));
        let state = |key: &PublicKey| known.get(key).copied().unwrap_or_else(|| new(key));
        let states = self.open.iter().map(|tunnel| state(&tunnel.gateway.key)).collect();
        self.choice = GatewayChoice::new(states, kept);
        for tunnel in &mut self.open {
            note(tunnel.settle(&self.wanted));
        }
        note(self.route().map_err(TunnelError::Network));
        if faults != self.faults {
            for fault in &faults {
                tracing::error!("cannot apply tunnels: {fault}");
            }
            if faults.is_empty() {
                tracing::info!("tunnels are applied");
            }
            self.faults = faults;
        }
    }

    fn open(&self, gateway: &TunnelGateway) -> Result<WorkerTunnel, TunnelError> {
        let taken: BTreeSet<usize> = self.open.iter().map(|tunnel| tunnel.slot).collect();
        let slot = (0..MOST).find(|slot| !taken.contains(slot)).unwrap_or(MOST);
        let name = format!("{INTERFACE}{slot}");
        if let Ok(left) = Interface::find(&name) {
            left.delete().map_err(TunnelError::Network)?;
        }
        let config = DeviceConfig {
            name: name.clone(),
            private_key: Some(self.key.clone()),
            mtu: self.wanted.mtu,
            ..DeviceConfig::default()
        };
        let mut served = None;
        let path = data_path::open(&config, |device| served = device.serve(default_socket(&name)).ok());
        let endpoint = gateway.endpoints[0];
        let path = path.map_err(|source| TunnelError::Device { endpoint, source })?;
        if let Err(error) = loosen(&name) {
            tracing::warn!(%error, interface = name, "cannot loosen reverse path filtering; responses through another gateway are dropped");
        }
        Ok(WorkerTunnel::new(gateway.clone(), slot, path, served))
    }

    /// Routes each gateway's own addresses into its tunnel, and the cluster's other ranges into the active one.
    fn route(&self) -> Result<(), NetlinkError> {
        let into = |tunnel: &WorkerTunnel, ranges: &[IpNet]| {
            let interface = Interface::find(tunnel.path.name())?;
            ranges.iter().try_for_each(|range| interface.set_route(&self.wanted.to(*range)))
        };
        let own = |tunnel: &WorkerTunnel| into(tunnel, &tunnel.gateway.ranges());
        let active = self.open.get(self.choice.active()).map_or(Ok(()), |active| into(active, &self.wanted.ranges));
        // An error of one tunnel must not prevent the routes of another.
        self.open.iter().map(own).fold(active, Result::and)
    }

    /// Checks all gateways, tries another endpoint of those that are silent, and makes another gateway active if the active one is lost. Returns
    /// whether a check is unconfirmed. The caller then checks again as soon as the time for a response is over.
    pub(crate) async fn ask(&mut self) -> bool {
        let round = join_all(self.open.iter().map(|tunnel| self.check(tunnel))).await;
        for (tunnel, latency) in self.open.iter_mut().zip(&round) {
            tunnel.latency = latency.flatten().or(tunnel.latency);
        }
        let round: Vec<Option<bool>> = round.into_iter().map(|asked| Some(asked?.is_some())).collect();
        let mut moved = BTreeSet::new();
        for (tunnel, answered) in self.open.iter_mut().zip(&round) {
            if let Some(answered) = *answered
                && tunnel.note(answered, &self.wanted, &self.key)
                && answered
            {
                moved.insert(tunnel.slot);
            }
        }
        // A gateway sends to the earlier endpoint, which is closed, until it receives something from the new one.
        let moved = self.open.iter().filter(|tunnel| moved.contains(&tunnel.slot));
        join_all(moved.map(|tunnel| self.check(tunnel))).await;
        let before = self.choice.active();
        if self.choice.note(&round, Instant::now()) {
            let place = |at: usize| self.open.get(at).map(|tunnel| tunnel.endpoints.current());
            tracing::warn!(from = ?place(before), to = ?place(self.choice.active()), "switched to another gateway");
            if let Err(error) = self.route() {
                tracing::error!("cannot apply routes: {}", ErrorChain(&error));
            }
        }
        self.choice.is_unconfirmed() || self.open.iter().any(|tunnel| tunnel.endpoints.is_searching())
    }

    /// Returns how long the gateway took to respond through its tunnel, if it did. Returns `None` for a gateway without an address to check.
    fn check(&self, tunnel: &WorkerTunnel) -> impl Future<Output = Option<Option<Duration>>> + use<> {
        let from = |to: &IpAddr| self.wanted.assignment.address(to.is_ipv4());
        let target = tunnel.gateway.addresses.iter().find_map(|to| Some((*to, from(to)?)));
        async move {
            let (to, from) = target?;
            let asked = Instant::now();
            Some(answers(from, to).await.then(|| asked.elapsed()))
        }
    }

    /// Returns the interfaces of the gateways.
    pub(crate) fn links(&self) -> Vec<GatewayLink> {
        let link = |tunnel: &WorkerTunnel| {
            let interface = tunnel.path.name().to_owned();
            let index = Interface::find(&interface).ok()?.index();
            Some(GatewayLink { key: tunnel.gateway.key, interface, index, addresses: tunnel.gateway.addresses.clone() })
        };
        self.open.iter().filter_map(link).collect()
    }

    /// Returns the state of the tunnels.
    pub(crate) fn status(&mut self) -> Vec<TunnelStatus> {
        let choice = &self.choice;
        let tunnels = self.open.iter_mut().enumerate();
        let status = tunnels.map(|(at, tunnel)| {
            let peer = tunnel.path.stats().ok().and_then(|peers| peers.into_iter().next());
            TunnelStatus {
                interface: tunnel.path.name().to_owned(),
                endpoint: tunnel.endpoints.current().address,
                transport: tunnel.endpoints.current().transport,
                other_endpoints: tunnel.endpoints.others(),
                active: at == choice.active(),
                answers: choice.answers(at),
                data_path: tunnel.path.kind().to_string(),
                latency_microseconds: tunnel.latency.and_then(|latency| latency.as_micros().try_into().ok()),
                last_handshake: peer.as_ref().and_then(|peer| peer.last_handshake).map(|time| time.as_secs()),
                received_bytes: peer.as_ref().map_or(0, |peer| peer.received_bytes),
                sent_bytes: peer.as_ref().map_or(0, |peer| peer.sent_bytes),
            }
        });
        status.collect()
    }
}

impl DesiredTunnels {
    /// Adds this worker's own addresses.
    fn addresses(&self) -> Result<(), NetlinkError> {
        have(&Interface::find("lo")?, self.assignment.addresses.iter().chain(&self.api))
    }

    /// Adds blackholes, so that packets to the cluster's ranges do not leave through another interface while there is no tunnel.
    fn block_routes(&self) -> Result<(), NetlinkError> {
        let routes =
            self.ranges.iter().map(|range| KernelRoute { destination: *range, metric: BLACKHOLE, source: None });
        routes.map(|route| route.set_blackhole()).fold(Ok(()), Result::and)
    }

    fn to(&self, destination: IpNet) -> KernelRoute {
        let source = self.assignment.address(destination.addr().is_ipv4());
        KernelRoute { destination, metric: ACTIVE, source }
    }
}

/// Adds missing addresses to an interface.
pub(crate) fn have<'a>(interface: &Interface, addresses: impl Iterator<Item = &'a IpAddr>) -> Result<(), NetlinkError> {
    let there = interface.addresses()?;
    let missing = addresses.filter(|address| !there.contains(address));
    missing.map(|address| interface.add_address(IpNet::from(*address))).fold(Ok(()), Result::and)
}

/// Whether the gateway responds inside its tunnel, by refusing a connection to an unused port.
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

/// Sets a loose `rp_filter`: accepts responses through another tunnel than the request's.
pub(crate) fn loosen(interface: &str) -> io::Result<()> {
    fs::write(format!("/proc/sys/net/ipv4/conf/{interface}/rp_filter"), "2")
}

/// Returns the paths of the sockets through which `wg` reads the tunnels.
pub(crate) fn sockets() -> impl Iterator<Item = PathBuf> {
    let tunnels = (0..MOST).map(|slot| format!("{INTERFACE}{slot}"));
    tunnels.chain([direct_paths::INTERFACE.to_owned()]).map(|name| default_socket(&name))
}

/// Removes what tunnels left on this machine: interfaces, routes, and addresses of `lo`.
pub(crate) fn clear(cluster: &ClusterInformation, assignment: &PeerAssignment) -> Result<(), NetlinkError> {
    for slot in 0..MOST {
        if let Ok(interface) = Interface::find(&format!("{INTERFACE}{slot}")) {
            interface.delete()?;
        }
    }
    direct_paths::remove()?;
    for range in cluster.vpn_cidrs.iter().chain(&cluster.pod_cidrs) {
        KernelRoute { destination: *range, metric: BLACKHOLE, source: None }.remove()?;
    }
    let lo = Interface::find("lo")?;
    for address in assignment.addresses.iter().chain(&cluster.api.addresses) {
        lo.remove_address(IpNet::from(*address))?;
    }
    Ok(())
}
