//! What a worker cannot write, and can write without the guard.

use k8s_openapi::api::{admissionregistration::v1::ValidatingAdmissionPolicyBinding, core::v1::Node};
use keelway_api::worker::WireGuardPeer;
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::{
    peers::{given, peer},
    plane::Plane,
    wait,
};

/// Returns the message of a refusal. Fails if the request was not refused.
pub(crate) fn refused<T: std::fmt::Debug>(what: &str, outcome: kube::Result<T>) -> String {
    match outcome {
        Err(kube::Error::Api(status)) if matches!(status.code, 403 | 422) => status.message.clone(),
        other => panic!("{what}: {other:?}"),
    }
}

fn node(name: &str, spec: &Value, addresses: &[&str]) -> Node {
    let addresses: Vec<Value> =
        addresses.iter().map(|address| json!({ "type": "InternalIP", "address": address })).collect();
    serde_json::from_value(json!({ "metadata": { "name": name }, "spec": spec, "status": { "addresses": addresses } }))
        .unwrap()
}

/// A worker cannot use the name, the key, the addresses or the ranges of others.
pub(crate) async fn what_a_worker_cannot(plane: &Plane, admin: &Client) {
    let w4 = plane.node("w4").await;
    let (peers, nodes) = (Api::<WireGuardPeer>::all(w4.clone()), Api::<Node>::all(w4.clone()));
    let create = PostParams::default();
    let message = refused("another's peer", peers.create(&create, &peer("stolen", 104)).await);
    assert!(message.contains("may only write its own WireGuardPeer, not that of stolen"), "{message}");
    refused("to delete another's peer", peers.delete("w5", &DeleteParams::default()).await);
    let label = json!({ "metadata": { "labels": { "a": "b" } } });
    refused("to change another's peer", peers.patch("w5", &PatchParams::default(), &Patch::Merge(&label)).await);
    let status = json!({ "status": { "addresses": ["100.80.0.99"] } });
    refused("its own status", peers.patch_status("w4", &PatchParams::default(), &Patch::Merge(&status)).await);
    let key = json!({ "spec": { "publicKey": crate::peers::key(105) } });
    refused("another key", peers.patch("w4", &PatchParams::default(), &Patch::Merge(&key)).await);

    let stranger = Api::<Node>::all(plane.node("stranger").await);
    let message = refused("a Node without a peer", stranger.create(&create, &node("stranger", &json!({}), &[])).await);
    assert!(message.contains("join first"), "{message}");
    let range = json!({ "podCIDR": "10.244.9.0/24", "podCIDRs": ["10.244.9.0/24"] });
    let message = refused("pod ranges of its own", nodes.create(&create, &node("w4", &range, &[])).await);
    assert!(message.contains("must not set or change the ranges"), "{message}");
    let other = given(admin, "w5").await;
    let message = refused("another's address", nodes.create(&create, &node("w4", &json!({}), &[&other[0]])).await);
    assert!(message.contains("must be those of its WireGuardPeer"), "{message}");

    let own = given(admin, "w4").await;
    nodes.create(&create, &node("w4", &json!({}), &[&own[0]])).await.unwrap();
    let elsewhere = json!({ "status": { "addresses": [{ "type": "InternalIP", "address": other[0] }] } });
    refused(
        "to move to another's address",
        nodes.patch_status("w4", &PatchParams::default(), &Patch::Merge(&elsewhere)).await,
    );
    refused(
        "to delete another's Node",
        Api::<Node>::all(plane.node("w5").await).delete("w4", &DeleteParams::default()).await,
    );
    // The Node would be created again without its taints.
    refused("to delete its own Node", nodes.delete("w4", &DeleteParams::default()).await);
}

/// Only the policy named in each step prevents the write.
pub(crate) async fn without_guards(plane: &Plane, admin: &Client) {
    let w6 = plane.node("w6").await;
    let (peers, nodes) = (Api::<WireGuardPeer>::all(w6.clone()), Api::<Node>::all(w6));
    let create = PostParams::default();
    remove(admin, "keelway-own-peer").await;
    wait::until("without keelway-own-peer: another's peer", async || {
        peers.create(&create, &peer("unguarded", 106)).await.is_ok()
    })
    .await;
    let range = json!({ "podCIDR": "10.244.99.0/24", "podCIDRs": ["10.244.99.0/24"] });
    refused("pod ranges", nodes.create(&create, &node("w6", &range, &[])).await);
    remove(admin, "keelway-no-pod-ranges").await;
    wait::until("without keelway-no-pod-ranges: ranges of its own", async || {
        nodes.create(&create, &node("w6", &range, &[])).await.is_ok()
    })
    .await;
    let stranger = Api::<Node>::all(plane.node("stranger").await);
    refused("a Node without a peer", stranger.create(&create, &node("stranger", &json!({}), &[])).await);
    remove(admin, "keelway-own-node").await;
    wait::until("without keelway-own-node: a Node without a peer", async || {
        stranger.create(&create, &node("stranger", &json!({}), &["100.80.0.17"])).await.is_ok()
    })
    .await;
}

pub(crate) async fn remove(admin: &Client, name: &str) {
    let bindings = Api::<ValidatingAdmissionPolicyBinding>::all(admin.clone());
    bindings.delete(name, &DeleteParams::default()).await.unwrap();
}
