//! Hundreds of thousands of datagrams from strangers: noise, messages with the right shape, and real ones that are cut, extended, spliced or
//! have flipped bits. No datagram panics, allocates without bound, or changes a peer. Each run has the same seed. The fuzz target in `vpn/fuzz`
//! tries more.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use keelway_vpn::{
    ClockReading, Config, Core, CoreLimits, CoreOutput, DatagramPath, HEADROOM, PacketRoute, PeerConfig, PrivateKey,
};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, RngExt, SeedableRng};

const ROUNDS: usize = 400_000;
/// After this many rounds, buffers have their final size.
const WARM: usize = 20_000;
/// More bytes than the allocator uses by chance.
const GROWTH: u64 = 4 << 20;
/// The largest response to a message: the initiation of an end that was restarted.
const LARGEST_ANSWER: usize = 148;

fn private_key(number: u8) -> PrivateKey {
    PrivateKey::from_bytes([number + 1; 32])
}

fn address(number: u8) -> SocketAddr {
    SocketAddr::from(([192, 0, 2, number], 51820))
}

fn start() -> ClockReading {
    ClockReading { elapsed: Duration::from_secs(1000), unix: Duration::from_secs(1_800_000_000) }
}

fn core(number: u8, route: PacketRoute, limits: CoreLimits) -> Core {
    let other = 1 - number;
    let mut core =
        Core::new(Config { private_key: Some(private_key(number)), route, mtu: 1420 }, limits, number.into(), start());
    let mut peer = PeerConfig::new(private_key(other).public());
    peer.endpoint = Some(address(other));
    peer.allowed_ips.insert(IpAddr::from([10, 0, 0, other]).into());
    core.set_peers(&[peer].into_iter().collect(), start());
    core
}

fn packet(from: u8, to: u8) -> Vec<u8> {
    let mut packet = vec![0; 100];
    packet[0] = 0x45;
    packet[3] = 100;
    packet[8] = 64;
    packet[12..16].copy_from_slice(&[10, 0, 0, from]);
    packet[16..20].copy_from_slice(&[10, 0, 0, to]);
    packet
}

/// Two ends with a session, and every datagram between them.
struct Pair {
    cores: [Core; 2],
    recorded: Vec<Vec<u8>>,
}

impl Pair {
    fn new() -> Self {
        let relay = PacketRoute::Relay(vec![IpAddr::from([10, 0, 0, 0])]);
        let cores = [core(0, relay, CoreLimits::default()), core(1, PacketRoute::Local, CoreLimits::default())];
        let mut pair = Self { cores, recorded: Vec::new() };
        assert!(pair.is_delivered(0, 1) && pair.is_delivered(1, 0));
        pair
    }

    /// Returns whether a packet from one end arrives at the other.
    fn is_delivered(&mut self, from: u8, to: u8) -> bool {
        let mut out = CoreOutput::new();
        self.cores[usize::from(from)].handle_packet_from_tunnel(&packet(from, to), start(), &mut out);
        let mut flying: Vec<(u8, Vec<u8>)> = out.datagrams().map(|(_, bytes)| (to, bytes.to_vec())).collect();
        let mut delivered = false;
        while let Some((at, bytes)) = flying.pop() {
            let mut out = CoreOutput::new();
            self.cores[usize::from(at)].handle_datagram(DatagramPath::to(address(1 - at)), &bytes, start(), &mut out);
            flying.extend(out.datagrams().map(|(_, bytes)| (1 - at, bytes.to_vec())));
            delivered |= out.packets().iter().any(|one| one[HEADROOM..] == packet(from, to));
            self.recorded.push(bytes);
        }
        delivered
    }
}

/// Returns a datagram that a stranger could send.
fn datagram(rng: &mut StdRng, recorded: &[Vec<u8>]) -> Vec<u8> {
    let mut bytes = recorded.choose(rng).unwrap().clone();
    match rng.random_range(0..7) {
        0 => {
            bytes.resize(rng.random_range(0..1600), 0);
            rng.fill_bytes(&mut bytes);
        }
        1 => {
            let kind = rng.random_range(0..5usize);
            bytes.resize([32, 148, 92, 64, 96][kind], 0);
            rng.fill_bytes(&mut bytes);
            bytes[..4].copy_from_slice(&[u8::try_from(kind).unwrap(), 0, 0, 0]);
        }
        2 => bytes.truncate(rng.random_range(0..bytes.len())),
        3 => bytes.resize(bytes.len() + rng.random_range(1..100), rng.random()),
        4 => {
            let other = recorded.choose(rng).unwrap();
            let at = rng.random_range(0..bytes.len().min(other.len()));
            bytes[at..].iter_mut().zip(&other[at..]).for_each(|(byte, theirs)| *byte = *theirs);
        }
        _ => {
            for _ in 0..rng.random_range(1..4) {
                let at = rng.random_range(0..bytes.len());
                bytes[at] ^= 1 << rng.random_range(0..8);
            }
        }
    }
    bytes
}

fn sender(rng: &mut StdRng) -> SocketAddr {
    match rng.random_range(0..4) {
        0 => address(0),
        1 => address(1),
        2 => SocketAddr::from((rng.random::<[u8; 4]>(), rng.random())),
        _ => SocketAddr::from((rng.random::<[u8; 16]>(), rng.random())),
    }
}

/// The state that a stranger without a key must not change.
fn state(core: &Core) -> Vec<(Option<SocketAddr>, Option<Duration>)> {
    core.stats().map(|peer| (peer.endpoint, peer.last_handshake)).collect()
}

fn resident() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    pages.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
}

/// Sends datagrams of strangers to the cores, and calls `told` with the sender of each. Returns by how many bytes the memory of the process
/// grew after buffers had their final size.
fn grown(cores: &mut [&mut Core], recorded: &[Vec<u8>], rng: &mut StdRng, mut told: impl FnMut(SocketAddr)) -> u64 {
    let mut now = start();
    let mut out = CoreOutput::new();
    let mut resident_when_warm = 0;
    for round in 0..ROUNDS {
        if round == WARM {
            resident_when_warm = resident();
        }
        let bytes = datagram(rng, recorded);
        let from = sender(rng);
        told(from);
        now = now.after(Duration::from_micros(50));
        for core in &mut *cores {
            core.handle_datagram(DatagramPath::to(from), &bytes, now, &mut out);
            assert!(out.pending_bytes() <= LARGEST_ANSWER && out.packets().is_empty(), "{bytes:02x?}");
            out.clear();
        }
    }
    resident().saturating_sub(resident_when_warm)
}

#[test]
fn no_datagram_of_a_stranger_panics_allocates_or_changes_a_peer() {
    let mut rng = StdRng::seed_from_u64(6);
    let mut pair = Pair::new();
    let recorded = pair.recorded.clone();
    // One end that was restarted, and one that is under load from the first handshake on.
    let loaded = CoreLimits { handshakes_per_second: 0, ..CoreLimits::default() };
    let mut others = [core(0, PacketRoute::Local, CoreLimits::default()), core(0, PacketRoute::Local, loaded)];
    let received =
        |pair: &Pair| pair.cores.each_ref().map(|core| core.stats().map(|peer| peer.received_bytes).sum::<u64>());
    let before = (received(&pair), pair.cores.each_ref().map(state), others.each_ref().map(state));
    let mut cores: Vec<&mut Core> = pair.cores.iter_mut().chain(&mut others).collect();
    let bytes = grown(&mut cores, &recorded, &mut rng, drop);
    assert_eq!((received(&pair), pair.cores.each_ref().map(state), others.each_ref().map(state)), before);
    assert!(bytes < GROWTH, "{bytes} bytes more after {ROUNDS} datagrams");
    assert!(pair.is_delivered(0, 1) && pair.is_delivered(1, 0), "the session is as it was");

    // The check detects even a set that stores nothing but the sender of each datagram.
    let mut senders = BTreeSet::new();
    let mut cores: Vec<&mut Core> = pair.cores.iter_mut().chain(&mut others).collect();
    let bytes = grown(&mut cores, &recorded, &mut rng, |from| _ = senders.insert(from));
    assert!(bytes > GROWTH, "{bytes} bytes more with {} senders", senders.len());
}

#[test]
fn no_packet_from_this_end_panics() {
    let mut rng = StdRng::seed_from_u64(7);
    let mut pair = Pair::new();
    let mut out = CoreOutput::new();
    for _ in 0..ROUNDS {
        let mut bytes = vec![0; rng.random_range(0..200)];
        rng.fill_bytes(&mut bytes);
        if bytes.len() >= 20 && rng.random() {
            bytes[0] = 0x45;
            bytes[16..20].copy_from_slice(&[10, 0, 0, 1]);
        }
        pair.cores[0].handle_packet_from_tunnel(&bytes, start(), &mut out);
        let sent: Vec<Vec<u8>> = out.datagrams().map(|(_, datagram)| datagram.to_vec()).collect();
        out.clear();
        // The other end receives packets that are not valid IP packets.
        for datagram in sent {
            pair.cores[1].handle_datagram(DatagramPath::to(address(0)), &datagram, start(), &mut out);
            out.clear();
        }
    }
    assert!(pair.is_delivered(0, 1) && pair.is_delivered(1, 0));
}
