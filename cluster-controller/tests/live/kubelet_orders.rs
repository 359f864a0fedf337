//! Upgrades of kubelets are ordered one after the other.

use k8s_openapi::api::core::v1::Node;
use keelway_api::worker::{DRAIN_TIMEOUT, KUBELET_RELEASE};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::{controller::Controller, plane::RELEASE, wait};

const WORKERS: [&str; 2] = ["ordered-1", "ordered-2"];

fn nodes(admin: &Client) -> Api<Node> {
    Api::all(admin.clone())
}

/// Sets what a kubelet reports.
async fn reports(admin: &Client, name: &str, version: &str) {
    let status = json!({ "status": {
        "conditions": [{ "type": "Ready", "status": "True", "lastHeartbeatTime": null, "lastTransitionTime": null }],
        "nodeInfo": {
            "kubeletVersion": version, "kubeProxyVersion": "", "architecture": "amd64", "bootID": "", "containerRuntimeVersion": "",
            "kernelVersion": "", "machineID": "", "operatingSystem": "linux", "osImage": "", "systemUUID": "",
        },
    } });
    nodes(admin).patch_status(name, &PatchParams::default(), &Patch::Merge(&status)).await.unwrap();
}

/// Returns the release and the time for draining that a Node orders.
async fn order(admin: &Client, name: &str) -> [Option<String>; 2] {
    let node = nodes(admin).get(name).await.unwrap();
    [KUBELET_RELEASE, DRAIN_TIMEOUT].map(|key| node.annotations().get(key).cloned())
}

pub(crate) async fn are_given_in_turn(controller: &mut Controller, admin: &Client) {
    for name in WORKERS {
        let node = serde_json::from_value(json!({ "metadata": { "name": name } })).unwrap();
        nodes(admin).create(&PostParams::default(), &node).await.unwrap();
        reports(admin, name, "v1.36.3").await;
    }
    let ordered = [Some(RELEASE.to_owned()), Some("2m".to_owned())];
    let kubelets = json!({ "version": RELEASE, "maxUnavailable": 1, "drainTimeout": "2m" });
    controller.change(|configuration| configuration["kubelets"] = kubelets);
    let [first, second] = WORKERS;
    wait::until("the first worker is to upgrade", async || order(admin, first).await == ordered).await;
    assert_eq!(order(admin, second).await, [None, None], "one worker at a time");
    reports(admin, first, &format!("v{RELEASE}")).await;
    wait::until("the second worker is to upgrade", async || order(admin, second).await == ordered).await;
    wait::until("the first order has ended", async || order(admin, first).await == [None, None]).await;

    controller.change(|configuration| configuration["kubelets"] = Value::Null);
    wait::until("no worker is to upgrade", async || order(admin, second).await == [None, None]).await;
    for name in WORKERS {
        nodes(admin).delete(name, &DeleteParams::default()).await.unwrap();
    }
}
