//! Workers and their clients during outages. Public machines with an ingress and a gateway are lost or drained, gateways are killed while the API
//! server is down, and all agents are stopped. Workers are unplugged, rebooted, upgraded, and away for longer than their certificates are valid.
//!
//! It needs what the tests of `workers` need.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test's functions fail by panicking, and print their timings"
)]

mod apart;
mod certificate;
mod clients;
mod ended;
mod gateways;
mod idle;
mod logs;
mod moves;
mod outside;
mod pods;
mod public;
mod reboot;
mod unplugged;
mod upgrade;
mod watch;

use keelway_e2e::{ReachMode, host::on_own_host, worker_fleet::WorkerFleet};

/// Machines for workers, each with the NAT that it is behind.
const WORKERS: [(&str, &str); 2] = [("w1", "nat-a"), ("w2", "nat-b")];
/// Workers that join later: one that is unplugged for a long time, and one that leaves.
const THIRD: &str = "w3";
const FOURTH: &str = "w4";

#[test]
fn outages() {
    on_own_host("outages", || scenario("e2eloss", ReachMode::Network));
}

// There is no variant for machines without agents: their components are not restarted without a pass, and these clients wait for restarts.

#[test]
#[ignore = "long: one of all ways in which machines are reached"]
fn outages_of_agents_sockets() {
    on_own_host("outages_of_agents_sockets", || scenario("e2eloag", ReachMode::AgentSocket));
}

#[test]
#[ignore = "long: one of all ways in which machines are reached"]
fn outages_through_a_public_machine() {
    on_own_host("outages_through_a_public_machine", || scenario("e2elovi", ReachMode::Via));
}

#[test]
#[ignore = "long: one of all ways in which machines are reached"]
fn outages_with_waiting_agents() {
    on_own_host("outages_with_waiting_agents", || scenario("e2elodo", ReachMode::DialOut));
}

fn scenario(tag: &str, reach: ReachMode) {
    let worker_fleet =
        WorkerFleet::reached(reach, tag, "3", &[&WORKERS[..], &[(THIRD, "nat-c"), (FOURTH, "")]].concat());
    worker_fleet.inject("c1", &[]);
    worker_fleet.reconcile();
    let cluster = worker_fleet.cluster("c1", &["w1", "w2"]);
    worker_fleet.join(&[&cluster]);
    cluster.start_peers();
    let clients = clients::Clients::start(&worker_fleet, &cluster);
    let machines = public::all(&worker_fleet, &cluster);
    // Every public machine is lost once, so every client is affected.
    for (lost, other) in [(&machines[0], &machines[1]), (&machines[1], &machines[0])] {
        public::is_lost_and_comes_back(&worker_fleet, &cluster.by(&other.context), &clients, lost, other).assert_good();
    }
    let (cluster, gaps) = moves::each_ingress(&worker_fleet, &cluster, &clients);
    for gaps in gaps {
        gaps.assert_under(public::BACK);
    }
    watch::missed_nothing(&cluster, &clients.load);
    let probers = clients.end(&cluster);
    assert!(gateways::come_back_from_disk(&worker_fleet, &cluster, &probers) < public::BACK);
    outside::is_stopped(&worker_fleet, &cluster);
    // Kubernetes needs a minute to notice that a worker is missing. The next steps run meanwhile.
    let unplugged = unplugged::begins(&worker_fleet, &cluster);
    assert!(apart::still_meet(&worker_fleet, &cluster, &probers) < public::BACK);
    assert!(upgrade::of_the_daemon(&worker_fleet, &cluster, &probers) < upgrade::GAP);
    reboot::of_a_worker(&worker_fleet, &cluster);
    unplugged.ends(&worker_fleet, &cluster);
    ended::renews_by_its_key(&worker_fleet, &cluster);
    ended::comes_back_with_a_token(&worker_fleet, &cluster);
}
