//! The kubelet is replaced with that of another image, which has the same version.

use k8s_openapi::api::core::v1::Node;
use keelway_cri::testing::cache;
use kube::Api;

use crate::{life::status, world::World};

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
