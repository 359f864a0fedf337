//! Peers and their addresses.

use std::{collections::BTreeSet, net::IpAddr};

use futures::future::join_all;
use k8s_openapi::{
    api::core::v1::Node,
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::{SignedDuration, Timestamp},
};
use keelway_api::worker::{AddressClaim, PEER_READY, Tombstone, TombstoneSpec, WireGuardPeer, WireGuardPeerSpec};
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ListParams, PostParams},
};
use serde_json::json;

use crate::{controller::Controller, plane::Plane, requests, wait};

const WORKERS: u8 = 20;

/// Returns a public key that no other peer has.
pub(crate) fn key(number: u8) -> String {
    use base64::{Engine, engine::general_purpose::STANDARD};
    STANDARD.encode([number; 32])
}

pub(crate) fn peer(name: &str, number: u8) -> WireGuardPeer {
    WireGuardPeer::new(name, WireGuardPeerSpec { public_key: key(number) })
}

/// Waits until a peer has addresses, and returns them.
pub(crate) async fn given(admin: &Client, name: &str) -> Vec<String> {
    let peers = Api::<WireGuardPeer>::all(admin.clone());
    let given = async || peers.get_opt(name).await.unwrap()?.status.map(|s| s.addresses).filter(|a| !a.is_empty());
    wait::some(&format!("{name} has its address"), given).await
}

/// Two controllers that do not know each other assign twenty addresses to twenty workers. The second one has a Lease of its own.
pub(crate) async fn twenty_at_once(plane: &Plane, admin: &Client) {
    let rival = Controller::start_as(&plane.kubeconfig("rival", &["system:masters"]), "rival", |configuration| {
        configuration["lease"] = json!({ "namespace": "kube-system", "name": "rival" });
    });
    wait::until("two controllers at once", async || rival.log().contains("holds the Lease")).await;

    let workers = join_all((1..=WORKERS).map(async |number| (number, plane.node(&format!("w{number}")).await))).await;
    let made = workers.iter().map(async |(number, client)| {
        let peers = Api::<WireGuardPeer>::all(client.clone());
        peers.create(&PostParams::default(), &peer(&format!("w{number}"), *number)).await.unwrap();
    });
    join_all(made).await;
    let mut addresses = BTreeSet::new();
    for number in 1..=WORKERS {
        addresses.extend(given(admin, &format!("w{number}")).await);
    }
    assert_eq!(addresses.len(), usize::from(WORKERS), "{addresses:?}");
    let range: ipnet::IpNet = "100.80.0.0/24".parse().unwrap();
    let first: IpAddr = "100.80.0.17".parse().unwrap();
    assert!(addresses.iter().all(|text| text.parse().is_ok_and(|ip: IpAddr| range.contains(&ip) && ip >= first)));

    let claims = Api::<AddressClaim>::all(admin.clone());
    wait::until("claims of nobody are gone", async || {
        claims.list(&ListParams::default()).await.unwrap().items.len() == usize::from(WORKERS)
    })
    .await;
    let peers = Api::<WireGuardPeer>::all(admin.clone()).list(&ListParams::default()).await.unwrap();
    for peer in peers {
        let generation = peer.metadata.generation;
        let status = peer.status.unwrap();
        let ready = status.conditions.iter().find(|condition| condition.type_ == PEER_READY).unwrap();
        assert_eq!((ready.status.as_str(), ready.observed_generation), ("True", generation));
    }
    rival.stop();
}

/// kube-controller-manager assigns a pod range to a Node, and the controller writes it into the peer.
pub(crate) async fn ranges_of_pods(plane: &Plane, admin: &Client) {
    let worker = plane.node("w1").await;
    let nodes = Api::<Node>::all(worker);
    let address = given(admin, "w1").await;
    let node = serde_json::from_value(json!({
        "metadata": { "name": "w1" },
        "status": { "addresses": [{ "type": "InternalIP", "address": address[0] }] },
    }));
    nodes.create(&PostParams::default(), &node.unwrap()).await.unwrap();
    let peers = Api::<WireGuardPeer>::all(admin.clone());
    let told = async || {
        let ranges = peers.get("w1").await.unwrap().status?.pod_cidrs;
        (!ranges.is_empty()).then_some(ranges)
    };
    let told = wait::some("the peer knows the range of its pods", told).await;
    let node = nodes.get("w1").await.unwrap();
    assert_eq!(Some(told), node.spec.unwrap().pod_cidrs);
}

/// The peer of an evicted worker is deleted, and its address is not assigned to others for some time.
pub(crate) async fn eviction(plane: &Plane, admin: &Client) {
    let address = given(admin, "w2").await;
    let until = Time(Timestamp::now() + SignedDuration::from_hours(1));
    let spec = TombstoneSpec { public_key: Some(key(2)), addresses: address.clone(), until };
    let tombstones = Api::<Tombstone>::all(admin.clone());
    tombstones.create(&PostParams::default(), &Tombstone::new("w2", spec)).await.unwrap();
    let peers = Api::<WireGuardPeer>::all(admin.clone());
    wait::until("the peer of an evicted worker is gone", async || peers.get_opt("w2").await.unwrap().is_none()).await;
    let claims = Api::<AddressClaim>::all(admin.clone());
    wait::until("its address rests", async || {
        let all = claims.list(&ListParams::default()).await.unwrap().items;
        all.iter().any(|claim| claim.spec.node == "w2" && claim.spec.rests_until.is_some())
    })
    .await;

    // It returns under its name with another key, and under another name with its old key.
    let worker = Api::<WireGuardPeer>::all(plane.node("w2").await);
    worker.create(&PostParams::default(), &peer("w2", 102)).await.unwrap();
    wait::until("it does not come back", async || peers.get_opt("w2").await.unwrap().is_none()).await;
    let another = Api::<WireGuardPeer>::all(plane.node("other").await);
    another.create(&PostParams::default(), &peer("other", 2)).await.unwrap();
    wait::until("nor does its key", async || peers.get_opt("other").await.unwrap().is_none()).await;

    requests::renewal_of_w2(plane, admin, "an evicted worker renews", ("Denied", "NameRests")).await;

    // Only the tombstone keeps the key out.
    tombstones.delete("w2", &DeleteParams::default()).await.unwrap();
    another.create(&PostParams::default(), &peer("other", 2)).await.unwrap();
    given(admin, "other").await;
    another.delete("other", &DeleteParams::default()).await.unwrap();

    // The next worker gets another address.
    let next = Api::<WireGuardPeer>::all(plane.node("next").await);
    next.create(&PostParams::default(), &peer("next", 103)).await.unwrap();
    assert_ne!(given(admin, "next").await, address);

    // The controller deletes a tombstone that has expired.
    let past = TombstoneSpec { public_key: None, addresses: vec![], until: Time(Timestamp::now()) };
    tombstones.create(&PostParams::default(), &Tombstone::new("past", past)).await.unwrap();
    wait::until("a tombstone goes", async || tombstones.get_opt("past").await.unwrap().is_none()).await;

    // A worker that leaves and returns with its key gets its address again.
    let worker = Api::<WireGuardPeer>::all(plane.node("w3").await);
    let before = given(admin, "w3").await;
    let uid = worker.get("w3").await.unwrap().uid();
    worker.delete("w3", &DeleteParams::default()).await.unwrap();
    worker.create(&PostParams::default(), &peer("w3", 3)).await.unwrap();
    assert_ne!(worker.get("w3").await.unwrap().uid(), uid);
    assert_eq!(given(admin, "w3").await, before);
}
