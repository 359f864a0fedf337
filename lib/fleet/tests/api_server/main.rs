//! The definitions of a fleet's kinds with a real etcd and kube-apiserver.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::print_stdout,
    reason = "a test's functions fail by panicking, and print their timings"
)]

mod policies;

#[path = "../../../../cluster-controller/tests/live/host.rs"]
mod host;
#[expect(dead_code, reason = "the tests of the cluster-controller use the rest")]
#[path = "../../../../cluster-controller/tests/live/plane.rs"]
mod plane;
#[path = "../../../../cluster-controller/tests/live/wait.rs"]
mod wait;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client, ResourceExt,
    api::{ListParams, Patch, PatchParams},
};
use plane::Plane;

/// All cases use one control plane, because its start takes longer than any of them.
#[test]
fn an_api_server_serves_and_checks_the_kinds() {
    host::on_own_host("an_api_server_serves_and_checks_the_kinds", || {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(serve());
    });
}

async fn serve() {
    let plane = Plane::start().await;
    let admin = plane.admin().await;
    apply_definitions(&admin).await;
    policies::contradictory_ones_are_refused(&admin).await;
    policies::those_of_the_documentation_are_accepted(&admin).await;
    policies::defaults_are_written(&admin).await;
    policies::names_of_clusters_fit_their_namespaces(&admin).await;
}

async fn apply_definitions(admin: &Client) {
    let definitions: Api<CustomResourceDefinition> = Api::all(admin.clone());
    for definition in keelway_fleet::crds() {
        let apply = PatchParams::apply("test").force();
        definitions.patch(&definition.name_any(), &apply, &Patch::Apply(&definition)).await.unwrap();
    }
    wait::until("the kinds are served", async || {
        let found = definitions.list(&ListParams::default()).await.unwrap().items;
        let is_served = |definition: &CustomResourceDefinition| {
            let conditions = definition.status.iter().flat_map(|status| status.conditions.iter().flatten());
            conditions.clone().any(|condition| condition.type_ == "Established" && condition.status == "True")
        };
        found.len() == keelway_fleet::crds().len() && found.iter().all(is_served)
    })
    .await;
}
