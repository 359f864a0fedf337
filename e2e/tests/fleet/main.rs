//! A fleet of three API servers over two clusters with a worker each: the tour of docs/fleet-tour.md, and registration, placement, division, drift,
//! deletion, and failures of each part while a client writes on, with real programs. One of the clusters hosts another fleet.
//!
//! It needs what the tests of `workers` need.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test's functions fail by panicking, and print their timings"
)]

mod applied_once;
mod applies;
mod authority;
mod failures;
mod guestbook;
mod hosted;
mod members;
mod network_cut;
mod removal;
mod tour;
mod workloads;

use std::{thread, time::Instant};

use guestbook::VISITS;
use keelway_api::release::fleet_agent_image;
use keelway_e2e::{
    host::on_own_host,
    worker_fleet::{TestCluster, WorkerFleet},
};
use tour::FleetTour;

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
    let worker_fleet = WorkerFleet::with_private("e2eflee", "2", "3");
    let agent = fleet_agent_image(None);
    let hosted = hosted::images();
    let of_host: Vec<&str> = hosted.iter().map(String::as_str).chain([agent.as_str()]).collect();
    let of_member = [agent.as_str()];
    thread::scope(|scope| {
        for (worker, behind, images) in [("w1", "nat-a", of_host.as_slice()), ("w2", "", &of_member)] {
            let worker_fleet = &worker_fleet;
            scope.spawn(move || worker_fleet.create_worker_with(worker, behind, images));
        }
    });
    let mut tour = FleetTour::begin(&worker_fleet);
    stage("control planes", || tour.section_with_documents("Create the control planes"));
    let control_plane = worker_fleet.cluster("f1", &[]);
    let fleet = &control_plane.kubectl;
    let west = Member { cluster: worker_fleet.cluster("c1", &["w1"]), name: "west" };
    let east = Member { cluster: worker_fleet.cluster("c2", &["w2"]), name: "east" };
    stage("workers", || worker_fleet.join(&[&west.cluster, &east.cluster]));
    stage("registration", || {
        tour.section("Register the clusters");
        members::may_place(&[&west, &east], VISITS);
        members::are_reported(&worker_fleet, fleet);
    });
    stage("one cluster", || workloads::one_cluster_runs_it(fleet, &east, &west));
    stage("drain", || workloads::a_drain_moves_it(&worker_fleet, fleet, &east, &west));
    stage("by name", || workloads::an_annotation_names_the_cluster(fleet, &west, &east));
    stage("division", || workloads::replicas_are_divided(fleet, &[&west, &east]));
    stage("drift", || workloads::drift_is_corrected(&west));
    for section in ["Place an application", "Divide it", "Change something in a cluster"] {
        stage(section, || tour.section(section));
    }
    stage("hosting", || hosted::a_cluster_hosts_a_fleet(&worker_fleet, &west));
    stage("failures", || failures::nothing_is_lost(&worker_fleet, &control_plane, &west, &east));
    stage("authority", || {
        authority::is_replaced(fleet, &[&west, &east], || tour.section_with_documents("Replace its authority"));
    });
    stage("deletion", || workloads::deletion_reaches_the_clusters(fleet, &[&west, &east]));
    stage("removal", || {
        removal::with_its_workloads(&east, &west, || tour.section("Remove a cluster"));
        removal::without_its_workloads(fleet, &west);
    });
    tour.end();
}

fn stage<T>(name: &str, body: impl FnOnce() -> T) -> T {
    let started = Instant::now();
    let result = body();
    println!("{:>7} ms  {name}: done", started.elapsed().as_millis());
    result
}
