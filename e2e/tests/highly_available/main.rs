//! A highly available cluster on real machines, while its clients go on: two public and three private ones.
//!
//! Needs what the tests of `live` need.

#![expect(clippy::unwrap_used, reason = "a test's functions fail by panicking, and tell their timings")]

mod ingress;
mod plane;
mod replicas;
mod scaling;

use keelway_e2e::{Found, World, host::on_own_host};
use plane::Plane;

#[test]
fn replicas_come_and_go_while_clients_go_on() {
    on_own_host("replicas_come_and_go_while_clients_go_on", || {
        let mut world = World::new("e2eha");
        let host = Found::on_host(&world.fleet);
        let machines = world.create(|keelway, fleet| {
            keelway.run(&["hypervisor", "local", "create", "--fleet", fleet, "--public", "2", "--private", "3"], &[])
        });
        let mut plane = Plane::new(&world, &machines);
        replicas::are_spread(&plane);
        replicas::elect_leaders(&plane);
        ingress::contexts(&plane);
        ingress::metrics(&plane);
        scaling::members_stay(&plane);
        scaling::no_request_fails(&mut plane);
        replicas::are_spread(&plane);
        plane.delete();
        let gone = world.keelway.run(&["hypervisor", "local", "destroy"], &plane.text).succeeded();
        println!("{:>7} ms  until all machines were gone", gone.took.as_millis());
        let difference = host.difference(&Found::on_host(&world.fleet));
        assert!(difference.is_empty(), "not as it was found:\n{difference}");
    });
}
