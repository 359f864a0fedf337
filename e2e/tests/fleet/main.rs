//! A fleet of three API servers over two clusters with a worker each: registration, placement, division, drift and deletion, and failures of each
//! part while a client writes on, with real programs. One of the clusters hosts another fleet.
//!
//! It needs what the tests of `workers` need.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test's functions fail by panicking, and print their timings"
)]

mod applied_once;
mod applies;
mod failures;
mod guestbook;
mod hosted;
mod members;
mod network_cut;
mod removal;
mod workloads;

use std::{thread, time::Instant};

use keelway_api::release::fleet_agent_image;
use keelway_e2e::{
    host::on_own_host,
    worker_fleet::{TestCluster, WorkerFleet},
};

#[test]
fn fleet() {
    on_own_host("fleet", scenario);
}

/// A cluster that joins the fleet, and its name there.
struct Member {
    cluster: TestCluster,
    name: &'static str,
}

fn scenario() {
    let setting = WorkerFleet::with_private("e2eflee", "2", "3");
    let agent = fleet_agent_image(None);
    let hosted = hosted::images();
    let of_host: Vec<&str> = hosted.iter().map(String::as_str).chain([agent.as_str()]).collect();
    thread::scope(|scope| {
        for (worker, behind, images) in [("w1", "nat-a", of_host.as_slice()), ("w2", "", &[agent.as_str()])] {
            let setting = &setting;
            scope.spawn(move || setting.create_worker_with(worker, behind, images));
        }
    });
    stage("control planes", || {
        setting.inject("c1", &[]);
        setting.inject("c2", &[]);
        setting.write(&["fleet", "inject", "--name", "f1", "--replicas", "3", "--ingress-replicas", "2"]);
        setting.reconcile();
    });
    let control_plane = setting.cluster("f1", &[]);
    let fleet = &control_plane.kubectl;
    let west = Member { cluster: setting.cluster("c1", &["w1"]), name: "west" };
    let east = Member { cluster: setting.cluster("c2", &["w2"]), name: "east" };
    stage("workers", || setting.join(&[&west.cluster, &east.cluster]));
    stage("registration", || {
        members::register(&setting, fleet, &[&west, &east]);
        members::are_reported(&setting, fleet);
    });
    stage("one cluster", || workloads::one_cluster_runs_it(fleet, &east, &west));
    stage("by name", || workloads::an_annotation_names_the_cluster(fleet, &west, &east));
    stage("division", || workloads::replicas_are_divided(fleet, &[&west, &east]));
    stage("drift", || workloads::drift_is_corrected(&west));
    stage("hosting", || hosted::a_cluster_hosts_a_fleet(&setting, &west));
    stage("failures", || failures::nothing_is_lost(&setting, &control_plane, &west, &east));
    stage("deletion", || workloads::deletion_reaches_the_clusters(fleet, &[&west, &east]));
    stage("removal", || {
        removal::with_its_workloads(fleet, &west, &east);
        removal::without_its_workloads(fleet, &east);
    });
}

fn stage<T>(name: &str, body: impl FnOnce() -> T) -> T {
    let started = Instant::now();
    let result = body();
    println!("{:>7} ms  {name}: done", started.elapsed().as_millis());
    result
}
