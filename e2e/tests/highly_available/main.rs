//! A highly available cluster on two public and three private machines, whose clients continue through failures.
//!
//! It needs what the tests of `live` need.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test's functions fail by panicking, and print their timings"
)]

mod disk;
mod failures;
mod replicas;
mod status;
mod unseen;

use keelway_e2e::{MachineFacts, Plane, ReachMode, TestFleet, host::on_own_host, load::Load, plane::ingress};

/// Creates two public and three private machines. The disk of the last one has a size of its own.
fn create(world: &mut TestFleet, reach: ReachMode) -> Vec<u8> {
    disk::of_its_own(&world.fleet);
    world.create_reached(reach, "2", "3")
}

#[test]
fn clients_continue() {
    on_own_host("clients_continue", || scenario("e2eha", ReachMode::Network));
}

#[test]
#[ignore = "long: one of all ways in which machines are reached"]
fn clients_continue_by_sockets() {
    on_own_host("clients_continue_by_sockets", || scenario("e2ehaso", ReachMode::Socket));
}

#[test]
#[ignore = "long: one of all ways in which machines are reached"]
fn clients_continue_by_agents_sockets() {
    on_own_host("clients_continue_by_agents_sockets", || scenario("e2ehaag", ReachMode::AgentSocket));
}

#[test]
#[ignore = "long: one of all ways in which machines are reached"]
fn clients_continue_through_a_public_machine() {
    on_own_host("clients_continue_through_a_public_machine", || scenario("e2ehavi", ReachMode::Via));
}

#[test]
#[ignore = "long: one of all ways in which machines are reached"]
fn clients_continue_with_waiting_agents() {
    on_own_host("clients_continue_with_waiting_agents", || scenario("e2ehado", ReachMode::DialOut));
}

#[test]
#[ignore = "long: one of all ways in which machines are reached"]
fn clients_continue_behind_proxies() {
    on_own_host("clients_continue_behind_proxies", || scenario("e2ehapr", ReachMode::Proxy));
}

fn scenario(tag: &str, reach: ReachMode) {
    let mut world = TestFleet::new(tag);
    let host = MachineFacts::on_host(&world.fleet);
    let machines = create(&mut world, reach);
    let mut plane = Plane::new(&world, &machines);
    plane.is_spread();
    replicas::fit_on_a_screen(&plane);
    status::shows_stores(&plane);
    status::observes_stores(&plane);
    replicas::elect_leaders(&plane);
    ingress::contexts(&plane);
    ingress::serve_metrics(&plane);

    let load = Load::start(&plane.kubectl);
    load.wait_for_requests(100);
    failures::each_container(&plane, &load);
    failures::a_sandbox_of_each_role(&plane, &load);
    failures::private_machine(&mut plane, &load);
    failures::public_machine(&plane, &load);
    failures::a_role_on_one_machine(&plane, &load);
    // Both reports come from agents.
    if reach.has_agents() {
        unseen::a_runtime_hangs(&mut plane, &load);
        disk::is_full(&mut plane, &load);
    }
    load.end().assert_good();

    plane.destroy(&host);
}

#[test]
#[ignore = "long: what a lost sandbox held is given its time to drain, one after the other"]
fn clients_continue_without_any_sandbox() {
    on_own_host("clients_continue_without_any_sandbox", || {
        let mut world = TestFleet::new("e2ehas");
        let machines = create(&mut world, ReachMode::Network);
        let plane = Plane::new(&world, &machines);
        let load = Load::start(&plane.kubectl);
        load.wait_for_requests(100);
        failures::each_sandbox(&plane, &load);
        load.end().assert_good();
    });
}
