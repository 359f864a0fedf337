//! What a person changes in a highly available cluster while clients send requests: numbers of replicas, keys, and the Kubernetes release. No request
//! fails.
//!
//! It needs what the tests of `live` need.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test's functions fail by panicking, and print their timings"
)]

mod rotation;
mod scaling;
mod upgrades;

use std::time::Instant;

use keelway_e2e::{MachineFacts, Plane, ReachMode, TestFleet, host::on_own_host, machine::millis};

/// What is changed, and its function.
type ChangeCase = (&'static str, fn(&mut Plane<'_>));

/// Each case leaves a settled cluster of three members, three API servers and two ingresses.
const CASES: &[ChangeCase] = &[
    ("etcd members", scaling::members_change),
    ("API servers and ingresses", scaling::no_request_fails),
    ("the service account key", rotation::service_account_key),
    ("the encryption key", rotation::encryption_key),
    ("a patch release of Kubernetes", upgrades::of_a_patch_release),
];

#[test]
fn no_request_fails_while_a_cluster_changes() {
    on_own_host("no_request_fails_while_a_cluster_changes", || scenario("e2echg", ReachMode::Network));
}

#[test]
#[ignore = "long: one of all ways in which machines are reached"]
fn no_request_fails_while_a_cluster_without_agents_changes() {
    let name = "no_request_fails_while_a_cluster_without_agents_changes";
    on_own_host(name, || scenario("e2echgso", ReachMode::Socket));
}

fn scenario(tag: &str, reach: ReachMode) {
    let mut world = TestFleet::new(tag);
    let host = MachineFacts::on_host(&world.fleet);
    let machines = world.create_reached(reach, "2", "3");
    let mut plane = Plane::new(&world, &machines);
    for (name, case) in CASES {
        let started = Instant::now();
        println!("-- {name}");
        case(&mut plane);
        println!("{}  {name}", millis(started.elapsed()));
    }
    plane.delete();
    let _ = world.keelway.run(&["hypervisor", "local", "destroy"], &plane.text).succeeded();
    let difference = host.difference(&MachineFacts::on_host(&world.fleet));
    assert!(difference.is_empty(), "not as it was found:\n{difference}");
}
