//! Cores and a network between them, in simulated time.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use keelway_vpn::{
    ClockReading, Config, Core, CoreLimits, CoreOutput, DatagramPath, HEADROOM, PacketRoute, PeerConfig, PeerSet,
    PresharedKey, PrivateKey, PublicKey, VpnEvent,
};

/// The time that a datagram is on its way.
pub(crate) const DELAY: Duration = Duration::from_millis(10);
const STEP: Duration = Duration::from_millis(10);

pub(crate) struct Node {
    pub(crate) core: Core,
    pub(crate) address: SocketAddr,
    pub(crate) delivered: Vec<Vec<u8>>,
    pub(crate) events: Vec<VpnEvent>,
}

pub(crate) struct Flight {
    arrives: Duration,
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    pub(crate) bytes: Vec<u8>,
}

/// Decides the fate of a datagram from its destination and its bytes.
pub(crate) type Judge = Box<dyn FnMut(SocketAddr, &[u8]) -> Fate>;

/// What the network does with a datagram.
pub(crate) enum Fate {
    Deliver,
    Lose,
}

pub(crate) struct World {
    pub(crate) now: ClockReading,
    pub(crate) nodes: Vec<Node>,
    pub(crate) in_flight: Vec<Flight>,
    /// Every datagram with its sender, in the order of sending.
    pub(crate) log: Vec<(SocketAddr, Vec<u8>)>,
    pub(crate) fate: Judge,
    /// Addresses of nodes from which nothing arrives any more. The nodes still have them.
    pub(crate) dead_sources: BTreeSet<IpAddr>,
    /// Pairs of sender and receiver between which nothing arrives.
    pub(crate) cuts: BTreeSet<(SocketAddr, SocketAddr)>,
    by_address: BTreeMap<SocketAddr, usize>,
}

pub(crate) fn private_key(number: u8) -> PrivateKey {
    PrivateKey::from_bytes([number + 1; 32])
}

pub(crate) fn public_key(number: u8) -> PublicKey {
    private_key(number).public()
}

pub(crate) fn address(number: u8) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, number + 1], 51820))
}

pub(crate) fn peer(number: u8, endpoint: bool) -> PeerConfig {
    let mut peer = PeerConfig::new(public_key(number));
    peer.endpoint = endpoint.then(|| address(number));
    peer.allowed_ips.insert(format!("10.0.0.{}/32", number + 1).parse().unwrap());
    peer.allowed_ips.insert(format!("fd00::{}/128", number + 1).parse().unwrap());
    peer
}

pub(crate) fn preshared(byte: u8) -> Option<PresharedKey> {
    PresharedKey::from_bytes([byte; 32])
}

/// Returns an IPv4 packet from node to node. `mark` distinguishes packets.
pub(crate) fn packet(from: u8, to: u8, mark: u32) -> Vec<u8> {
    let mut packet = vec![0; 60];
    packet[0] = 0x45;
    packet[2..4].copy_from_slice(&60u16.to_be_bytes());
    packet[8] = 64;
    packet[12..16].copy_from_slice(&[10, 0, 0, from + 1]);
    packet[16..20].copy_from_slice(&[10, 0, 0, to + 1]);
    packet[20..24].copy_from_slice(&mark.to_be_bytes());
    packet
}

pub(crate) fn mark(packet: &[u8]) -> u32 {
    u32::from_be_bytes(packet[20..24].try_into().unwrap())
}

impl World {
    pub(crate) fn new() -> Self {
        Self {
            now: ClockReading { elapsed: Duration::from_secs(1000), unix: Duration::from_secs(1_800_000_000) },
            nodes: Vec::new(),
            in_flight: Vec::new(),
            log: Vec::new(),
            fate: Box::new(|_, _| Fate::Deliver),
            dead_sources: BTreeSet::new(),
            cuts: BTreeSet::new(),
            by_address: BTreeMap::new(),
        }
    }

    /// Creates two nodes that have each other as a peer. Only the first knows the other's endpoint.
    pub(crate) fn pair(limits: &CoreLimits) -> Self {
        let mut world = Self::new();
        world.add(0, PacketRoute::Local, limits, vec![peer(1, true)]);
        world.add(1, PacketRoute::Local, limits, vec![peer(0, false)]);
        world
    }

    pub(crate) fn core(&self, identity: u8, route: PacketRoute, limits: &CoreLimits, peers: Vec<PeerConfig>) -> Core {
        let config = Config { private_key: Some(private_key(identity)), route, mtu: 1420 };
        let mut core = Core::new(config, limits.clone(), u32::from(identity) << 16, self.now);
        core.set_peers(&peers.into_iter().collect(), self.now);
        core
    }

    pub(crate) fn add(&mut self, number: u8, route: PacketRoute, limits: &CoreLimits, peers: Vec<PeerConfig>) {
        self.add_as(number, number, route, limits, peers);
    }

    /// Adds a node with the key of another one: a machine has a device for each of its tunnels.
    pub(crate) fn add_as(
        &mut self,
        number: u8,
        identity: u8,
        route: PacketRoute,
        limits: &CoreLimits,
        peers: Vec<PeerConfig>,
    ) {
        let core = self.core(identity, route, limits, peers);
        self.by_address.insert(address(number), self.nodes.len());
        self.nodes.push(Node { core, address: address(number), delivered: Vec::new(), events: Vec::new() });
    }

    /// Restarts the process of a node: it loses everything but its configuration.
    pub(crate) fn restart(&mut self, number: u8, limits: &CoreLimits, peers: Vec<PeerConfig>) {
        let core = self.core(number, PacketRoute::Local, limits, peers);
        self.nodes[usize::from(number)].core = core;
    }

    pub(crate) fn move_to(&mut self, number: u8, to: SocketAddr) {
        let node = &mut self.nodes[usize::from(number)];
        self.by_address.remove(&node.address);
        node.address = to;
        self.by_address.insert(to, usize::from(number));
    }

    pub(crate) fn set_peers(&mut self, number: u8, peers: Vec<PeerConfig>) -> usize {
        let wanted: PeerSet = peers.into_iter().collect();
        self.nodes[usize::from(number)].core.set_peers(&wanted, self.now).len()
    }

    pub(crate) fn send(&mut self, from: u8, packet: &[u8]) {
        let now = self.now;
        self.with(usize::from(from), |core, out| {
            core.handle_packet_from_tunnel(packet, now, out);
        });
    }

    pub(crate) fn inject(&mut self, to: u8, from: SocketAddr, bytes: &[u8]) {
        let now = self.now;
        self.with(usize::from(to), |core, out| {
            core.handle_datagram(DatagramPath::to(from), bytes, now, out);
        });
    }

    pub(crate) fn run(&mut self, time: Duration) {
        let end = self.now.elapsed + time;
        while self.now.elapsed < end {
            self.now = self.now.after(STEP);
            self.deliver();
            let now = self.now;
            for node in 0..self.nodes.len() {
                self.with(node, |core, out| {
                    core.poll_timers(now, out);
                });
            }
        }
    }

    pub(crate) fn marks(&self, number: u8) -> Vec<u32> {
        self.nodes[usize::from(number)].delivered.iter().map(|packet| mark(packet)).collect()
    }

    pub(crate) fn handshakes(&self, number: u8) -> usize {
        let events = &self.nodes[usize::from(number)].events;
        events.iter().filter(|event| matches!(event, VpnEvent::HandshakeCompleted(_))).count()
    }

    fn deliver(&mut self) {
        let (due, later): (Vec<_>, _) =
            std::mem::take(&mut self.in_flight).into_iter().partition(|flight| flight.arrives <= self.now.elapsed);
        self.in_flight = later;
        for flight in due {
            let Some(node) = self.by_address.get(&flight.to).copied() else {
                continue;
            };
            let now = self.now;
            self.with(node, |core, out| {
                let path = DatagramPath { remote: flight.from, local: Some(flight.to.ip()) };
                core.handle_datagram(path, &flight.bytes, now, out);
            });
        }
    }

    fn with(&mut self, number: usize, act: impl FnOnce(&mut Core, &mut CoreOutput)) {
        let mut out = CoreOutput::new();
        let node = &mut self.nodes[number];
        act(&mut node.core, &mut out);
        for (path, bytes) in out.datagrams() {
            self.log.push((node.address, bytes.to_vec()));
            if path.local.is_some_and(|source| self.dead_sources.contains(&source)) {
                continue;
            }
            if self.cuts.contains(&(node.address, path.remote)) {
                continue;
            }
            if let Fate::Deliver = (self.fate)(path.remote, bytes) {
                self.in_flight.push(Flight {
                    arrives: self.now.elapsed + DELAY,
                    from: node.address,
                    to: path.remote,
                    bytes: bytes.to_vec(),
                });
            }
        }
        node.delivered.extend(out.packets().drain(..).map(|packet| packet[HEADROOM..].to_vec()));
        node.events.append(&mut out.events);
    }
}
