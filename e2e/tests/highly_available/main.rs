//! A highly available cluster on real machines, while its clients go on: two public and three private ones, with an agent each.
//!
//! Needs what the tests of `live` need.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test's functions fail by panicking, and tell their timings"
)]

mod disk;
mod failures;
mod ingress;
mod plane;
mod replicas;
mod scaling;
mod store;
mod unseen;

use keelway_e2e::{Found, World, host::on_own_host, load::Load};
use plane::Plane;

/// Two public and three private machines; the last one's disk is of a size of its own.
fn create(world: &mut World) -> Vec<u8> {
    world.create_remote(|keelway, fleet| {
        disk::of_its_own(fleet);
        keelway.run(&["hypervisor", "local", "create", "--fleet", fleet, "--public", "2", "--private", "3"], &[])
    })
}

#[test]
fn clients_go_on() {
    on_own_host("clients_go_on", || {
        let mut world = World::new("e2eha");
        let host = Found::on_host(&world.fleet);
        let machines = create(&mut world);
        let mut plane = Plane::new(&world, &machines);
        replicas::are_spread(&plane);
        replicas::fit_on_a_screen(&plane);
        replicas::elect_leaders(&plane);
        ingress::contexts(&plane);
        ingress::tell_metrics(&plane);
        scaling::members_stay(&plane);
        scaling::no_request_fails(&mut plane);
        replicas::are_spread(&plane);

        let load = Load::start(&plane.kubectl);
        load.goes_on(100);
        failures::each_container(&plane, &load);
        failures::a_sandbox_of_each_role(&plane, &load);
        failures::private_machine(&mut plane, &load);
        failures::public_machine(&plane, &load);
        failures::a_role_on_one_machine(&plane, &load);
        unseen::a_runtime_hangs(&mut plane, &load);
        disk::is_full(&mut plane, &load);
        load.end().assert_good();

        plane.delete();
        let gone = world.keelway.run(&["hypervisor", "local", "destroy"], &plane.text).succeeded();
        println!("{:>7} ms  until all machines were gone", gone.took.as_millis());
        let difference = host.difference(&Found::on_host(&world.fleet));
        assert!(difference.is_empty(), "not as it was found:\n{difference}");
    });
}

#[test]
#[ignore = "long: what a lost sandbox held is given its time to drain, one after the other"]
fn clients_go_on_without_any_sandbox() {
    on_own_host("clients_go_on_without_any_sandbox", || {
        let mut world = World::new("e2ehas");
        let machines = create(&mut world);
        let plane = Plane::new(&world, &machines);
        let load = Load::start(&plane.kubectl);
        load.goes_on(100);
        failures::each_sandbox(&plane, &load);
        load.end().assert_good();
    });
}
