//! A machine whose uplink changes keeps the address of the old one.

use std::net::SocketAddr;
use std::time::Duration;

use keelway_vpn::CoreLimits;

use crate::world::{World, address, packet};

#[test]
fn a_peer_whose_uplink_changed_is_heard_again_from_its_new_address() {
    let mut world = World::pair(&CoreLimits::default());
    for mark in 0..5 {
        world.send(0, &packet(0, 1, mark));
        world.send(1, &packet(1, 0, mark));
        world.run(Duration::from_secs(1));
    }
    assert_eq!(world.marks(1).last(), Some(&4));
    // The old address stays on its interface, so that sending from there is no error.
    world.dead_sources.insert(address(0).ip());
    world.move_to(0, SocketAddr::from(([198, 51, 100, 7], 40000)));
    for mark in 5..40 {
        world.send(0, &packet(0, 1, mark));
        world.send(1, &packet(1, 0, mark));
        world.run(Duration::from_secs(1));
    }
    assert_eq!(world.marks(1).last(), Some(&39));
    assert_eq!(world.marks(0).last(), Some(&39));
    // The first handshake after 15 seconds of silence may still leave from the old address. The next one does not.
    let first_heard = world.marks(1).into_iter().find(|mark| *mark >= 5);
    assert!(first_heard.is_some_and(|mark| mark <= 25), "{first_heard:?}");
}
