//! The controller creates its objects, and restores them.

use k8s_openapi::api::{
    admissionregistration::v1::ValidatingAdmissionPolicyBinding,
    apps::v1::{DaemonSet, Deployment},
    core::v1::{ConfigMap, Endpoints},
    discovery::v1::EndpointSlice,
};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::json;

use crate::wait;

const OWN: [&str; 3] = ["keelway-no-pod-ranges", "keelway-own-node", "keelway-own-peer"];

async fn addresses(admin: &Client) -> Option<(Vec<String>, i32)> {
    let slice = Api::<EndpointSlice>::namespaced(admin.clone(), "default").get_opt("kubernetes").await.unwrap()?;
    let addresses = slice.endpoints.into_iter().flat_map(|endpoint| endpoint.addresses).collect();
    let port = slice.ports?.first()?.clone();
    assert_eq!(port.name.as_deref(), Some("https"));
    Some((addresses, port.port?))
}

fn reserved() -> (Vec<String>, i32) {
    (vec!["100.80.0.1".to_owned()], 6443)
}

/// The controller creates all its objects by itself.
pub(crate) async fn all_is_applied(admin: &Client) {
    wait::until("the EndpointSlice is there", async || addresses(admin).await == Some(reserved())).await;
    let endpoints = Api::<Endpoints>::namespaced(admin.clone(), "default");
    wait::until("the Endpoints are there", async || endpoints.get_opt("kubernetes").await.unwrap().is_some()).await;
    let bindings = Api::<ValidatingAdmissionPolicyBinding>::all(admin.clone());
    for name in OWN {
        wait::until(name, async || bindings.get_opt(name).await.unwrap().is_some()).await;
    }
    let deployments = Api::<Deployment>::namespaced(admin.clone(), "kube-system");
    for name in ["coredns", "metrics-server"] {
        wait::until(name, async || deployments.get_opt(name).await.unwrap().is_some()).await;
    }
    let proxies = Api::<DaemonSet>::namespaced(admin.clone(), "kube-system");
    wait::until("kube-proxy", async || proxies.get_opt("kube-proxy").await.unwrap().is_some()).await;
    let maps = Api::<ConfigMap>::namespaced(admin.clone(), "kube-system");
    let map = wait::some("keelway-endpoints", async || maps.get_opt("keelway-endpoints").await.unwrap()).await;
    let data = map.data.unwrap();
    assert!(data["ca.crt"].contains("BEGIN CERTIFICATE"));
    assert!(data["cluster.json"].contains("203.0.113.1:20000"), "{}", data["cluster.json"]);
    let public = Api::<ConfigMap>::namespaced(admin.clone(), "kube-public");
    wait::until("cluster-info", async || public.get_opt("cluster-info").await.unwrap().is_some()).await;
}

/// The controller restores what is deleted, changed or loses its label.
pub(crate) async fn drift_is_repaired(admin: &Client) {
    let slices = Api::<EndpointSlice>::namespaced(admin.clone(), "default");
    slices.delete("kubernetes", &DeleteParams::default()).await.unwrap();
    wait::until("a deleted EndpointSlice is back", async || addresses(admin).await == Some(reserved())).await;

    let elsewhere = json!({
        "metadata": { "labels": { "app.kubernetes.io/managed-by": null } },
        "endpoints": [{ "addresses": ["192.0.2.1"] }],
        "ports": [{ "name": "https", "port": 443 }],
    });
    slices.patch("kubernetes", &PatchParams::default(), &Patch::Merge(&elsewhere)).await.unwrap();
    wait::until("a changed EndpointSlice is as it was", async || addresses(admin).await == Some(reserved())).await;

    let bindings = Api::<ValidatingAdmissionPolicyBinding>::all(admin.clone());
    bindings.delete("keelway-own-peer", &DeleteParams::default()).await.unwrap();
    wait::until("a deleted policy is back", async || bindings.get_opt("keelway-own-peer").await.unwrap().is_some())
        .await;

    let deployments = Api::<Deployment>::namespaced(admin.clone(), "kube-system");
    let change = json!({ "spec": { "replicas": 7 } });
    deployments.patch("coredns", &PatchParams::default(), &Patch::Merge(&change)).await.unwrap();
    wait::until("a changed Deployment is as it was", async || {
        let spec = deployments.get("coredns").await.unwrap().spec.unwrap();
        spec.replicas == Some(2)
    })
    .await;
}

/// The controller deletes an add-on that is turned off, and nothing else.
pub(crate) async fn what_is_turned_off_goes(admin: &Client) {
    let deployments = Api::<Deployment>::namespaced(admin.clone(), "kube-system");
    wait::until("CoreDNS is gone", async || deployments.get_opt("coredns").await.unwrap().is_none()).await;
    let maps = Api::<ConfigMap>::namespaced(admin.clone(), "kube-system");
    wait::until("its configuration is gone", async || maps.get_opt("coredns").await.unwrap().is_none()).await;
    assert!(deployments.get_opt("metrics-server").await.unwrap().is_some());
    assert_eq!(addresses(admin).await, Some(reserved()));
}
