//! The protocol without IO: datagrams and packets in, datagrams and packets out, time as an argument.
//!
//! Randomness comes from the operating system inside `Tunn` (ephemeral keys) and from the seed given (session indices).

mod admission;
mod membership;
mod peer;
mod receive;
mod route;
mod sessions;
mod simulated;

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use boringtun::noise::{Packet, Tunn};

use self::admission::Admission;
use self::peer::{PeerState, SendContext};
use self::sessions::{LocalIdentity, SessionIndex, Sessions};
use crate::allowed_ips::AllowedIps;
use crate::clock_reading::ClockReading;
use crate::key::{PrivateKey, PublicKey};
use crate::limits::CoreLimits;
use crate::output::{CoreOutput, DatagramPath};
use crate::packet;
use crate::peers::{PeerChange, PeerSet, plan_changes};
use crate::stats::{DropCounts, PeerStats};

/// How often timers are looked at. The shortest of the protocol is five seconds.
const TICK: Duration = Duration::from_millis(250);
/// How often they are for peers that say nothing. A thousand of them are 13 MB of keys to walk through.
const IDLE_TICK: Duration = Duration::from_secs(1);

/// Where packets that peers send are delivered to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PacketRoute {
    /// To this end, all of them: a TUN device, behind which the kernel routes.
    Local,
    /// To the peer whose allowed IPs hold the destination, inside the process. These addresses are this end's own.
    Relay(Vec<IpAddr>),
}

/// What a core is.
#[derive(Debug, Clone)]
pub struct Config {
    /// Our identity. Without one peers can be set, and nothing is sent or taken.
    pub private_key: Option<PrivateKey>,
    /// Where packets go.
    pub route: PacketRoute,
    /// The largest inner packet, in bytes: nothing is padded beyond it.
    pub mtu: usize,
}

/// All peers of one device.
pub struct Core {
    config: Config,
    limits: CoreLimits,
    own: Option<(LocalIdentity, Admission)>,
    peers: BTreeMap<PublicKey, PeerState>,
    /// The configurations in `peers`, as they were asked for: what is compared with what is wanted.
    seen: PeerSet,
    by_index: HashMap<SessionIndex, PublicKey>,
    allowed_ips: AllowedIps<PublicKey>,
    /// Peers that never had a session, by the address that was told: see [`Core::greet`].
    unmet: BTreeMap<SocketAddr, PublicKey>,
    dropped: DropCounts,
    next_index: u32,
    next_tick: Duration,
    next_idle_tick: Duration,
}

impl Core {
    /// A core without peers. `seed` is random: indices on the wire start there, so that those of a restarted core differ.
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
            dropped: DropCounts::default(),
            next_index: seed >> 8,
            next_tick: now.elapsed,
            next_idle_tick: now.elapsed,
            config,
            limits,
        };
        core.adopt_identity();
        core
    }

    /// Takes a datagram from the network.
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

    /// Takes an IP packet from this end: a TUN device, or a TCP/IP stack.
    pub fn handle_packet_from_tunnel(&mut self, packet: &[u8], now: ClockReading, out: &mut CoreOutput) {
        simulated::set_clock(now);
        let owner = packet::destination(packet).and_then(|to| self.allowed_ips.owner(to));
        match owner {
            Some(owner) => self.send(owner, packet, now, out),
            None => self.dropped.unroutable += 1,
        }
    }

    /// Lets time pass. Returns when to call again; earlier does no harm.
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
        self.next_tick
    }

    /// Brings the peers to what is wanted, and returns what had to change. A peer that does not change keeps its sessions and
    /// loses no packet.
    pub fn set_peers(&mut self, wanted: &PeerSet, now: ClockReading) -> Vec<PeerChange> {
        simulated::set_clock(now);
        let changes = plan_changes(&self.seen, wanted);
        for change in &changes {
            self.apply(change);
            self.seen.apply(change);
        }
        if !changes.is_empty() {
            // A first keepalive is due at once: an end that was restarted is back by it.
            self.next_tick = now.elapsed;
        }
        changes
    }

    /// The peers as they were asked for.
    #[must_use]
    pub fn peers(&self) -> &PeerSet {
        &self.seen
    }

    /// Tells where a peer is, whatever was known.
    pub fn set_endpoint(&mut self, peer: &PublicKey, endpoint: SocketAddr) {
        let Some(found) = self.peers.get_mut(peer) else { return };
        found.endpoint = Some(DatagramPath::to(endpoint));
        if found.last_handshake.is_none() {
            self.unmet.retain(|_, unmet| unmet != peer);
            self.unmet.insert(endpoint, *peer);
        }
    }

    /// Answers no longer leave from `local`: the machine has lost it.
    pub fn forget_local_address(&mut self, local: IpAddr) {
        for path in self.peers.values_mut().filter_map(|peer| peer.endpoint.as_mut()) {
            path.local.take_if(|own| *own == local);
        }
    }

    /// Our identity.
    #[must_use]
    pub fn private_key(&self) -> Option<&PrivateKey> {
        self.config.private_key.as_ref()
    }

    /// Takes another identity; all sessions are over. The same one again changes nothing.
    pub fn set_private_key(&mut self, private_key: Option<PrivateKey>, now: ClockReading) {
        simulated::set_clock(now);
        if self.config.private_key != private_key {
            self.config.private_key = private_key;
            self.adopt_identity();
        }
    }

    /// Says how large inner packets are from now on.
    pub fn set_mtu(&mut self, mtu: usize) {
        self.config.mtu = mtu;
    }

    /// What is known of each peer, ordered by key.
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

    /// What was dropped without being any peer's.
    #[must_use]
    pub fn dropped(&self) -> DropCounts {
        self.dropped
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

/// The next of 2^24 indices that nobody holds; peers are far fewer.
fn unused_index(next: &mut u32, used: &HashMap<SessionIndex, PublicKey>) -> SessionIndex {
    loop {
        *next = (*next + 1) & 0x00ff_ffff;
        if !used.contains_key(&SessionIndex(*next)) {
            return SessionIndex(*next);
        }
    }
}
