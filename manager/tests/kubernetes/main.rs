//! The CustomResourceDefinitions and the Kubernetes store with a real API server.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test's functions fail by panicking, and print their timings"
)]

#[path = "../store/contract.rs"]
mod contract;
mod definitions;
mod events;
#[path = "../../../cluster-controller/tests/live/host.rs"]
mod host;
mod kubectl;
#[expect(dead_code, reason = "a control plane of another crate's tests, of which only the API is used here")]
#[path = "../../../cluster-controller/tests/live/plane.rs"]
mod plane;
mod role;
mod store;
mod tenants;
#[path = "../../../cluster-controller/tests/live/wait.rs"]
mod wait;

use kubectl::Kubectl;
use plane::Plane;

/// All cases use one API server, because its start takes longer than any of them.
#[test]
fn a_cluster_is_a_store() {
    host::on_own_host("a_cluster_is_a_store", || {
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap().block_on(all());
    });
}

async fn all() {
    let plane = Plane::start().await;
    let kubectl = Kubectl::new(plane.kubeconfig("admin", &["system:masters"]));
    definitions::are_taken(&kubectl);
    definitions::explain_every_field(&kubectl);
    definitions::refuse_what_validation_refuses(&plane.admin().await).await;
    definitions::show_and_scale(&kubectl);
    // The store must create these namespaces itself.
    kubectl.says(&["delete", "namespace", "keelway-0123456789abcdef", "keelway-fedcba9876543210", "--timeout=120s"]);
    store::keeps_what_it_is_given(&plane, &kubectl).await;
    events::are_told_once(&plane, &kubectl).await;
    tenants::stay_in_their_namespaces(&plane, &kubectl).await;
}
