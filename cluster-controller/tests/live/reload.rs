//! Files change while the controller runs. It continues, and keeps its Lease.

use std::collections::BTreeMap;

use k8s_openapi::api::{
    apps::v1::{DaemonSet, Deployment},
    coordination::v1::Lease,
    core::v1::{ConfigMap, Service},
    rbac::v1::ClusterRole,
};
use kube::{
    Api, Client,
    api::{DeleteParams, ObjectMeta, PostParams},
};
use serde_json::{Value, json};

use keelway_cluster_controller::controller::USER;

use crate::{
    controller::Controller,
    network_policies,
    plane::{Plane, replace},
    repair, wait,
};

const ADD_ONS: [&str; 4] = ["coreDNS", "kubeProxy", "metricsServer", "cni"];

fn in_system<K>(admin: &Client) -> Api<K>
where
    K: kube::Resource<DynamicType = (), Scope = k8s_openapi::NamespaceResourceScope>,
{
    Api::namespaced(admin.clone(), "kube-system")
}

/// Returns what workers read from the cluster.
async fn told(admin: &Client) -> BTreeMap<String, String> {
    in_system::<ConfigMap>(admin).get("keelway-endpoints").await.unwrap().data.unwrap()
}

async fn has_cni(admin: &Client) -> bool {
    let cluster: Value = serde_json::from_str(&told(admin).await["cluster.json"]).unwrap();
    cluster["cni"]["enabled"].as_bool().unwrap()
}

/// Returns how often the Lease changed its holder.
async fn transitions(admin: &Client) -> Option<i32> {
    in_system::<Lease>(admin).get("keelway-cluster-controller").await.unwrap().spec?.lease_transitions
}

/// Returns those objects of all add-ons that exist.
async fn there(admin: &Client) -> Vec<&'static str> {
    let (deployments, maps) = (in_system::<Deployment>(admin), in_system::<ConfigMap>(admin));
    let roles = Api::<ClusterRole>::all(admin.clone());
    let found = [
        ("Deployment coredns", deployments.get_opt("coredns").await.unwrap().is_some()),
        ("ConfigMap coredns", maps.get_opt("coredns").await.unwrap().is_some()),
        ("Service kube-dns", in_system::<Service>(admin).get_opt("kube-dns").await.unwrap().is_some()),
        ("ClusterRole keelway:coredns", roles.get_opt("keelway:coredns").await.unwrap().is_some()),
        ("DaemonSet kube-proxy", in_system::<DaemonSet>(admin).get_opt("kube-proxy").await.unwrap().is_some()),
        ("Deployment metrics-server", deployments.get_opt("metrics-server").await.unwrap().is_some()),
        ("ConfigMap keelway-cni", maps.get_opt("keelway-cni").await.unwrap().is_some()),
    ];
    found.into_iter().filter(|(_, is_there)| *is_there).map(|(name, _)| name).collect()
}

/// The controller deletes what it applied, keeps what others created, and applies all of it again.
pub(crate) async fn add_ons_come_and_go(controller: &mut Controller, admin: &Client) {
    let maps = in_system::<ConfigMap>(admin);
    let labels = BTreeMap::from([("app.kubernetes.io/managed-by".to_owned(), "keelway-cluster-controller".to_owned())]);
    let metadata = ObjectMeta { name: Some("copied".to_owned()), labels: Some(labels), ..ObjectMeta::default() };
    maps.create(&PostParams::default(), &ConfigMap { metadata, ..ConfigMap::default() }).await.unwrap();
    let (all, before) = (there(admin).await, transitions(admin).await);
    assert_eq!(all.len(), 7, "{all:?}");
    assert!(has_cni(admin).await);

    for name in ADD_ONS {
        controller.change(|configuration| configuration["addons"][name] = json!({ "enabled": false }));
    }
    wait::until("what is turned off is gone", async || there(admin).await.is_empty()).await;
    wait::until("workers know that another CNI is brought", async || !has_cni(admin).await).await;
    network_policies::are_not_reported(admin).await;
    controller.change(|configuration| configuration["addons"]["kubeProxy"] = json!({ "enabled": true }));
    wait::until("what is turned on again is there", async || there(admin).await == ["DaemonSet kube-proxy"]).await;
    assert!(maps.get_opt("copied").await.unwrap().is_some(), "what somebody copied is theirs");
    maps.delete("copied", &DeleteParams::default()).await.unwrap();

    controller.change(|configuration| configuration["addons"] = json!({}));
    wait::until("all is there again", async || there(admin).await == all).await;
    repair::all_is_applied(admin).await;
    assert!(controller.is_running());
    assert_eq!(transitions(admin).await, before, "{}", controller.log());
}

/// The controller applies changes of the authorities for workers, and of its own credentials.
pub(crate) async fn authorities_and_credentials(controller: &mut Controller, plane: &Plane, admin: &Client) {
    let both = plane.authority().to_owned() + Plane::another_authority().certificate().pem();
    replace("authorities.crt", &both);
    wait::until("workers are told of a second authority", async || told(admin).await["ca.crt"] == both).await;
    replace("authorities.crt", plane.authority());
    wait::until("and no more of it", async || told(admin).await["ca.crt"] == plane.authority()).await;

    let seen = |controller: &Controller, what: &str| controller.log().matches(what).count();
    controller.change(|configuration| configuration["endpoints"] = json!([]));
    wait::until("what makes no sense is passed over", async || seen(controller, "ignoring changed files") > 0).await;
    let mut taken_up = seen(controller, "reloaded changed files");
    controller.change(|configuration| configuration["endpoints"] = json!([{ "address": "203.0.113.1:20000" }]));
    wait::until("what makes sense is taken up", async || seen(controller, "reloaded changed files") > taken_up).await;
    taken_up = seen(controller, "reloaded changed files");
    plane.kubeconfig(USER, &[]);
    wait::until("a certificate that was renewed is shown", async || {
        seen(controller, "reloaded changed files") > taken_up
    })
    .await;
    repair::drift_is_repaired(admin).await;
    assert!(controller.is_running());
}
