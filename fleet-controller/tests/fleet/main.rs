//! The controller of a fleet with a real etcd, kube-apiserver and kube-controller-manager.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test's functions fail by panicking, and print their timings"
)]

mod agents;
mod capacity;
mod controller;
mod delegation;
mod placed;
mod registration;
mod removal;
mod rights;
mod silence;

#[path = "../../../cluster-controller/tests/live/host.rs"]
mod host;
#[expect(dead_code, reason = "the tests of the cluster-controller use the rest")]
#[path = "../../../cluster-controller/tests/live/plane.rs"]
mod plane;
#[path = "../../../cluster-controller/tests/live/wait.rs"]
mod wait;

use controller::{FleetController, apply_role};
use plane::Plane;

/// All cases use one control plane, because its start takes longer than any of them.
#[test]
fn a_fleet_is_served() {
    host::on_own_host("a_fleet_is_served", || {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(serve());
    });
}

/// It has a control plane of its own.
#[test]
fn a_silent_agent_is_unknown_and_then_lost() {
    host::on_own_host("a_silent_agent_is_unknown_and_then_lost", || {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(silence::silence());
    });
}

async fn serve() {
    let plane = Plane::start().await;
    let admin = plane.admin().await;
    apply_role(&admin).await;
    rights::the_controller_writes_only_its_own(&plane).await;
    rights::the_controller_changes_one_label(&plane, &admin).await;
    // The replica has the rights that ship and no others.
    let first = FleetController::start(&plane, "first");
    controller::kinds_are_served(&admin).await;

    let west = registration::a_cluster_registers(&plane, &admin).await;
    registration::requests_that_are_denied(&plane, &admin, &west).await;
    let east = registration::register(&plane, &admin, "east").await;
    registration::renewal(&west).await;
    rights::an_agent_has_only_its_own(&west, &admin).await;
    registration::heartbeats_write_nothing_else(&west, &admin).await;

    placed::an_annotation_spreads(&admin, &west, &east).await;
    placed::objects_of_the_largest_size(&admin, &west).await;
    placed::a_policy_divides(&admin, &west, &east).await;
    capacity::room_is_reserved(&admin, &west, &east).await;
    placed::a_burst_writes_each_document_once(&admin, &west, &first).await;

    // The next replica takes over at once.
    let second = FleetController::start(&plane, "second");
    wait::until("the second replica is ready", async || {
        second.ask("/readyz").await.is_some_and(|answer| answer.contains("200 OK"))
    })
    .await;
    let metrics = first.metrics().await.unwrap();
    assert!(metrics.contains("keelway_fleet_controller_leading 1"), "{metrics}");
    let settled = placed::versions(&admin).await;
    first.stop();
    placed::a_restart_writes_nothing(&admin, settled, &west).await;
    removal::a_removed_cluster_has_no_rights(&plane, &admin, &west, &east).await;
    removal::the_last_work_ends_a_removal(&admin, &east).await;
    delegation::another_orchestrator_submits(&plane, &admin).await;
    for name in ["first", "second"] {
        let log = plane::log(name);
        let refused: Vec<_> = log.lines().filter(|line| line.contains("orbidden")).collect();
        assert!(refused.is_empty(), "the role that ships lacks a right: {refused:#?}");
    }
    second.stop();
    rights::without_the_policy(&plane, &admin).await;
    rights::without_guards(&plane, &east, &admin).await;
}
