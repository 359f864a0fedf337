//! The etcd of a highly available cluster loses processes, data and machines, one case after the other, while clients write, read and list real
//! objects. In each case, every acknowledged write is there, and reads and lists are linearizable. Where an API server and a majority of the
//! members remain, no request fails.
//!
//! It needs what the tests of `live` need.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test's functions fail by panicking, and its log has times"
)]

mod corruption;
mod interrupted;
mod machines;
mod passes;
mod processes;
mod space;

use keelway_e2e::{MachineFacts, Plane, ReachMode, TestFleet, host::on_own_host, plane::PlaneCase};

/// etcd members, API servers and ingresses. One private machine has no member, so that a lost one is replaced there.
const REPLICAS: [&str; 3] = ["3", "2", "1"];
const PRIVATE_MACHINES: &str = "4";

/// Each case leaves a settled cluster of three members, with all machines.
const CASES: &[PlaneCase] = &[
    ("all members are killed at once", processes::all_are_killed),
    ("two of three members are killed by turns", processes::two_are_killed_by_turns),
    ("a member loses its process and its data", processes::one_loses_its_data),
    ("a member is corrupt", corruption::one_is_corrupt),
    ("a member is corrupt, and etcd does not name it", corruption::one_that_etcd_does_not_name),
    ("a machine is lost for good, and returns", machines::one_is_lost),
    ("the driver is killed at each order to the store", interrupted::drain_is_cut_off),
    ("data fills the quota", space::data_fills_the_quota),
];

#[test]
fn stores() {
    on_own_host("stores", scenario);
}

fn scenario() {
    let mut world = TestFleet::new("e2estor");
    let host = MachineFacts::on_host(&world.fleet);
    let machines = world.create_reached(ReachMode::Network, "1", PRIVATE_MACHINES);
    let mut plane = Plane::with_replicas(&world, &machines, REPLICAS);
    plane.run(CASES);
    plane.destroy(&host);
}
