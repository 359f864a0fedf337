//! The controller with a real etcd, kube-apiserver and kube-controller-manager.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test's functions fail by panicking, and print their timings"
)]

mod controller;
mod evicted;
mod host;
mod identities;
mod kubelet_orders;
mod neighbours;
mod network_policies;
mod peers;
mod plane;
mod reads;
mod reload;
mod repair;
mod requests;
mod roles;
mod rules;
mod strangers;
mod tokens;
mod wait;

use controller::{Controller, apply_role};
use plane::Plane;

/// All cases use one control plane, because its start takes longer than any of them.
#[test]
fn a_cluster_is_served() {
    host::on_own_host("a_cluster_is_served", || {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(serve());
    });
}

fn program() -> std::path::PathBuf {
    env!("CARGO_BIN_EXE_keelway-cluster-controller").into()
}

async fn serve() {
    let mut plane = Plane::start().await;
    let admin = plane.admin().await;
    apply_role(&admin).await;
    // One replica holds the Lease, with the rights that ship and no others.
    let mut first = Controller::start(&plane, "first", |configuration| {
        configuration["authorities"] = plane::replace("authorities.crt", plane.authority()).into();
    });
    repair::all_is_applied(&admin).await;
    repair::drift_is_repaired(&admin).await;
    network_policies::are_reported(&admin).await;
    reload::add_ons_come_and_go(&mut first, &admin).await;
    reload::authorities_and_credentials(&mut first, &plane, &admin).await;
    kubelet_orders::are_given_in_turn(&mut first, &admin).await;

    peers::twenty_at_once(&plane, &admin).await;
    requests::table(&plane, &admin).await;
    tokens::end(&plane, &admin).await;
    let holders = identities::a_name_is_its_holders(&plane, &admin).await;
    rules::what_a_worker_cannot(&plane, &admin).await;
    reads::what_is_not_a_workers(&plane, &admin).await;
    peers::ranges_of_pods(&plane, &admin).await;
    peers::eviction(&plane, &admin).await;
    evicted::comes_back_with_nothing(&plane, &admin).await;
    neighbours::are_nobody_here(&plane).await;
    strangers::are_told_of_health(&plane, &admin).await;

    // The next replica takes over at once, and removes what is turned off.
    let second = Controller::start(&plane, "second", |configuration| {
        configuration["addons"] = serde_json::json!({ "coreDNS": { "enabled": false } });
    });
    wait::until("the second one is ready", async || {
        second.ask("/readyz").await.is_some_and(|answer| answer.contains("200 OK"))
    })
    .await;
    assert!(!second.log().contains("holds the Lease"), "two hold the Lease");
    let metrics = first.metrics().await.unwrap();
    assert!(metrics.contains("keelway_cluster_controller_leading 1"), "{metrics}");
    let refused = first.log().lines().filter(|line| line.contains("orbidden")).map(str::to_owned).collect::<Vec<_>>();
    assert!(refused.is_empty(), "the role that ships lacks a right: {refused:#?}");
    first.stop();
    repair::what_is_turned_off_goes(&admin).await;
    second.kill();

    identities::without_guards(&holders, &admin).await;
    rules::without_guards(&plane, &admin).await;
    reads::without_guards(&plane, &admin).await;
    requests::without_guards(&plane, &admin).await;
    let third = Controller::start(&plane, "third", |_| {});
    repair::all_is_applied(&admin).await;
    third.stop();
    strangers::without_guards(&mut plane, &admin).await;
}
