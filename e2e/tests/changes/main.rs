//! The keys and the Kubernetes release of a cluster with two API servers change while clients send requests. No request fails.
//!
//! It needs what the tests of `live` need.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test's functions fail by panicking, and print their timings"
)]

mod certificates;
mod rotation;
mod upgrades;

use keelway_e2e::{MachineFacts, Plane, ReachMode, TestFleet, host::on_own_host, plane::PlaneCase};

const CASES: &[PlaneCase] = &[
    ("the certificates of all components", certificates::of_every_component),
    ("the service account key and the encryption key", rotation::both_keys),
    ("the authority of etcd", rotation::of_the_authority_of_etcd),
    ("a stolen authority", rotation::of_a_stolen_authority),
    ("the next patch release of Kubernetes", upgrades::to_the_next_patch_release),
];
/// The cases of `make soak`, after the others.
const LONG: &[PlaneCase] = &[("the previous patch release of Kubernetes", upgrades::to_the_previous_patch_release)];

/// etcd members, API servers and ingresses.
const REPLICAS: [&str; 3] = ["3", "2", "2"];

#[test]
fn no_request_fails_while_a_cluster_changes() {
    on_own_host("no_request_fails_while_a_cluster_changes", || scenario("e2echg", ReachMode::Network, &[]));
}

#[test]
#[ignore = "long: one of all ways in which machines are reached"]
fn no_request_fails_while_a_cluster_without_agents_changes() {
    let name = "no_request_fails_while_a_cluster_without_agents_changes";
    on_own_host(name, || scenario("e2echgso", ReachMode::Socket, LONG));
}

fn scenario(tag: &str, reach: ReachMode, more: &[PlaneCase]) {
    let mut world = TestFleet::new(tag);
    let host = MachineFacts::on_host(&world.fleet);
    let machines = world.create_reached(reach, "2", "3");
    let mut plane = Plane::with_replicas(&world, &machines, REPLICAS);
    plane.run(CASES);
    plane.run(more);
    plane.destroy(&host);
}
