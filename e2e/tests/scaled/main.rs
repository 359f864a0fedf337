//! Numbers of replicas change, and a machine is drained, while clients send requests. No request fails.
//!
//! It needs what the tests of `live` need.

#![expect(clippy::unwrap_used, reason = "a test's functions fail by panicking")]

mod scaling;

use keelway_e2e::{MachineFacts, Plane, ReachMode, TestFleet, host::on_own_host};

/// etcd members, API servers and ingresses.
const REPLICAS: [&str; 3] = ["3", "2", "2"];

#[test]
fn no_request_fails_while_replicas_change() {
    on_own_host("no_request_fails_while_replicas_change", || scenario("e2escl", ReachMode::Network, &[1, 3]));
}

#[test]
#[ignore = "long: all numbers of members"]
fn no_request_fails_while_a_store_grows_to_five_members_and_shrinks_to_one() {
    let name = "no_request_fails_while_a_store_grows_to_five_members_and_shrinks_to_one";
    on_own_host(name, || scenario("e2escl5", ReachMode::Network, &[1, 3, 5, 3, 1, 3]));
}

#[test]
#[ignore = "long: one of all ways in which machines are reached"]
fn no_request_fails_while_replicas_without_agents_change() {
    let name = "no_request_fails_while_replicas_without_agents_change";
    on_own_host(name, || scenario("e2esclso", ReachMode::Socket, &[1, 3]));
}

/// `members` are the numbers of etcd members, one after the other.
fn scenario(tag: &str, reach: ReachMode, members: &[u32]) {
    let mut world = TestFleet::new(tag);
    let host = MachineFacts::on_host(&world.fleet);
    // A drained machine leaves enough private ones for three members.
    let machines = world.create_reached(reach, "2", "4");
    let mut plane = Plane::with_replicas(&world, &machines, REPLICAS);
    scaling::members_change(&mut plane, members);
    scaling::the_leader_is_drained(&mut plane);
    scaling::no_request_fails(&mut plane);
    plane.is_spread();
    plane.destroy(&host);
}
