//! A worker cannot read keys, nor what leads to one.

use std::fmt::Debug;

use k8s_openapi::api::{
    authentication::v1::TokenRequest,
    core::v1::{ConfigMap, Pod, Secret, ServiceAccount},
};
use keelway_api::worker::{AddressClaim, Tombstone, WorkerIdentity};
use kube::{
    Api, Client, Resource,
    api::{ListParams, PostParams},
};
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::{plane::Plane, roles::open_secrets, rules::refused, wait};

/// The name of a Secret and of a ServiceAccount that belong to no worker.
const KEPT: &str = "kept";
/// The name of a role, and its binding, that let nodes read Secrets.
const OPEN: &str = "test:nodes-read-secrets";

/// Neither a node nor the holder of a join token can read these objects.
pub(crate) async fn what_is_not_a_workers(plane: &Plane, admin: &Client) {
    let secret = serde_json::from_value(json!({ "metadata": { "name": KEPT }, "stringData": { "word": "kept" } }));
    let create = PostParams::default();
    Api::<Secret>::namespaced(admin.clone(), "default").create(&create, &secret.unwrap()).await.unwrap();
    let account: ServiceAccount = serde_json::from_value(json!({ "metadata": { "name": KEPT } })).unwrap();
    Api::namespaced(admin.clone(), "default").create(&create, &account).await.unwrap();
    let w4 = plane.node("w4").await;
    let token = plane.bearer("abcdef.0123456789abcdef").await;
    for who in [&w4, &token] {
        reads_none::<Secret>(&Api::namespaced(who.clone(), "default"), KEPT).await;
        reads_none::<Secret>(&Api::namespaced(who.clone(), "kube-system"), "bootstrap-token-abcdef").await;
        reads_none::<ConfigMap>(&Api::namespaced(who.clone(), "kube-system"), "coredns").await;
        reads_none::<WorkerIdentity>(&Api::all(who.clone()), "w5").await;
        reads_none::<AddressClaim>(&Api::all(who.clone()), "v4-64500011").await;
        reads_none::<Tombstone>(&Api::all(who.clone()), "w2").await;
        reads_none::<ConfigMap>(&Api::namespaced(who.clone(), "kube-system"), "keelway-node-allocation").await;
        let accounts = Api::<ServiceAccount>::namespaced(who.clone(), "default");
        let asked = accounts.create_token_request(KEPT, &create, &TokenRequest::default()).await;
        refused("a token of a ServiceAccount that no pod here has", asked);
    }

    // Kubernetes lets a node read what its pods refer to. A node cannot create such a pod itself.
    let message = refused("a pod of its own with a Secret", pods(&w4).create(&create, &mirror()).await);
    assert!(message.contains("secret"), "{message}");
}

async fn reads_none<K>(objects: &Api<K>, name: &str)
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let kind = K::kind(&());
    refused(&format!("{kind} {name}"), objects.get(name).await);
    refused(&format!("all of kind {kind}"), objects.list(&ListParams::default()).await.map(|list| list.items));
}

fn pods(client: &Client) -> Api<Pod> {
    Api::namespaced(client.clone(), "default")
}

/// Returns a mirror pod, as a kubelet creates it for a pod from a file.
fn mirror() -> Pod {
    serde_json::from_value(json!({
        "metadata": { "name": "mirror", "annotations": { "kubernetes.io/config.mirror": "1" } },
        "spec": {
            "nodeName": "w4",
            "containers": [{ "name": "mirror", "image": "registry.k8s.io/pause:3.10.2" }],
            "volumes": [{ "name": "kept", "secret": { "secretName": KEPT } }],
        },
    }))
    .unwrap()
}

/// Only the absence of a role keeps nodes from Secrets.
pub(crate) async fn without_guards(plane: &Plane, admin: &Client) {
    let w4 = plane.node("w4").await;
    let secrets = Api::<Secret>::namespaced(w4, "default");
    refused("a Secret", secrets.get(KEPT).await);
    open_secrets(admin, OPEN, "get", "system:nodes").await;
    wait::until("with a role for nodes: a Secret of somebody", async || secrets.get(KEPT).await.is_ok()).await;
}
