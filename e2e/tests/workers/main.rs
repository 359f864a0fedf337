//! Workers of clusters, behind NATs and on the public network, with real containerd, kubelets and pods.
//!
//! It needs root, `runc`, `ip`, `nft`, `conntrack`, and Keelway's cache (`make images`).

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test's functions fail by panicking, and print their timings"
)]

mod access;
mod addons;
mod admission;
mod asleep;
mod authorities;
mod beside;
mod controller;
mod evicted;
mod families;
mod joins;
mod kubelet_orders;
mod kubernetes_authority;
mod leave;
mod nats;
mod overlay;
mod pods;
mod public;
mod restored;

use std::time::Instant;

use keelway_e2e::{MachineFacts, ReachMode, host::on_own_host, worker_fleet::WorkerFleet};

/// Machines for workers, each with the NATs that it is behind, the nearest first. The nearest NATs of `w1` and `w2` assign the same addresses.
const WORKERS: [(&str, &str); 5] = [("w1", "nat-a"), ("w2", "nat-b,nat-c"), ("w3", ""), ("w4", "nat-a"), ("w5", "")];

#[test]
fn workers() {
    on_own_host("workers", || scenario("e2ework", ReachMode::Network));
}

#[test]
#[ignore = "long: one of all ways in which machines are reached"]
fn workers_of_sockets() {
    on_own_host("workers_of_sockets", || scenario("e2ewoso", ReachMode::Socket));
}

#[test]
#[ignore = "long: one of all ways in which machines are reached"]
fn workers_of_agents_sockets() {
    on_own_host("workers_of_agents_sockets", || scenario("e2ewoag", ReachMode::AgentSocket));
}

#[test]
#[ignore = "long: one of all ways in which machines are reached"]
fn workers_through_a_public_machine() {
    on_own_host("workers_through_a_public_machine", || scenario("e2ewovi", ReachMode::Via));
}

#[test]
#[ignore = "long: one of all ways in which machines are reached"]
fn workers_with_waiting_agents() {
    on_own_host("workers_with_waiting_agents", || scenario("e2ewodo", ReachMode::DialOut));
}

#[test]
#[ignore = "long: one of all ways in which machines are reached"]
fn workers_behind_proxies() {
    on_own_host("workers_behind_proxies", || scenario("e2ewopr", ReachMode::Proxy));
}

/// Two clusters with their workers. One of the clusters has ranges of both families.
fn scenario(tag: &str, reach: ReachMode) {
    let worker_fleet = WorkerFleet::reached(reach, tag, "2", &WORKERS);
    stage("clusters", || {
        worker_fleet.inject("c1", &[]);
        worker_fleet.inject("c2", &families::RANGES);
        worker_fleet.reconcile();
    });
    let (c1, c2) = (worker_fleet.cluster("c1", &["w1", "w2", "w3"]), worker_fleet.cluster("c2", &["w4", "w5"]));
    let found = MachineFacts::on_worker(&worker_fleet.fleet.fleet, "w3");
    stage("join", || worker_fleet.join(&[&c1, &c2]));
    stage("add-ons", || addons::all_are_there(&c1));
    stage("controller", || controller::counts_what_it_did(&worker_fleet, &c1));
    stage("pods", || {
        pods::start(&c1);
        pods::each_reaches_each(&c1);
        pods::much_arrives_as_it_was_sent(&c1);
    });
    stage("access", || {
        access::logs(&c1);
        access::attach(&c1);
        access::port_forward(&c1);
        access::top(&c1);
        access::watch_from_a_pod(&c1);
    });
    stage("authorities", || authorities::rotate(&worker_fleet, &c1));
    let c1 = stage("authority of workers", || kubernetes_authority::rotate(&worker_fleet, &c1));
    stage("admission", || {
        admission::by_a_pod(&c1);
        kubelet_orders::are_all_it_may_change(&c1);
    });
    stage("public", || public::nothing_has_privilege(&worker_fleet));
    stage("NATs", || nats::forget_and_move(&worker_fleet, &c1));
    stage("beside each other", || beside::nobody_meets_the_other(&c1, &c2));
    stage("both families", || families::both_carry(&c2));
    stage("sleep", || asleep::keeps_data_and_pods(&worker_fleet, &c2));
    stage("restore", || restored::keeps_workers_and_pods(&worker_fleet, &c2));
    stage("overlay", || overlay::on_the_vpn(&worker_fleet, &c2));
    let addresses = stage("evict", || evicted::from(&worker_fleet, &c1, "w2"));
    let evicted = joins::Evicted { name: "w2", addresses: &addresses };
    stage("ten at once", || joins::each_has_its_own(&worker_fleet, &c1, &evicted));
    stage("leave", || leave::leaves_nothing(&worker_fleet, &c1, "w3", &found));
}

fn stage<T>(name: &str, body: impl FnOnce() -> T) -> T {
    let started = Instant::now();
    let result = body();
    println!("{:>7} ms  {name}: done", started.elapsed().as_millis());
    result
}
