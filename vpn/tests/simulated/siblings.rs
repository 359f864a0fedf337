//! Two relays with the same peers, and two workers with a tunnel to each of them.

use std::ops::Range;

use keelway_vpn::{CoreLimits, PacketRoute, PeerConfig, SiblingStats};

use crate::SECOND;
use crate::world::{World, address, packet, peer, public_key};

const RELAYS: [u8; 2] = [0, 1];
/// The numbers of the workers. Each one's tunnel to the first relay has the worker's number, and the tunnel to the second relay has the next one.
const WORKERS: [u8; 2] = [2, 4];
/// The tunnel through which the first worker sends, and the one of the second worker: each has another relay.
const SENDERS: [u8; 2] = [2, 5];
/// The longest time for which packets are lost after a cut: a relay stops to rely on its own tunnel 4.5 seconds after it last heard the worker.
const GAP: usize = 5;

fn relay(number: u8) -> PacketRoute {
    PacketRoute::Relay(vec![
        format!("10.0.0.{}", number + 1).parse().unwrap(),
        format!("fd00::{}", number + 1).parse().unwrap(),
    ])
}

fn sibling(number: u8, is_sibling: bool) -> PeerConfig {
    PeerConfig { persistent_keepalive: 15, is_sibling, ..peer(number, true) }
}

fn workers() -> Vec<PeerConfig> {
    WORKERS.map(|worker| PeerConfig { persistent_keepalive: 15, ..peer(worker, false) }).to_vec()
}

/// `knows`: whether each relay is of a release that knows siblings.
fn world(knows: [bool; 2]) -> World {
    let mut world = World::new();
    for (relay_number, knows) in RELAYS.into_iter().zip(knows) {
        let peers = [workers(), vec![sibling(1 - relay_number, knows)]].concat();
        world.add(relay_number, relay(relay_number), &CoreLimits::default(), peers);
    }
    for worker in WORKERS {
        for relay in RELAYS {
            let mut tunnel = peer(relay, true);
            tunnel.persistent_keepalive = 25;
            tunnel.allowed_ips.insert("10.0.0.0/24".parse().unwrap());
            world.add_as(worker + relay, worker, PacketRoute::Local, &CoreLimits::default(), vec![tunnel]);
        }
    }
    world
}

/// Lets both workers send each other a packet every second, and check each relay every two seconds.
fn talk(world: &mut World, marks: Range<u32>) {
    let [w1, w2] = WORKERS;
    for mark in marks {
        for (worker, relay) in WORKERS.into_iter().flat_map(|worker| RELAYS.map(|relay| (worker, relay))) {
            if mark % 2 == 0 {
                world.send(worker + relay, &packet(worker, relay, u32::MAX));
            }
        }
        world.send(SENDERS[0], &packet(w1, w2, mark));
        world.send(SENDERS[1], &packet(w2, w1, mark));
        world.run(SECOND);
    }
}

/// Cuts both directions between each worker and the relay through which the other one sends.
fn cut(world: &mut World) {
    for (worker, relay) in [(WORKERS[0] + 1, 1), (WORKERS[1], 0)] {
        world.cuts.extend([(address(worker), address(relay)), (address(relay), address(worker))]);
    }
}

/// Returns the marks that reached each worker, through any of its tunnels.
fn received(world: &World) -> [Vec<u32>; 2] {
    WORKERS.map(|worker| {
        let mut marks: Vec<u32> = RELAYS.iter().flat_map(|relay| world.marks(worker + relay)).collect();
        marks.sort_unstable();
        marks
    })
}

fn stats(world: &World) -> [SiblingStats; 2] {
    RELAYS.map(|relay| world.nodes[usize::from(relay)].core.sibling_stats(world.now))
}

fn after(marks: Vec<u32>, first: u32) -> Vec<u32> {
    marks.into_iter().filter(|mark| *mark >= first).collect()
}

#[test]
fn workers_with_different_relays_meet_for_longer_than_a_session_lives() {
    let mut world = world([true, true]);
    world.run(SECOND * 3);
    talk(&mut world, 0..20);
    assert_eq!(stats(&world).map(|stats| (stats.reporting, stats.packets_to)), [(1, 0), (1, 0)], "both hear both");
    cut(&mut world);
    talk(&mut world, 20..420);
    for marks in received(&world) {
        let marks = after(marks, 20);
        assert!(marks.len() >= 400 - GAP, "{} packets arrived", marks.len());
        assert_eq!(marks.last(), Some(&419));
        assert!(marks.windows(2).all(|pair| pair[1] == pair[0] + 1), "one gap only, at the beginning");
    }
    let while_cut = stats(&world).map(|stats| stats.packets_to);
    assert!(while_cut.iter().all(|packets| *packets >= 390), "{while_cut:?}");

    // Once the tunnels carry packets again, they are used.
    world.cuts.clear();
    talk(&mut world, 420..440);
    let direct = stats(&world).map(|stats| stats.packets_to);
    talk(&mut world, 440..460);
    assert_eq!(stats(&world).map(|stats| stats.packets_to), direct);
    assert_eq!(received(&world).map(|marks| after(marks, 440).len()), [20, 20]);
}

/// The twin of the test above: without siblings, no packet arrives. A relay of an earlier release is a peer as before.
#[test]
fn beside_a_relay_of_an_earlier_release_nothing_changes() {
    for knows in [[false, false], [true, false], [false, true]] {
        let mut world = world(knows);
        world.run(SECOND * 3);
        talk(&mut world, 0..20);
        assert_eq!(received(&world).map(|marks| after(marks, 0).len()), [20, 20]);
        cut(&mut world);
        talk(&mut world, 20..300);
        assert_eq!(received(&world).map(|marks| after(marks, 20)), [vec![], vec![]], "{knows:?}");
        let stats = stats(&world).map(|stats| (stats.packets_to, stats.packets_from));
        assert_eq!(stats, [(0, 0), (0, 0)]);
        world.cuts.clear();
        talk(&mut world, 300..340);
        assert_eq!(received(&world).map(|marks| after(marks, 320).len()), [20, 20]);
    }
}

#[test]
fn a_worker_that_hears_nothing_from_a_relay_is_reached_through_the_other_one() {
    let mut world = world([true, true]);
    world.run(SECOND * 3);
    talk(&mut world, 0..20);
    // The first relay still hears the second worker.
    world.cuts.insert((address(0), address(WORKERS[1])));
    talk(&mut world, 20..300);
    let [_, of_second] = received(&world);
    let marks = after(of_second, 20);
    // A worker without responses begins a handshake after 15 seconds.
    assert!(marks.len() >= 280 - 25, "{} packets arrived", marks.len());
    assert_eq!(marks.last(), Some(&299));
}

#[test]
fn a_lost_sibling_is_not_used_any_more() {
    let mut world = world([true, true]);
    world.run(SECOND * 3);
    talk(&mut world, 0..20);
    cut(&mut world);
    talk(&mut world, 20..40);
    let before = stats_of(&world);
    assert!(before.packets_to > 10 && before.reporting == 1);
    world.cuts.extend([(address(0), address(1)), (address(1), address(0))]);
    talk(&mut world, 40..50);
    let lost = stats_of(&world);
    assert!(lost.packets_to <= before.packets_to + 5 && lost.reporting == 0, "{lost:?}");
    talk(&mut world, 50..400);
    assert_eq!(stats_of(&world), lost);
    world.cuts.retain(|(from, to)| ![*from, *to].iter().all(|end| [address(0), address(1)].contains(end)));
    talk(&mut world, 400..430);
    assert_eq!(received(&world).map(|marks| after(marks, 420).len()), [10, 10]);
}

fn stats_of(world: &World) -> SiblingStats {
    stats(world)[0]
}

/// The number of a third relay, of which the first one is a sibling, and of its tunnel with the second worker.
const THIRD: u8 = 6;

#[test]
fn a_sibling_sends_packets_of_peers_to_peers_and_nothing_else() {
    // A device with the key of the second relay stands in for it, and sends what it likes.
    let mut world = World::new();
    let peers = [workers(), vec![sibling(1, true), sibling(THIRD, true)]].concat();
    world.add(0, relay(0), &CoreLimits::default(), peers);
    let mut anywhere = peer(0, true);
    anywhere.persistent_keepalive = 25;
    anywhere.allowed_ips.insert("0.0.0.0/0".parse().unwrap());
    world.add(1, PacketRoute::Local, &CoreLimits::default(), vec![anywhere.clone()]);
    world.add(2, PacketRoute::Local, &CoreLimits::default(), vec![anywhere.clone()]);
    for unused in 3..THIRD {
        world.add(unused, PacketRoute::Local, &CoreLimits::default(), vec![]);
    }
    // The third relay hears the second worker, and the first one does not.
    let third = [workers(), vec![sibling(0, true)]].concat();
    world.add(THIRD, relay(THIRD), &CoreLimits::default(), third);
    let mut to_third = peer(THIRD, true);
    to_third.persistent_keepalive = 1;
    to_third.allowed_ips.insert("10.0.0.0/24".parse().unwrap());
    world.add_as(THIRD + 1, WORKERS[1], PacketRoute::Local, &CoreLimits::default(), vec![to_third]);
    world.run(SECOND * 5);
    let [w1, w2] = WORKERS;
    assert_eq!(stats_of(&world).reporting, 1);

    world.send(1, &packet(w2, w1, 1));
    world.send(1, &packet(1, w1, 2));
    // Sources without a peer, of another sibling, and of the first relay itself.
    for source in [99, THIRD, 0] {
        world.send(1, &packet(source, w1, 3));
    }
    world.run(SECOND);
    assert_eq!(world.marks(w1), [1, 2]);
    assert_eq!(world.nodes[0].core.dropped().disallowed_source, 3);

    // Destinations that are another sibling, the first relay itself, and a peer that only another sibling hears.
    world.send(1, &packet(w1, THIRD, 4));
    world.send(1, &packet(w1, 0, 5));
    world.send(1, &packet(w1, w2, 6));
    world.run(SECOND);
    assert_eq!(world.nodes[0].core.dropped().unroutable, 2);
    assert_eq!(world.marks(THIRD + 1), [0u32; 0]);
    assert_eq!((world.marks(THIRD), world.marks(0)), (vec![], vec![]));
    assert_eq!(stats_of(&world).packets_to, 0);
    // A worker's packet takes that way.
    world.send(w1, &packet(w1, w2, 7));
    world.run(SECOND);
    assert_eq!(world.marks(THIRD + 1), [7]);
}

/// Returns how many packets the first relay sends to a sibling, after this peer reported that it hears the second worker.
fn attracted_by(poser: u8) -> u64 {
    let mut world = World::new();
    let peers = [workers(), vec![sibling(1, true)]].concat();
    world.add(0, relay(0), &CoreLimits::default(), peers);
    for number in [1, WORKERS[0]] {
        let mut to_relay = peer(0, true);
        to_relay.persistent_keepalive = 25;
        to_relay.allowed_ips.insert("10.0.0.0/24".parse().unwrap());
        world.add(number, PacketRoute::Local, &CoreLimits::default(), vec![to_relay]);
    }
    world.run(SECOND);
    // The port of reports is 51821.
    let mut report = packet(poser, 0, 0);
    report.resize(63, 0);
    report[3] = 63;
    report[9] = 17;
    report[20..31].copy_from_slice(&[0xca, 0x6d, 0xca, 0x6d, 0, 43, 0, 0, 1, 1, 0]);
    report[31..].copy_from_slice(&public_key(WORKERS[1]).0);
    world.send(poser, &report);
    world.run(SECOND);
    world.send(WORKERS[0], &packet(WORKERS[0], WORKERS[1], 1));
    world.run(SECOND);
    stats_of(&world).packets_to
}

#[test]
fn a_worker_that_reports_as_a_sibling_does_attracts_no_packets() {
    assert_eq!(attracted_by(WORKERS[0]), 0);
    assert_eq!(attracted_by(1), 1, "a sibling does");
}
