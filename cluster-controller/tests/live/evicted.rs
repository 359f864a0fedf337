//! An evicted worker that still has its certificate.

use k8s_openapi::{
    api::core::v1::Node,
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::{SignedDuration, Timestamp},
};
use keelway_api::worker::{Tombstone, TombstoneSpec, WireGuardPeer, WorkerIdentity};
use kube::{
    Api, Client,
    api::{DeleteParams, PostParams},
};

use crate::{
    identities::{join, known, left, node, renewal},
    peers::{given, key, peer},
    plane::Plane,
    rules::refused,
    wait,
};

const NAME: &str = "outcast";
const KEY: u8 = 124;

/// The tombstone reserves the name against all workers. The stored ids of its certificates keep the evicted worker out. Without both, it is a
/// worker again.
pub(crate) async fn comes_back_with_nothing(plane: &Plane, admin: &Client) {
    let token = plane.bearer("abcdef.0123456789abcdef").await;
    let worker = join(plane, admin, &token, NAME).await;
    let (peers, nodes) = (Api::<WireGuardPeer>::all(worker.clone()), Api::<Node>::all(worker.clone()));
    let (create, delete) = (PostParams::default(), DeleteParams::default());
    let own = peer(NAME, KEY);
    peers.create(&create, &own).await.unwrap();
    let addresses = given(admin, NAME).await;
    known(admin, NAME).await;
    let its_node = node(NAME, &addresses);
    wait::until("it has a Node", async || nodes.create(&create, &its_node).await.is_ok()).await;

    let until = Time(Timestamp::now() + SignedDuration::from_hours(1));
    let spec = TombstoneSpec { public_key: Some(key(KEY)), addresses, until };
    let tombstones = Api::<Tombstone>::all(admin.clone());
    tombstones.create(&create, &Tombstone::new(NAME, spec)).await.unwrap();
    let all = Api::<Node>::all(admin.clone());
    wait::until("the Node of an evicted worker is gone", async || all.get_opt(NAME).await.unwrap().is_none()).await;
    left(&peers, &own).await;
    refused("its Node", nodes.create(&create, &its_node).await);
    renewal(admin, &worker, (NAME, "an evicted worker renews"), ("Denied", "NameRests")).await;

    tombstones.delete(NAME, &delete).await.unwrap();
    let message = refused("its peer, without the tombstone", peers.create(&create, &own).await);
    assert!(message.contains("left the cluster"), "{message}");
    Api::<WorkerIdentity>::all(admin.clone()).delete(NAME, &delete).await.unwrap();
    wait::until("without what is kept of it: its peer", async || peers.create(&create, &own).await.is_ok()).await;
    let its_node = node(NAME, &given(admin, NAME).await);
    wait::until("and its Node", async || nodes.create(&create, &its_node).await.is_ok()).await;
    renewal(admin, &worker, (NAME, "it renews"), ("Approved", "KeelwayApproved")).await;
    peers.delete(NAME, &delete).await.unwrap();
    all.delete(NAME, &delete).await.unwrap();
}
