//! One control plane, for each way to reach its machines.

use keelway_e2e::{MachineFacts, ReachMode, TestFleet, host::on_own_host};

use crate::{files, keys, life, recovery, settled, workload};

#[test]
#[ignore = "long: one of all ways in which machines are reached"]
fn by_their_sockets() {
    on_own_host("reached::by_their_sockets", || scenario("e2ersoc", ReachMode::Socket));
}

#[test]
#[ignore = "long: one of all ways in which machines are reached"]
fn by_their_agents_sockets() {
    on_own_host("reached::by_their_agents_sockets", || scenario("e2erags", ReachMode::AgentSocket));
}

#[test]
#[ignore = "long: one of all ways in which machines are reached"]
fn over_the_network() {
    on_own_host("reached::over_the_network", || scenario("e2ernet", ReachMode::Network));
}

#[test]
#[ignore = "long: one of all ways in which machines are reached"]
fn through_a_public_one() {
    on_own_host("reached::through_a_public_one", || scenario("e2ervia", ReachMode::Via));
}

#[test]
#[ignore = "long: one of all ways in which machines are reached"]
fn where_they_wait() {
    on_own_host("reached::where_they_wait", || scenario("e2erdia", ReachMode::DialOut));
}

#[test]
#[ignore = "long: one of all ways in which machines are reached"]
fn behind_proxies() {
    on_own_host("reached::behind_proxies", || scenario("e2erpro", ReachMode::Proxy));
}

fn scenario(tag: &str, reach: ReachMode) {
    let mut world = TestFleet::new(tag);
    let host = MachineFacts::on_host(&world.fleet);
    let made = world.create_reached(reach, "1", "1");
    let plane = life::born(&world.keelway, &made, &[]);
    settled::a_second_pass_does_nothing(&plane);
    workload::write(&plane);
    workload::secret_is_there(&plane);
    workload::secret_is_encrypted(&plane);
    workload::administrators(&plane);
    workload::strangers(&plane);
    workload::endpoints(&plane);
    files::files_are_private(&plane);
    files::agents_are_users_of_their_own(&plane);
    keys::are_nowhere_else(&plane);
    for component in plane.components().keys() {
        recovery::container(&plane, component);
        recovery::sandbox(&plane, component);
        workload::secret_is_there(&plane);
    }
    settled::a_second_pass_does_nothing(&plane);
    let empty = life::ends(&plane);
    life::started_agents_end(&plane, &empty);
    let _ = world.keelway.run(&["hypervisor", "local", "destroy"], &empty).succeeded();
    let difference = host.difference(&MachineFacts::on_host(&world.fleet));
    assert!(difference.is_empty(), "not as it was found:\n{difference}");
}
