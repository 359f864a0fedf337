//! Workers on machines and networks with conditions that break a worker without notice. All rows share one cluster. Each row has a machine of its own,
//! which it changes before or after the join. Rows run one after the other, because the images of each machine are in memory.
//!
//! It needs what the tests of `workers` need.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test's functions fail by panicking, and print their timings"
)]

#[path = "../worker_outages/certificate.rs"]
mod certificate;
mod deleted_node;
mod direct;
mod direct_path;
mod docker;
mod home_router;
mod host_settings;
mod http_proxy;
mod lan;
mod moved;
mod narrow;
mod owners_data;
mod registry;
mod transport;
mod two_addresses;
mod two_nats;
mod udp;
mod unread_rules;

use std::{process::Command, time::Instant};

use keelway_e2e::{
    ReachMode,
    host::on_own_host,
    worker_fleet::{TestCluster, WorkerFleet},
};

/// A worker on a clean machine, which pods of other workers talk to.
const CLEAN: &str = "clean";

/// One condition: the name of the machine, the NATs that it is behind, and the test.
type Row = (&'static str, &'static str, fn(&WorkerFleet, &TestCluster, &str));

/// Each test begins on a machine that has not joined, and leaves the cluster as it was, except for its own Node.
const ROWS: &[Row] = &[
    ("docker-before", "", docker::is_there_before),
    ("docker-after", "", docker::is_there_after),
    ("firewall", "", docker::is_its_owners),
    ("unread", "", unread_rules::are_found),
    ("settings", "", host_settings::are_checked),
    ("data", "", owners_data::survives),
    ("lan", "", lan::is_shielded),
    ("udp", "nat-a", udp::is_blocked),
    ("narrow", narrow::ROUTER, narrow::is_passed),
    ("two-addresses", "nat-a", two_addresses::one_responds),
    ("deleted", "nat-a", deleted_node::is_registered_again),
    ("moved", "nat-a", moved::is_found_by_name),
    ("proxied", "nat-a", http_proxy::is_the_only_way_out),
    ("registry", "", registry::has_credentials),
    ("direct", "", direct::is_the_path_in_one_network),
    ("two-nats", two_nats::FIRST_NAT, two_nats::are_crossed),
    ("symmetric", two_nats::FIRST_NAT, two_nats::are_symmetric),
];

#[test]
fn hostile_hosts() {
    on_own_host("hostile_hosts", || scenario("e2ehost"));
}

fn scenario(tag: &str) {
    let worker_fleet = WorkerFleet::reached(ReachMode::Network, tag, "2", &[(CLEAN, "")]);
    // Networks of workers may allow no other port.
    for machine in worker_fleet.fleet.machines().iter().filter(|machine| machine.is_public()) {
        let _ =
            machine.run(Command::new("sysctl").args(["-qw", "net.ipv4.ip_unprivileged_port_start=443"])).succeeded();
    }
    worker_fleet.inject("c1", &["--ingress-port", "443", "--extra-san", moved::NAME]);
    worker_fleet.reconcile();
    let cluster = worker_fleet.cluster("c1", &[CLEAN]);
    worker_fleet.join(&[&cluster]);
    cluster.start_peers();
    for &(name, behind, row) in ROWS {
        let started = Instant::now();
        worker_fleet.create_worker(name, behind);
        row(&worker_fleet, &cluster, name);
        let _ = cluster.kubectl.run(&["delete", "node,wireguardpeer", name, "--ignore-not-found"]).succeeded();
        worker_fleet.destroy_worker(name);
        println!("{:>7} ms  {name}: done", started.elapsed().as_millis());
    }
}
