//! Direct paths between workers, without a gateway.
//!
//! Gateways introduce workers to each other that exchange packets. Each worker has one more WireGuard device, for all direct paths. It routes a
//! peer's addresses into that device only while both ends hear each other there. All other packets use the tunnels to the gateways, so a direct path
//! that fails ends by removing routes.

mod direct_device;
mod direct_probe;
mod introduced_peers;
mod introduction_bounds;
mod link_socket;
mod path_state;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use ipnet::IpNet;
use keelway_api::worker::ClusterInformation;
use keelway_base::error_chain::ErrorChain;
use keelway_vpn::{
    INTRODUCTION_PORT, IntroductionRequest, PeerConfig, PeerIntroduction, PeerStats, PrivateKey, PublicKey,
    netlink::interface::{Interface, local_addresses},
};
use rand::RngExt;
use serde::{Deserialize, Serialize};
use tokio::{
    select,
    sync::{mpsc, watch},
    time::{Instant, MissedTickBehavior, interval},
};

use crate::{facts, peer::PeerAssignment, tunnels::GatewayLink};
pub(crate) use direct_device::remove;
use direct_device::{DirectDevice, DirectDeviceError};
use direct_probe::PROBE_PORT;
use introduced_peers::IntroducedPeers;
use introduction_bounds::{DirectPeer, IntroductionBounds, IntroductionRefusal, is_inside, is_link_local};
use link_socket::{BoundInterface, LinkMessage, LinkSocket};
pub use path_state::DirectPathKind;
use path_state::{PathObservation, PathState};

/// The interface of direct paths. It begins as the interfaces of tunnels do, so that rules for those also apply to it.
pub(crate) const INTERFACE: &str = "keelway-direct";
/// The interval at which paths are checked.
const TURN: Duration = Duration::from_millis(500);
const PROBE_EVERY: Duration = Duration::from_secs(1);
const REQUEST_EVERY: Duration = Duration::from_secs(2);
const REPAIR_EVERY: Duration = Duration::from_secs(10);
/// The tunnels to the gateways come first: the kernel takes a while to create an interface.
const START_AFTER: Duration = Duration::from_secs(1);
/// The ports for private use (RFC 6335, section 6). Each worker uses another one, because NATs often keep the port.
const PORTS: std::ops::RangeInclusive<u16> = 49_152..=65_535;
/// Messages that wait to be handled. Further ones wait in the kernel.
const MOST_MESSAGES: usize = 64;

/// The state of one direct path in `node status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DirectPathStatus {
    /// The other worker's address in the VPN.
    pub address: IpAddr,
    /// The endpoint at which the other worker is reached, or sought.
    pub endpoint: SocketAddr,
    /// The state of the path.
    pub state: DirectPathKind,
    /// The number of bytes received directly from the other worker.
    pub received_bytes: u64,
    /// The number of bytes sent directly to the other worker.
    pub sent_bytes: u64,
}

/// What the daemon knows, as far as direct paths depend on it.
#[derive(Debug, Clone)]
pub(crate) struct DirectPathInputs {
    pub(crate) cluster: ClusterInformation,
    pub(crate) assignment: PeerAssignment,
    pub(crate) gateways: Vec<GatewayLink>,
}

/// The socket that received a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum LinkMark {
    /// The one in the tunnel to this gateway.
    Gateway(PublicKey),
    /// The one in the direct device, by its address.
    Peers(IpAddr),
}

struct DirectPath {
    peer: DirectPeer,
    state: PathState,
    /// The last attempt, and its endpoint.
    attempt: Option<usize>,
    endpoint: SocketAddr,
    stats: Option<PeerStats>,
}

/// All direct paths of this worker. They are up until they are dropped.
pub(crate) struct DirectPaths {
    key: PrivateKey,
    device: Option<DirectDevice>,
    sockets: BTreeMap<LinkMark, LinkSocket>,
    sender: mpsc::Sender<LinkMessage<LinkMark>>,
    messages: mpsc::Receiver<LinkMessage<LinkMark>>,
    introduced: IntroducedPeers,
    paths: BTreeMap<PublicKey, DirectPath>,
    refused: BTreeMap<PublicKey, IntroductionRefusal>,
    next_probes: Instant,
    next_requests: Instant,
    next_repair: Instant,
    /// The last fault. A fault that persists is logged once.
    fault: Option<String>,
}

impl DirectPaths {
    /// Creates a value without paths.
    pub(crate) fn new(key: PrivateKey, now: Instant) -> Self {
        let (sender, messages) = mpsc::channel(MOST_MESSAGES);
        Self {
            key,
            device: None,
            sockets: BTreeMap::new(),
            sender,
            messages,
            introduced: IntroducedPeers::default(),
            paths: BTreeMap::new(),
            refused: BTreeMap::new(),
            next_probes: now,
            next_requests: now,
            next_repair: now + START_AFTER,
            fault: None,
        }
    }

    /// Keeps direct paths, and publishes their state.
    pub(crate) async fn keep(
        mut self,
        inputs: impl Fn() -> DirectPathInputs,
        status: &watch::Sender<Vec<DirectPathStatus>>,
    ) {
        let mut turns = interval(TURN);
        turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            select! {
                _ = turns.tick() => {
                    let outcome = self.turn(&inputs(), Instant::now());
                    self.log(outcome);
                    status.send_replace(self.status());
                }
                Some(message) = self.messages.recv() => self.handle(&message, Instant::now()),
            }
        }
    }

    fn turn(&mut self, inputs: &DirectPathInputs, now: Instant) -> Result<(), DirectDeviceError> {
        // No error prevents that a lost path ends.
        let outcome = self.repair(inputs, now).and(self.open_sockets(inputs));
        self.request(inputs, now);
        self.admit(inputs, now);
        let outcome = outcome.and(self.advance(now));
        let anew: BTreeSet<PublicKey> =
            self.paths.iter_mut().filter_map(|(key, path)| path.try_next(now).then_some(*key)).collect();
        let outcome = outcome.and(self.apply(inputs, &anew));
        let are_due = now >= self.next_probes;
        if are_due {
            self.next_probes = now + PROBE_EVERY;
        }
        for (_, path) in self.paths.iter().filter(|(key, _)| are_due || anew.contains(*key)) {
            if path.state.sends_probes() {
                self.probe(path, now);
            }
        }
        outcome
    }

    /// Creates the device if it is missing, and its addresses and routes.
    fn repair(&mut self, inputs: &DirectPathInputs, now: Instant) -> Result<(), DirectDeviceError> {
        if now < self.next_repair {
            return Ok(());
        }
        self.next_repair = now + REPAIR_EVERY;
        self.device.take_if(|device| !device.is_present());
        if self.device.is_none() {
            let port = rand::rng().random_range(PORTS);
            // Its peers begin anew.
            self.paths.clear();
            self.device = Some(DirectDevice::open(&self.key, port, inputs.cluster.vpn_mtu)?);
        }
        DirectDevice::settle(&inputs.cluster, &inputs.assignment)
    }

    /// Opens a socket in each tunnel and in the direct device, and closes those of interfaces that are gone.
    fn open_sockets(&mut self, inputs: &DirectPathInputs) -> Result<(), DirectDeviceError> {
        let wanted = self.wanted_sockets(inputs);
        let is_wanted = |mark: &LinkMark, socket: &LinkSocket| {
            wanted.get(mark).is_some_and(|(interface, local)| socket.is_at(interface, *local))
        };
        self.sockets.retain(|mark, socket| is_wanted(mark, socket));
        let mut outcome = Ok(());
        for (mark, (interface, local)) in wanted {
            if !self.sockets.contains_key(&mark) {
                match LinkSocket::open(interface, local, mark, self.sender.clone()) {
                    Ok(socket) => drop(self.sockets.insert(mark, socket)),
                    Err(error) => outcome = Err(DirectDeviceError::Socket(error)),
                }
            }
        }
        outcome
    }

    fn wanted_sockets(&self, inputs: &DirectPathInputs) -> BTreeMap<LinkMark, (BoundInterface, SocketAddr)> {
        let of_gateways = inputs.gateways.iter().filter_map(|gateway| {
            let (_, own) = ends(gateway, &inputs.assignment)?;
            let interface = BoundInterface { name: gateway.interface.clone(), index: gateway.index };
            Some((LinkMark::Gateway(gateway.key), (interface, SocketAddr::new(own, INTRODUCTION_PORT))))
        });
        let of_peers = self.device.iter().flat_map(|device| {
            let at = |own: &IpAddr| (LinkMark::Peers(*own), (device.interface(), SocketAddr::new(*own, PROBE_PORT)));
            inputs.assignment.addresses.iter().map(at)
        });
        of_gateways.chain(of_peers).collect()
    }

    /// Asks each gateway for introductions.
    fn request(&mut self, inputs: &DirectPathInputs, now: Instant) {
        let Some(device) = self.device.as_ref().filter(|_| now >= self.next_requests) else { return };
        self.next_requests = now + REQUEST_EVERY;
        let kept = self.paths.iter().filter(|(_, path)| path.state.hears(now)).map(|(key, _)| *key).collect();
        let request = IntroductionRequest { port: device.port, addresses: own_addresses(inputs), kept }.encode();
        for gateway in &inputs.gateways {
            if let Some((to, _)) = ends(gateway, &inputs.assignment)
                && let Some(socket) = self.sockets.get(&LinkMark::Gateway(gateway.key))
            {
                socket.send(&request, to);
            }
        }
    }

    /// Adopts the peers to which gateways introduce this worker, as far as they are allowed.
    fn admit(&mut self, inputs: &DirectPathInputs, now: Instant) {
        self.introduced.retain(|key| inputs.gateways.iter().any(|gateway| gateway.key == *key));
        let bounds = IntroductionBounds::new(self.key.public(), &inputs.cluster, &inputs.assignment, &inputs.gateways);
        let (peers, refused) = bounds.admit_all(&self.introduced.current());
        for (key, refusal) in refused.iter().filter(|(key, refusal)| self.refused.get(*key) != Some(*refusal)) {
            tracing::warn!(peer = %key, "refused an introduction: {refusal}");
        }
        self.refused = refused;
        self.paths.retain(|key, _| peers.contains_key(key));
        for (key, peer) in peers {
            match self.paths.get_mut(&key) {
                Some(path) => path.peer = peer,
                None => drop(self.paths.insert(key, DirectPath::new(peer, now))),
            }
        }
    }

    /// Moves each path to its state at this time.
    fn advance(&mut self, now: Instant) -> Result<(), DirectDeviceError> {
        let stats = self.device.as_mut().map_or_else(|| Ok(BTreeMap::new()), DirectDevice::stats);
        let (mut stats, outcome) = stats.map_or_else(|error| (BTreeMap::new(), Err(error)), |stats| (stats, Ok(())));
        let mut failed = Vec::new();
        for (key, path) in &mut self.paths {
            path.stats = stats.remove(key);
            let before = path.state.kind();
            path.advance(now);
            let (worker, kind) = (path.peer.address, path.state.kind());
            if kind != before {
                tracing::info!(peer = %worker, endpoint = %path.reached_at(), state = %kind, "the path to a worker changed");
            }
            if before == DirectPathKind::Direct && kind == DirectPathKind::Backoff {
                failed.push(*key);
            }
        }
        // The peer learns at once that this end no longer hears it.
        failed.iter().filter_map(|key| self.paths.get(key)).for_each(|path| self.probe(path, now));
        outcome
    }

    /// Applies peers and routes to the device. The peers of `anew` are sought at another endpoint than before.
    fn apply(&mut self, inputs: &DirectPathInputs, anew: &BTreeSet<PublicKey>) -> Result<(), DirectDeviceError> {
        let Some(device) = &mut self.device else { return Ok(()) };
        let is_direct = |path: &&DirectPath| path.state.kind() == DirectPathKind::Direct;
        let routes: BTreeSet<IpNet> =
            self.paths.values().filter(is_direct).flat_map(|path| path.peer.allowed_ips.iter().copied()).collect();
        let peers = self.paths.iter().map(|(key, path)| PeerConfig {
            endpoint: Some(path.endpoint),
            allowed_ips: path.peer.allowed_ips.clone(),
            ..PeerConfig::new(*key)
        });
        // Routes of lost paths go, even if peers cannot be set.
        let outcome = device.set_routes(&routes, &inputs.assignment);
        device.set_peers(peers.collect(), anew).and(outcome)
    }

    fn handle(&mut self, message: &LinkMessage<LinkMark>, now: Instant) {
        match message.mark {
            LinkMark::Gateway(gateway) => {
                if let Some(introductions) = PeerIntroduction::parse(&message.bytes) {
                    self.introduced.note(gateway, introductions, now);
                }
            }
            LinkMark::Peers(_) => self.handle_probe(message, now),
        }
    }

    fn handle_probe(&mut self, message: &LinkMessage<LinkMark>, now: Instant) {
        let path = self.paths.iter_mut().find(|(_, path)| path.peer.address == message.from);
        let (Some((key, path)), Some(is_mutual)) = (path, direct_probe::parse(&message.bytes)) else { return };
        path.state.note_probe(is_mutual, now);
        let (key, responds) = (*key, !is_mutual && path.state.sends_probes());
        if let Some(path) = self.paths.get(&key).filter(|_| responds) {
            self.probe(path, now);
        }
    }

    fn probe(&self, path: &DirectPath, now: Instant) {
        let to = path.peer.address;
        let is_of_family = |mark: &LinkMark| matches!(mark, LinkMark::Peers(own) if own.is_ipv4() == to.is_ipv4());
        if let Some((_, socket)) = self.sockets.iter().find(|(mark, _)| is_of_family(mark)) {
            socket.send(&direct_probe::encode(path.state.hears(now)), to);
        }
    }

    fn log(&mut self, outcome: Result<(), DirectDeviceError>) {
        let fault = outcome.err().map(|error| ErrorChain(&error).to_string());
        if let Some(fault) = fault.as_ref().filter(|fault| self.fault.as_ref() != Some(*fault)) {
            tracing::error!("cannot keep direct paths: {fault}");
        }
        self.fault = fault;
    }

    fn status(&self) -> Vec<DirectPathStatus> {
        let status = self.paths.values().map(|path| DirectPathStatus {
            address: path.peer.address,
            endpoint: path.reached_at(),
            state: path.state.kind(),
            received_bytes: path.stats.as_ref().map_or(0, |stats| stats.received_bytes),
            sent_bytes: path.stats.as_ref().map_or(0, |stats| stats.sent_bytes),
        });
        status.collect()
    }
}

impl DirectPath {
    fn new(peer: DirectPeer, now: Instant) -> Self {
        let endpoint = peer.candidates[0];
        Self { peer, state: PathState::new(now), attempt: None, endpoint, stats: None }
    }

    fn advance(&mut self, now: Instant) {
        let received_bytes = self.stats.as_ref().map_or(0, |stats| stats.received_bytes);
        let seen = PathObservation { candidates: self.peer.candidates.len(), received_bytes };
        self.state = self.state.clone().after(seen, now);
    }

    /// Uses the endpoint of the current attempt. Returns whether the attempt is another one than before.
    fn try_next(&mut self, now: Instant) -> bool {
        let attempt = self.state.attempt(now);
        let Some(number) = attempt.filter(|_| attempt != self.attempt) else { return false };
        self.attempt = attempt;
        self.endpoint = self.peer.candidates[number % self.peer.candidates.len()];
        true
    }

    /// Returns the endpoint from which the peer sends, or the one that is tried.
    fn reached_at(&self) -> SocketAddr {
        self.stats.as_ref().and_then(|stats| stats.endpoint).unwrap_or(self.endpoint)
    }
}

/// Returns the addresses of a gateway and of this worker inside the tunnel between them.
fn ends(gateway: &GatewayLink, assignment: &PeerAssignment) -> Option<(IpAddr, IpAddr)> {
    gateway.addresses.iter().find_map(|to| Some((*to, assignment.address(to.is_ipv4())?)))
}

/// Returns this worker's addresses outside the cluster's networks, those of uplinks first.
fn own_addresses(inputs: &DirectPathInputs) -> Vec<IpAddr> {
    let of_uplinks = facts::uplinks();
    let of_uplinks =
        of_uplinks.iter().filter_map(|name| Interface::find(name).and_then(|found| found.addresses()).ok());
    let mut addresses: Vec<IpAddr> = of_uplinks.flatten().collect();
    addresses.extend(local_addresses().unwrap_or_default());
    addresses
        .retain(|address| !address.is_loopback() && !is_link_local(*address) && !is_inside(&inputs.cluster, *address));
    let mut seen = BTreeSet::new();
    addresses.retain(|address| seen.insert(*address));
    addresses
}
