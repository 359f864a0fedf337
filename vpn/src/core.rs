//! The protocol without IO: datagrams and packets in, datagrams and packets out, time as an argument.
//!
//! `Tunn` takes the randomness of ephemeral keys from the operating system. Session indices start at the seed that the caller passes.

mod admission;
mod introductions;
mod membership;
mod peer;
mod presence;
mod receive;
mod route;
mod sessions;
mod simulated;

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use boringtun::noise::{Packet, Tunn};

use self::admission::Admission;
use self::introductions::Introductions;
use self::peer::{PeerState, SendContext};
use self::presence::Presence;
use self::sessions::{LocalIdentity, SessionIndex, Sessions};
use crate::allowed_ips::AllowedIps;
use crate::clock_reading::ClockReading;
use crate::key::{PrivateKey, PublicKey};
use crate::limits::CoreLimits;
use crate::output::{CoreOutput, DatagramPath};
use crate::packet;
use crate::peers::{PeerChange, PeerSet, plan_changes};
use crate::stats::{DropCounts, PeerStats, SiblingStats};

/// The interval of timer checks. The shortest timer of the protocol is five seconds.
const TICK: Duration = Duration::from_millis(250);
/// The interval of timer checks for idle peers. Checking a thousand of them reads 13 MB of keys.
const IDLE_TICK: Duration = Duration::from_secs(1);

/// The destination of packets that peers send.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PacketRoute {
    /// The core delivers all packets to this end: a TUN device, behind which the kernel routes.
    Local,
    /// The core sends each packet, inside the process, to the peer whose allowed IPs contain the destination. These addresses are this end's own.
    Relay(Vec<IpAddr>),
}

/// The configuration of a core.
#[derive(Debug, Clone)]
pub struct Config {
    /// This end's private key. Without one, peers can be set, and the core neither sends nor accepts anything.
    pub private_key: Option<PrivateKey>,
    /// The destination of packets that peers send.
    pub route: PacketRoute,
    /// The largest inner packet, in bytes. The core pads no packet beyond it.
    pub mtu: usize,
}

/// Counts of packets that a relay and its siblings forwarded to each other.
#[derive(Debug, Default)]
struct ForwardCounts {
    to_siblings: u64,
    from_siblings: u64,
}

/// All peers of one device.
pub struct Core {
    config: Config,
    limits: CoreLimits,
    own: Option<(LocalIdentity, Admission)>,
    peers: BTreeMap<PublicKey, PeerState>,
    /// The configurations of `peers` as they were last set. `plan_changes` compares the desired peers with them.
    seen: PeerSet,
    by_index: HashMap<SessionIndex, PublicKey>,
    allowed_ips: AllowedIps<PublicKey>,
    /// Peers that never had a session, by their configured endpoint: see [`Core::request_session`].
    unmet: BTreeMap<SocketAddr, PublicKey>,
    presence: Presence,
    introductions: Introductions,
    dropped: DropCounts,
    forwarded: ForwardCounts,
    next_index: u32,
    next_tick: Duration,
    next_idle_tick: Duration,
}

impl Core {
    /// Creates a core without peers. `seed` must be random: session indices start there, so that a restarted core uses other ones.
    #[must_use]
    pub fn new(config: Config, limits: CoreLimits, seed: u32, now: ClockReading) -> Self {
        simulated::set_clock(now);
        let mut core = Self {
            own: None,
            peers: BTreeMap::new(),
            seen: PeerSet::default(),
            by_index: HashMap::new(),
            allowed_ips: AllowedIps::default(),
            unmet: BTreeMap::new(),
            presence: Presence::default(),
            introductions: Introductions::default(),
            dropped: DropCounts::default(),
            forwarded: ForwardCounts::default(),
            next_index: seed >> 8,
            next_tick: now.elapsed,
            next_idle_tick: now.elapsed,
            config,
            limits,
        };
        core.adopt_identity();
        core
    }

    /// Handles a datagram from the network.
    pub fn handle_datagram(&mut self, path: DatagramPath, datagram: &[u8], now: ClockReading, out: &mut CoreOutput) {
        simulated::set_clock(now);
        let handled = match Tunn::parse_incoming_packet(datagram) {
            Ok(Packet::PacketData(data)) => self.handle_data(path, data.receiver_idx, datagram, now, out),
            Ok(Packet::HandshakeInit(_)) => self.handle_initiation(path, datagram, now, out),
            Ok(Packet::HandshakeResponse(response)) => {
                self.handle_response(path, response.receiver_idx, datagram, now, out)
            }
            Ok(Packet::PacketCookieReply(cookie)) => self.handle_cookie(path, cookie.receiver_idx, datagram),
            Err(_) => None,
        };
        if handled.is_none() {
            self.dropped.unauthenticated += 1;
        }
    }

    /// Handles an IP packet from this end: a TUN device, or a TCP/IP stack.
    pub fn handle_packet_from_tunnel(&mut self, packet: &[u8], now: ClockReading, out: &mut CoreOutput) {
        simulated::set_clock(now);
        let owner = packet::destination(packet).and_then(|to| self.allowed_ips.owner(to));
        match owner {
            Some(owner) => self.send(owner, packet, now, out),
            None => self.dropped.unroutable += 1,
        }
    }

    /// Runs timers that are due. Returns when to call again. An earlier call does no harm.
    pub fn poll_timers(&mut self, now: ClockReading, out: &mut CoreOutput) -> Duration {
        if now.elapsed < self.next_tick {
            return self.next_tick;
        }
        simulated::set_clock(now);
        self.next_tick = now.elapsed + TICK;
        let all = now.elapsed >= self.next_idle_tick;
        if all {
            self.next_idle_tick = now.elapsed + IDLE_TICK;
        }
        let Some((identity, _)) = &self.own else {
            return self.next_tick;
        };
        let mut context = SendContext { limits: &self.limits, mtu: self.config.mtu, now, out };
        for peer in self.peers.values_mut() {
            if peer.is_idle() && !all {
                continue;
            }
            if peer.sessions.is_none() && peer.wants_keepalives() {
                let index = unused_index(&mut self.next_index, &self.by_index);
                self.by_index.insert(index, peer.config.public_key);
                peer.sessions = Some(Sessions::new(identity, &peer.config, index));
            }
            if let Some(over) = peer.tick(&mut context) {
                self.by_index.remove(&over.index);
            }
        }
        if all {
            self.report_presence(now, out);
        }
        self.next_tick
    }

    /// Reconciles the peers with the desired ones, and returns the changes. A peer that does not change keeps its sessions and loses no
    /// packet.
    pub fn set_peers(&mut self, wanted: &PeerSet, now: ClockReading) -> Vec<PeerChange> {
        simulated::set_clock(now);
        let changes = plan_changes(&self.seen, wanted);
        for change in &changes {
            self.apply(change);
            self.seen.apply(change);
        }
        if !changes.is_empty() {
            // The first keepalive is due at once. It reconnects an end that was restarted.
            self.next_tick = now.elapsed;
        }
        changes
    }

    /// Returns the peers as they were last set.
    #[must_use]
    pub fn peers(&self) -> &PeerSet {
        &self.seen
    }

    /// Sets the endpoint of a peer, also if the peer has roamed.
    pub fn set_endpoint(&mut self, peer: &PublicKey, endpoint: SocketAddr) {
        let Some(found) = self.peers.get_mut(peer) else { return };
        found.endpoint = Some(DatagramPath::to(endpoint));
        if found.last_handshake.is_none() {
            self.unmet.retain(|_, unmet| unmet != peer);
            self.unmet.insert(endpoint, *peer);
        }
    }

    /// Stops sending from `local`, an address that the machine no longer has.
    pub fn forget_local_address(&mut self, local: IpAddr) {
        for path in self.peers.values_mut().filter_map(|peer| peer.endpoint.as_mut()) {
            path.local.take_if(|own| *own == local);
        }
    }

    /// Returns this end's private key.
    #[must_use]
    pub fn private_key(&self) -> Option<&PrivateKey> {
        self.config.private_key.as_ref()
    }

    /// Replaces the private key and ends all sessions. If the key is the same, nothing changes.
    pub fn set_private_key(&mut self, private_key: Option<PrivateKey>, now: ClockReading) {
        simulated::set_clock(now);
        if self.config.private_key != private_key {
            self.config.private_key = private_key;
            self.adopt_identity();
        }
    }

    /// Sets the size of the largest inner packet, in bytes.
    pub fn set_mtu(&mut self, mtu: usize) {
        self.config.mtu = mtu;
    }

    /// Returns the statistics of each peer, ordered by key.
    pub fn stats(&self) -> impl Iterator<Item = PeerStats> {
        self.peers.values().map(|peer| PeerStats {
            public_key: peer.config.public_key,
            endpoint: peer.endpoint.map(|path| path.remote),
            last_handshake: peer.last_handshake,
            last_received: peer.last_received,
            received_bytes: peer.received_bytes,
            sent_bytes: peer.sent_bytes,
            dropped_packets: peer.dropped_packets,
        })
    }

    /// Returns counts of dropped packets and datagrams that belong to no peer.
    #[must_use]
    pub fn dropped(&self) -> DropCounts {
        self.dropped
    }

    /// Returns how much this relay and its siblings do for each other.
    #[must_use]
    pub fn sibling_stats(&self, now: ClockReading) -> SiblingStats {
        SiblingStats {
            reporting: self.presence.reporting_siblings(now.elapsed),
            packets_to: self.forwarded.to_siblings,
            packets_from: self.forwarded.from_siblings,
        }
    }

    fn adopt_identity(&mut self) {
        self.own = self.config.private_key.as_ref().map(|private_key| {
            let identity = LocalIdentity::new(private_key);
            let admission = Admission::new(&identity.public, &self.limits);
            (identity, admission)
        });
        for peer in self.peers.values_mut() {
            if let Some(retired) = peer.retired.take() {
                self.by_index.remove(&retired.index);
            }
            match (&mut peer.sessions, &self.own) {
                (Some(sessions), Some((identity, _))) => sessions.adopt(identity),
                (Some(sessions), None) => {
                    self.by_index.remove(&sessions.index);
                    peer.sessions = None;
                }
                (None, _) => {}
            }
        }
    }
}

/// Returns the next of 2^24 indices that is not in use. There are far fewer peers, so one is always free.
fn unused_index(next: &mut u32, used: &HashMap<SessionIndex, PublicKey>) -> SessionIndex {
    loop {
        *next = (*next + 1) & 0x00ff_ffff;
        if !used.contains_key(&SessionIndex(*next)) {
            return SessionIndex(*next);
        }
    }
}
