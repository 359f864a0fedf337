//! The kubelet is replaced with that of another image, which has the same version.

use k8s_openapi::api::core::v1::{Event, Node};
use keelway_api::worker::{DRAIN_TIMEOUT, KUBELET_RELEASE};
use keelway_cri::testing::cache;
use kube::{
    Api,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use crate::{life::status, wait, world::World};

const IMAGE: &str = "registry.keelway.dev/node:v1.37.0";
const NEXT: &str = "registry.keelway.dev/node:next";

pub(crate) async fn kubelet(world: &World) {
    let ctr = cache().unwrap().join("bin/ctr").display().to_string();
    world.machine.output_of(&ctr, &["-n", "k8s.io", "images", "tag", IMAGE, NEXT]);
    let before = status(world).await;
    assert_eq!(before["kubelet"]["version"], "v1.37.0");
    world.machine.node_well(&["upgrade", "--image", NEXT], "").await;
    let next = status(world).await;
    assert_ne!(before["kubelet"]["pid"], next["kubelet"]["pid"], "the kubelet was not restarted");
    assert_eq!((&next["kubelet"]["image"], &next["pid"]), (&NEXT.into(), &before["pid"]));

    // The second time there is nothing to do.
    world.machine.node_well(&["upgrade", "--image", NEXT], "").await;
    assert_eq!(status(world).await["kubelet"]["pid"], next["kubelet"]["pid"]);
    let unknown = world.machine.node(&["upgrade", "--to", "1.2.3"], "").await;
    assert_eq!(unknown.status.code(), Some(2), "{unknown:?}");
    world.machine.output_of(&ctr, &["-n", "k8s.io", "images", "remove", "--sync", NEXT]);
}

/// Drains the worker, and returns to the image of the cluster's release.
pub(crate) async fn back(world: &World) {
    world.machine.node_well(&["upgrade", "--drain", "--drain-timeout", "60s"], "").await;
    assert_eq!(status(world).await["kubelet"]["image"], IMAGE);
    let nodes: Api<Node> = Api::all(world.admin.clone());
    let spec = nodes.get("w1").await.unwrap().spec.unwrap();
    assert_eq!(spec.unschedulable, None, "the Node is uncordoned");
}

/// A release without an image: the kubelet continues, and the Node has an Event.
pub(crate) async fn as_ordered(world: &World) {
    let before = status(world).await;
    let nodes: Api<Node> = Api::all(world.admin.clone());
    let annotate = async |release: Value, timeout: Value| {
        let patch = json!({ "metadata": { "annotations": { KUBELET_RELEASE: release, DRAIN_TIMEOUT: timeout } } });
        nodes.patch("w1", &PatchParams::default(), &Patch::Merge(&patch)).await.unwrap();
    };
    annotate(json!("1.36.9"), json!("1m")).await;
    let events: Api<Event> = Api::namespaced(world.admin.clone(), "default");
    wait::until("the Node has an Event about the order", async || {
        let failed = ListParams::default().fields("reason=KubeletUpgradeFailed");
        let failed = events.list(&failed).await.unwrap().items;
        failed.iter().any(|event| event.message.as_deref().is_some_and(|text| text.contains("node:v1.36.9")))
    })
    .await;
    annotate(Value::Null, Value::Null).await;
    assert_eq!(status(world).await["kubelet"], before["kubelet"], "the kubelet continues");
    let node = nodes.get("w1").await.unwrap();
    assert_eq!(node.spec.unwrap().unschedulable, None, "what cannot be pulled drains nothing");
}
