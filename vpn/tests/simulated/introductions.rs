//! A relay that introduces workers to each other.

use keelway_vpn::{CoreLimits, INTRODUCTION_PORT, IntroductionRequest, PacketRoute, PeerIntroduction};

use crate::SECOND;
use crate::world::{World, address, packet, peer, public_key};

const RELAY: u8 = 0;
const WORKERS: [u8; 3] = [1, 2, 3];

fn world() -> World {
    let mut world = World::new();
    let workers = WORKERS.map(|worker| peer(worker, false)).to_vec();
    let route = PacketRoute::Relay(vec!["10.0.0.1".parse().unwrap()]);
    world.add(RELAY, route, &CoreLimits::default(), workers);
    for worker in WORKERS {
        let mut relay = peer(RELAY, true);
        relay.allowed_ips.insert("10.0.0.0/24".parse().unwrap());
        relay.persistent_keepalive = 25;
        world.add(worker, PacketRoute::Local, &CoreLimits::default(), vec![relay]);
    }
    world.run(SECOND);
    world
}

/// Returns an IPv4 packet with a UDP datagram, without a checksum of it.
fn datagram(from: u8, payload: &[u8]) -> Vec<u8> {
    let mut bytes = packet(from, RELAY, 0);
    bytes.truncate(20);
    let length = u16::try_from(28 + payload.len()).unwrap();
    bytes[2..4].copy_from_slice(&length.to_be_bytes());
    bytes[9] = 17;
    let port = INTRODUCTION_PORT.to_be_bytes();
    bytes.extend([port, port, (length - 20).to_be_bytes(), [0; 2]].concat());
    bytes.extend(payload);
    bytes
}

/// Sends a request of a worker. Returns the peers to which the relay introduces it.
fn request(world: &mut World, worker: u8, kept: &[u8]) -> Vec<PeerIntroduction> {
    let request = IntroductionRequest {
        port: 50_000 + u16::from(worker),
        addresses: vec![format!("192.168.1.{worker}").parse().unwrap()],
        kept: kept.iter().map(|peer| public_key(*peer)).collect(),
    };
    let node = usize::from(worker);
    world.nodes[node].delivered.clear();
    world.send(worker, &datagram(worker, &request.encode()));
    world.run(SECOND);
    let responses = world.nodes[node].delivered.iter();
    let messages = responses.map(|packet| PeerIntroduction::parse(&packet[28..]).unwrap());
    assert!(!world.nodes[node].delivered.is_empty(), "the relay responds to each request");
    messages.flatten().collect()
}

#[test]
fn workers_that_exchange_packets_learn_each_others_endpoints() {
    let mut world = world();
    for worker in WORKERS {
        assert!(request(&mut world, worker, &[]).is_empty());
    }
    world.send(1, &packet(1, 2, 7));
    world.run(SECOND);
    let [introduction] = request(&mut world, 1, &[]).try_into().unwrap();
    assert_eq!(introduction.public_key, public_key(2));
    let mut observed = address(2);
    observed.set_port(50_002);
    assert_eq!(introduction.candidates, ["192.168.1.2:50002".parse().unwrap(), observed]);
    assert_eq!(introduction.allowed_ips, ["10.0.0.3/32".parse().unwrap(), "fd00::3/128".parse().unwrap()]);
    assert_eq!(request(&mut world, 2, &[]).len(), 1);
    assert!(request(&mut world, 3, &[]).is_empty(), "it exchanges no packets");
}

#[test]
fn workers_stay_introduced_while_one_of_them_keeps_the_other_and_both_are_peers() {
    let mut world = world();
    request(&mut world, 1, &[]);
    request(&mut world, 2, &[]);
    world.send(1, &packet(1, 2, 7));
    world.run(SECOND);
    for _ in 0..60 {
        request(&mut world, 2, &[]);
        assert_eq!(request(&mut world, 1, &[2]).len(), 1);
    }
    world.set_peers(RELAY, vec![peer(1, false), peer(3, false)]);
    assert!(request(&mut world, 1, &[2]).is_empty());
    world.set_peers(RELAY, WORKERS.map(|worker| peer(worker, false)).to_vec());
    assert!(request(&mut world, 1, &[2]).is_empty(), "it has not asked again");
}
