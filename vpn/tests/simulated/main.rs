//! The core in simulated time, without a socket: it does what the protocol requires.

#![expect(clippy::unwrap_used, reason = "a step that fails fails the test")]

mod introductions;
mod siblings;
mod uplinks;
mod world;

use std::net::SocketAddr;
use std::time::Duration;

use keelway_vpn::{CoreLimits, PacketRoute, VpnEvent};
use proptest::prelude::*;
use world::{DELAY, Fate, World, address, packet, peer, preshared, public_key};

const SECOND: Duration = Duration::from_secs(1);
const ROUND_TRIP: Duration = Duration::from_millis(20);

const INITIATION: u8 = 1;
const COOKIE: u8 = 3;
const DATA: u8 = 4;

fn kind(datagram: &[u8]) -> u8 {
    datagram[0]
}

fn counter(datagram: &[u8]) -> u64 {
    u64::from_le_bytes(datagram[8..16].try_into().unwrap())
}

#[test]
fn the_first_packets_wait_for_the_handshake_and_arrive_in_order() {
    let mut world = World::pair(&CoreLimits::default());
    for mark in 0..5 {
        world.send(0, &packet(0, 1, mark));
    }
    world.run(ROUND_TRIP + DELAY);
    assert_eq!(world.marks(1), [0, 1, 2, 3, 4]);
    world.send(1, &packet(1, 0, 9));
    world.run(DELAY);
    assert_eq!(world.marks(0), [9]);
    assert_eq!((world.handshakes(0), world.handshakes(1)), (1, 1));
}

#[test]
fn messages_are_padded_to_sixteen_bytes() {
    let mut world = World::pair(&CoreLimits::default());
    world.send(0, &packet(0, 1, 0));
    world.run(SECOND);
    let lengths: Vec<_> = world.log.iter().filter(|(_, bytes)| kind(bytes) == DATA && bytes.len() > 32).collect();
    assert!(!lengths.is_empty());
    assert!(lengths.iter().all(|(_, bytes)| bytes.len() % 16 == 0));
}

#[test]
fn keys_are_renewed_by_time_and_no_packet_is_lost() {
    let mut world = World::pair(&CoreLimits::default());
    for mark in 0..400 {
        world.send(0, &packet(0, 1, mark));
        world.send(1, &packet(1, 0, mark));
        world.run(SECOND);
    }
    // A key lasts two minutes, so that the fourth handshake is after 360 seconds.
    assert_eq!(world.handshakes(0), 4);
    assert_eq!(world.marks(1), (0..400).collect::<Vec<_>>());
    // The first packet back is lost, because this end does not know the other's address yet.
    assert_eq!(world.marks(0), (1..400).collect::<Vec<_>>());
}

#[test]
fn keys_are_renewed_by_messages_and_no_packet_is_lost() {
    let limits = CoreLimits { rekey_after_messages: 1000, reject_after_messages: 1200, ..CoreLimits::default() };
    let mut world = World::pair(&limits);
    for mark in 0..5500 {
        world.send(0, &packet(0, 1, mark));
        if mark % 20 == 0 {
            world.run(DELAY);
        }
    }
    world.run(SECOND);
    assert_eq!(world.marks(1), (0..5500).collect::<Vec<_>>());
    assert!((5..=7).contains(&world.handshakes(0)), "{} handshakes", world.handshakes(0));
    assert!(world.log.iter().filter(|(_, bytes)| kind(bytes) == DATA).all(|(_, bytes)| counter(bytes) < 1200));
}

#[test]
fn nothing_is_sent_under_a_spent_key() {
    let limits = CoreLimits { rekey_after_messages: 1000, reject_after_messages: 1200, ..CoreLimits::default() };
    let mut world = World::pair(&limits);
    world.send(0, &packet(0, 1, 0));
    world.run(SECOND);
    let responder = address(1);
    world.fate = Box::new(
        move |to, bytes| {
            if to == responder && kind(bytes) == INITIATION { Fate::Lose } else { Fate::Deliver }
        },
    );
    for mark in 1..3000 {
        world.send(0, &packet(0, 1, mark));
    }
    world.run(SECOND);
    let sent = world.log.iter().filter(|(from, bytes)| *from == address(0) && kind(bytes) == DATA).count();
    assert_eq!(sent, 1200);
    world.fate = Box::new(|_, _| Fate::Deliver);
    world.run(SECOND * 6);
    assert_eq!(world.marks(1).last(), Some(&2999), "staged packets follow");
    // 1,799 packets were staged, which needs two more keys.
    assert_eq!(world.handshakes(0), 3);
}

#[test]
fn a_key_dies_after_180_seconds_of_silence() {
    let mut world = World::pair(&CoreLimits::default());
    world.send(0, &packet(0, 1, 0));
    world.run(SECOND * 200);
    world.log.clear();
    world.send(0, &packet(0, 1, 1));
    assert_eq!(world.log.iter().map(|(_, bytes)| kind(bytes)).collect::<Vec<_>>(), [INITIATION]);
    world.run(SECOND);
    assert_eq!(world.marks(1), [0, 1]);
}

#[test]
fn an_initiation_is_repeated_every_five_seconds_for_ninety() {
    let mut world = World::pair(&CoreLimits::default());
    world.fate = Box::new(|_, _| Fate::Lose);
    world.send(0, &packet(0, 1, 0));
    world.run(SECOND * 300);
    assert!((17..=19).contains(&world.log.len()), "{} initiations", world.log.len());
    assert!(world.nodes[0].events.contains(&VpnEvent::Expired(public_key(1))));
    world.fate = Box::new(|_, _| Fate::Deliver);
    world.send(0, &packet(0, 1, 7));
    world.run(SECOND);
    assert_eq!(world.marks(1), [7]);
}

#[test]
fn packets_that_wait_for_a_handshake_are_bounded() {
    let limits = CoreLimits { staged_bytes: 600, ..CoreLimits::default() };
    let mut world = World::pair(&limits);
    for mark in 0..1000 {
        world.send(0, &packet(0, 1, mark));
    }
    assert_eq!(world.nodes[0].core.stats().next().unwrap().dropped_packets, 990);
    world.run(SECOND);
    assert_eq!(world.marks(1).len(), 10);
}

#[test]
fn a_preshared_key_must_be_the_same() {
    for (right, expected) in [(true, 1), (false, 0)] {
        let mut world = World::new();
        let mut first = peer(1, true);
        first.preshared_key = preshared(7);
        let mut second = peer(0, false);
        second.preshared_key = preshared(if right { 7 } else { 8 });
        world.add(0, PacketRoute::Local, &CoreLimits::default(), vec![first]);
        world.add(1, PacketRoute::Local, &CoreLimits::default(), vec![second]);
        world.send(0, &packet(0, 1, 0));
        world.run(SECOND * 20);
        assert_eq!(world.marks(1).len(), expected);
    }
}

#[test]
fn a_new_preshared_key_loses_no_packet() {
    let mut world = World::pair(&CoreLimits::default());
    let mut mark = 0;
    let mut talk = |world: &mut World, seconds: u32| {
        for _ in 0..seconds * 10 {
            world.send(0, &packet(0, 1, mark));
            mark += 1;
            world.run(SECOND / 10);
        }
    };
    talk(&mut world, 5);
    let mut first = peer(1, true);
    first.preshared_key = preshared(7);
    assert_eq!(world.set_peers(0, vec![first]), 1);
    talk(&mut world, 5);
    let mut second = peer(0, false);
    second.preshared_key = preshared(7);
    assert_eq!(world.set_peers(1, vec![second]), 1);
    talk(&mut world, 200);
    assert_eq!(world.marks(1), (0..2100).collect::<Vec<_>>());
    assert!(world.handshakes(0) >= 2);
}

#[test]
fn keepalives_keep_their_interval_and_it_can_change() {
    let mut world = World::new();
    let mut first = peer(1, true);
    first.persistent_keepalive = 5;
    world.add(0, PacketRoute::Local, &CoreLimits::default(), vec![first.clone()]);
    world.add(1, PacketRoute::Local, &CoreLimits::default(), vec![peer(0, false)]);
    let count =
        |world: &World| world.log.iter().filter(|(from, bytes)| *from == address(0) && kind(bytes) == DATA).count();
    world.run(SECOND);
    assert_eq!(world.handshakes(0), 1, "a keepalive opens the tunnel by itself");
    let before = count(&world);
    world.run(SECOND * 50);
    assert!((9..=10).contains(&(count(&world) - before)));
    first.persistent_keepalive = 0;
    assert_eq!(world.set_peers(0, vec![first]), 1);
    world.run(SECOND);
    let before = count(&world);
    world.run(SECOND * 60);
    assert_eq!(count(&world), before);
    assert_eq!(world.handshakes(0), 1);
}

#[test]
fn a_keepalive_comes_back_after_a_long_outage() {
    let mut world = World::new();
    let mut first = peer(1, true);
    first.persistent_keepalive = 25;
    world.add(0, PacketRoute::Local, &CoreLimits::default(), vec![first]);
    world.add(1, PacketRoute::Local, &CoreLimits::default(), vec![peer(0, false)]);
    world.run(SECOND);
    world.fate = Box::new(|_, _| Fate::Lose);
    world.run(SECOND * 900);
    world.fate = Box::new(|_, _| Fate::Deliver);
    world.run(SECOND * 30);
    assert_eq!(world.handshakes(0), 2);
}

#[test]
fn an_endpoint_follows_authenticated_packets_and_nothing_else() {
    let mut world = World::pair(&CoreLimits::default());
    world.send(0, &packet(0, 1, 0));
    world.run(SECOND);
    let elsewhere = SocketAddr::from(([198, 51, 100, 7], 4000));
    world.move_to(0, elsewhere);
    world.send(0, &packet(0, 1, 1));
    world.run(SECOND);
    let endpoint = |world: &World| world.nodes[1].core.stats().next().unwrap().endpoint;
    assert_eq!(endpoint(&world), Some(elsewhere));
    assert!(world.nodes[1].events.contains(&VpnEvent::Roamed { peer: public_key(0), endpoint: elsewhere }));
    world.send(1, &packet(1, 0, 2));
    world.run(SECOND);
    assert_eq!(world.marks(0), [2]);
    // Another address replays every datagram, from the first to the last.
    let thief = SocketAddr::from(([203, 0, 113, 9], 5000));
    for (_, bytes) in world.log.clone() {
        world.inject(1, thief, &bytes);
    }
    assert_eq!(endpoint(&world), Some(elsewhere));
    assert_eq!(world.marks(1), [0, 1]);
}

#[test]
fn a_replayed_initiation_moves_no_endpoint_even_after_a_restart() {
    let mut world = World::pair(&CoreLimits::default());
    world.send(0, &packet(0, 1, 0));
    world.run(SECOND);
    let recorded = world.log.clone();
    world.restart(1, &CoreLimits::default(), vec![peer(0, true)]);
    for (_, bytes) in recorded {
        world.inject(1, SocketAddr::from(([203, 0, 113, 9], 5000)), &bytes);
    }
    let stats = world.nodes[1].core.stats().next().unwrap();
    assert_eq!(stats.endpoint, Some(address(0)));
    assert_eq!(world.marks(1), [0]);
}

#[test]
fn a_restarted_end_is_back_one_round_trip_after_the_others_next_packet() {
    let mut world = World::pair(&CoreLimits::default());
    world.send(0, &packet(0, 1, 0));
    world.run(SECOND);
    world.restart(1, &CoreLimits::default(), vec![peer(0, true)]);
    world.run(SECOND);
    world.send(0, &packet(0, 1, 1));
    // The packet arrives. Then one round trip is enough for a key.
    world.run(DELAY + ROUND_TRIP);
    assert_eq!(world.handshakes(1), 2);
    world.send(1, &packet(1, 0, 2));
    world.run(DELAY);
    assert_eq!(world.marks(0), [2]);
    world.send(0, &packet(0, 1, 3));
    world.run(DELAY);
    assert_eq!(world.marks(1), [0, 3]);
}

#[test]
fn a_restarted_end_reconnects_as_fast_if_it_learns_its_peers_endpoint_later() {
    let mut world = World::pair(&CoreLimits::default());
    world.send(0, &packet(0, 1, 0));
    world.run(SECOND);
    world.restart(1, &CoreLimits::default(), vec![peer(0, false)]);
    world.set_peers(1, vec![peer(0, true)]);
    world.send(0, &packet(0, 1, 1));
    world.run(DELAY + ROUND_TRIP);
    assert_eq!(world.handshakes(1), 2);
}

#[test]
fn packets_out_of_order_arrive_and_replayed_or_late_ones_do_not() {
    let mut world = World::pair(&CoreLimits::default());
    world.send(0, &packet(0, 1, 0));
    world.run(SECOND);
    world.fate = Box::new(|_, _| Fate::Lose);
    world.log.clear();
    for mark in 1..=2000 {
        world.send(0, &packet(0, 1, mark));
    }
    let sent: Vec<_> = world.log.iter().map(|(_, bytes)| bytes.clone()).collect();
    for bytes in sent[1000..].iter().rev() {
        world.inject(1, address(0), bytes);
        world.inject(1, address(0), bytes);
    }
    assert_eq!(world.marks(1).len(), 1 + 1000, "each once");
    // The datagram is new, but its counter is older than the window.
    world.inject(1, address(0), &sent[100]);
    assert_eq!(world.marks(1).len(), 1001);
}

#[test]
fn under_load_a_sender_proves_its_address_by_a_cookie() {
    let mut world = World::new();
    world.add(0, PacketRoute::Local, &CoreLimits::default(), vec![peer(1, true)]);
    let loaded = CoreLimits { handshakes_per_second: 0, ..CoreLimits::default() };
    world.add(1, PacketRoute::Local, &loaded, vec![peer(0, false)]);
    world.send(0, &packet(0, 1, 0));
    world.run(SECOND);
    assert!(world.log.iter().any(|(_, bytes)| kind(bytes) == COOKIE));
    assert_eq!(world.handshakes(1), 0);
    world.run(SECOND * 5);
    assert_eq!(world.marks(1), [0]);
    assert_eq!(world.handshakes(1), 1);
}

#[test]
fn of_a_second_of_strangers_handshakes_only_the_bound_is_computed() {
    let cookies = |limits: CoreLimits| {
        let mut world = World::new();
        world.add(0, PacketRoute::Local, &CoreLimits::default(), vec![peer(1, true)]);
        world.add(1, PacketRoute::Local, &limits, vec![]);
        world.fate = Box::new(|_, _| Fate::Lose);
        world.send(0, &packet(0, 1, 0));
        let (_, initiation) = world.log.pop().unwrap();
        for _ in 0..2_000 {
            world.inject(1, address(0), &initiation);
        }
        world.log.iter().filter(|(_, bytes)| kind(bytes) == COOKIE).count()
    };
    // A stranger receives a cookie instead of a computation, and nothing after a computation.
    assert_eq!(cookies(CoreLimits::default()), 1_500);
    assert_eq!(cookies(CoreLimits { handshakes_per_second: 1_000_000, ..CoreLimits::default() }), 0);
}

#[test]
fn a_source_that_proved_itself_is_still_bounded() {
    let mut world = World::new();
    world.add(0, PacketRoute::Local, &CoreLimits::default(), vec![peer(1, true)]);
    let loaded = CoreLimits { handshakes_per_second: 0, handshakes_per_source: 0, ..CoreLimits::default() };
    world.add(1, PacketRoute::Local, &loaded, vec![peer(0, false)]);
    world.send(0, &packet(0, 1, 0));
    world.run(SECOND * 20);
    assert_eq!(world.handshakes(1), 0);
}

#[test]
fn a_source_that_is_not_the_peers_is_dropped() {
    let mut world = World::pair(&CoreLimits::default());
    world.send(0, &packet(0, 1, 0));
    world.send(0, &packet(5, 1, 1));
    world.run(SECOND);
    assert_eq!(world.marks(1), [0]);
    assert_eq!(world.nodes[1].core.dropped().disallowed_source, 1);
}

#[test]
fn changing_one_peer_disturbs_no_other_and_none_of_its_own() {
    let mut world = World::new();
    world.add(0, PacketRoute::Local, &CoreLimits::default(), vec![peer(1, true), peer(2, true)]);
    world.add(1, PacketRoute::Local, &CoreLimits::default(), vec![peer(0, false)]);
    world.add(2, PacketRoute::Local, &CoreLimits::default(), vec![peer(0, false)]);
    for mark in 0..100 {
        world.send(0, &packet(0, 1, mark));
        world.send(0, &packet(0, 2, mark));
        let mut changed = peer(2, true);
        changed.allowed_ips.insert(format!("10.1.0.{mark}/32").parse().unwrap());
        changed.persistent_keepalive = 20 + u16::try_from(mark).unwrap();
        let third = peer(3, true);
        assert!(world.set_peers(0, vec![peer(1, true), changed, third]) >= 1);
        world.run(SECOND / 10);
        assert_eq!(world.set_peers(0, world.nodes[0].core.peers().iter().cloned().collect()), 0);
        world.set_peers(0, vec![peer(1, true), peer(2, true)]);
    }
    assert_eq!(world.marks(1), (0..100).collect::<Vec<_>>());
    assert_eq!(world.marks(2), (0..100).collect::<Vec<_>>());
    assert_eq!((world.handshakes(1), world.handshakes(2)), (1, 1));
}

#[test]
fn a_relay_forwards_packets_between_peers_and_keeps_its_own() {
    let mut world = World::new();
    let relay = PacketRoute::Relay(vec!["10.0.0.1".parse().unwrap()]);
    world.add(0, relay, &CoreLimits::default(), vec![peer(1, false), peer(2, false)]);
    for number in [1, 2] {
        let mut to_relay = peer(0, true);
        to_relay.persistent_keepalive = 25;
        to_relay.allowed_ips.insert("10.0.0.0/24".parse().unwrap());
        world.add(number, PacketRoute::Local, &CoreLimits::default(), vec![to_relay]);
    }
    world.run(SECOND);
    world.send(1, &packet(1, 2, 5));
    world.send(2, &packet(2, 0, 6));
    // Packets to the sender itself, to an address without a peer, and with a TTL of one.
    world.send(1, &packet(1, 1, 7));
    world.send(1, &packet(1, 9, 8));
    let mut last_hop = packet(1, 2, 9);
    last_hop[8] = 1;
    world.send(1, &last_hop);
    world.run(SECOND);
    assert_eq!(world.marks(2), [5]);
    assert_eq!(world.nodes[2].delivered[0][8], 63);
    assert_eq!(world.marks(0), [6]);
    assert_eq!(world.marks(1), [0u32; 0]);
    assert_eq!(world.nodes[0].core.dropped().unroutable, 3);
}

#[test]
fn another_identity_ends_all_sessions_and_the_same_one_none() {
    let mut world = World::pair(&CoreLimits::default());
    world.send(0, &packet(0, 1, 0));
    world.run(SECOND);
    let now = world.now;
    world.nodes[0].core.set_private_key(Some(world::private_key(0)), now);
    world.send(0, &packet(0, 1, 1));
    world.run(SECOND);
    assert_eq!(world.marks(1), [0, 1]);
    world.nodes[0].core.set_private_key(None, now);
    world.send(0, &packet(0, 1, 2));
    world.run(SECOND);
    world.nodes[0].core.set_private_key(Some(world::private_key(0)), world.now);
    world.send(0, &packet(0, 1, 3));
    world.run(SECOND);
    assert_eq!(world.marks(1).last(), Some(&3));
    assert_eq!(world.handshakes(1), 2);
}

/// The state that a stranger must not be able to change.
fn state(world: &World, node: usize) -> Vec<(Option<SocketAddr>, Option<Duration>, u64)> {
    let stats = world.nodes[node].core.stats();
    stats.map(|peer| (peer.endpoint, peer.last_handshake, peer.received_bytes)).collect()
}

fn datagram() -> impl Strategy<Value = Vec<u8>> {
    let noise = proptest::collection::vec(any::<u8>(), 0..300);
    let shaped = (1..5u8, proptest::collection::vec(any::<u8>(), 200)).prop_map(|(kind, mut bytes)| {
        bytes[..4].copy_from_slice(&[kind, 0, 0, 0]);
        bytes.truncate([0, 148, 92, 64, 200][usize::from(kind)]);
        bytes
    });
    prop_oneof![noise, shaped]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Datagrams of noise, messages with the right shape, and real messages with a flipped bit.
    #[test]
    fn no_datagram_of_a_stranger_panics_or_changes_a_peer(
        datagrams in proptest::collection::vec(datagram(), 1..20),
        flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0..8u8), 20),
    ) {
        let mut world = World::pair(&CoreLimits::default());
        world.send(0, &packet(0, 1, 0));
        world.run(SECOND);
        world.send(1, &packet(1, 0, 1));
        world.run(SECOND);
        let real: Vec<_> = world.log.iter().map(|(_, bytes)| bytes.clone()).collect();
        let mutants = flips.into_iter().map(|(which, at, bit)| {
            let mut bytes = which.get(&real).clone();
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            bytes
        });
        let stranger = SocketAddr::from(([203, 0, 113, 9], 5000));
        let before = (state(&world, 0), state(&world, 1));
        for bytes in datagrams.into_iter().chain(mutants) {
            world.inject(0, stranger, &bytes);
            world.inject(1, stranger, &bytes);
        }
        prop_assert_eq!((state(&world, 0), state(&world, 1)), before);
        prop_assert_eq!(world.marks(1), vec![0]);
        world.send(0, &packet(0, 1, 2));
        world.send(1, &packet(1, 0, 3));
        world.run(SECOND);
        prop_assert_eq!(world.marks(1), vec![0, 2]);
        prop_assert_eq!(world.marks(0), vec![1, 3]);
    }

    #[test]
    fn no_packet_from_the_tunnel_panics(packets in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..2000), 1..20)) {
        let mut world = World::pair(&CoreLimits::default());
        for mut bytes in packets {
            world.send(0, &bytes);
            if bytes.len() >= 20 {
                bytes[0] = 0x45;
                bytes[16..20].copy_from_slice(&[10, 0, 0, 2]);
                world.send(0, &bytes);
            }
        }
        world.run(SECOND);
    }
}
