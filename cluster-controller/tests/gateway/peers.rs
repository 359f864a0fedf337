//! The peers of a gateway follow the objects of the cluster.

use std::time::Instant;

use keelway_api::crd::worker_crds;
use keelway_api::worker::WireGuardPeer;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::api_server::ApiServer;
use crate::client::{connect, connect_soon, cut_off, ping};
use crate::daemon::{Egress, Gateway, Keys, replace};
use crate::lan::Lan;
use crate::support::{public_key, wait_until};
use crate::worker::Worker;
use crate::{PATIENCE, on_host};

const GATEWAY: u8 = 1;
const API_SERVER: u8 = 10;
const USER: &str = "keelway:gateway";
const W7: &str = "100.80.0.7:10250";

#[test]
fn peers_follow_the_cluster_and_stay_while_its_api_is_away() {
    on_host("peers::peers_follow_the_cluster_and_stay_while_its_api_is_away", || {
        let (lan, keys) = (Lan::new(), Keys::new());
        let authority = keys.authority();
        let mut cluster = ApiServer::start(&lan, 30);
        cluster.ask(|client| async move { prepare(client).await });
        let mut gateway = Gateway::new(&lan, GATEWAY, &keys, &authority);
        let kubeconfig = gateway.daemon.file("kubeconfig");
        gateway.config["peers"]["kubeconfig"] = json!(kubeconfig);
        // At first, the user has no rights. Later the credentials are replaced in place.
        replace(&kubeconfig, &cluster.kubeconfig("somebody", &[]).to_string());
        let worker = Worker::new(&lan, 7, &[(GATEWAY, gateway.key())], 1);
        worker.echo(10250);
        gateway.start();
        let mut egress = Egress::new(&lan, API_SERVER, &keys, &authority, &[GATEWAY]);
        egress.start();
        let socket = egress.cluster();
        wait_until("the egress is ready", PATIENCE, || egress.daemon.health("/readyz").0 == 200);
        assert_eq!(gateway.daemon.health("/readyz").0, 503, "peers are not known");
        replace(&kubeconfig, &cluster.kubeconfig(USER, &[]).to_string());
        wait_until("the gateway knows its peers", PATIENCE, || gateway.daemon.health("/readyz").0 == 200);

        cluster.ask(|client| async move { create(client, 7).await });
        assert_eq!(connect(&socket, W7).status, 403, "it has no address yet");
        cluster.ask(|client| async move { give(client, 7, "100.80.0.7").await });
        let given = Instant::now();
        let mut tunnel = connect_soon(&socket, W7);
        ping(&mut tunnel);
        println!("a peer that got its address was reached after {:?}", given.elapsed());

        // A younger peer with the same address does not receive its packets.
        cluster.ask(|client| async move {
            create(client.clone(), 8).await;
            give(client, 8, "100.80.0.7").await;
        });
        let log = |gateway: &mut Gateway| gateway.daemon.process().log();
        wait_until("the younger one is ignored", PATIENCE, || {
            log(&mut gateway).contains("belongs to w7, which is older")
        });
        ping(&mut tunnel);

        // While the API server is down, the gateway uses the peers of its file.
        gateway.keeps_places(&[7]);
        cluster.stop();
        gateway.daemon.process().kill();
        cut_off(&mut tunnel, PATIENCE);
        gateway.daemon.start();
        let mut tunnel = connect_soon(&socket, W7);
        ping(&mut tunnel);
        cluster.resume();
        ping(&mut tunnel);

        cluster.ask(|client| async move { delete(client, 7).await });
        let took = cut_off(&mut tunnel, PATIENCE);
        println!("a peer was deleted: its tunnel was reset after {took:?}");
        assert_eq!(connect(&socket, W7).status, 502, "the address is w8's by now, which was never seen");
        cluster.ask(|client| async move { delete(client, 8).await });
        wait_until("nobody has the address", PATIENCE, || connect(&socket, W7).status == 403);
        let file = gateway.daemon.file("peers.json");
        wait_until("nobody is kept", PATIENCE, || {
            let kept: Value = serde_json::from_slice(&std::fs::read(&file).unwrap()).unwrap();
            kept == json!({"peers": []})
        });
    });
}

/// Creates the definition of peers, and the gateway's right to read them.
async fn prepare(client: Client) {
    let definition = worker_crds().into_iter().find(|crd| crd.spec.names.plural == "wireguardpeers").unwrap();
    Api::all(client.clone()).create(&PostParams::default(), &definition).await.unwrap();
    let role = json!({
        "metadata": {"name": USER},
        "rules": [{"apiGroups": ["keelway.dev"], "resources": ["wireguardpeers"], "verbs": ["get", "list", "watch"]}],
    });
    let binding = json!({
        "metadata": {"name": USER},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": USER},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USER}],
    });
    let roles: Api<k8s_openapi::api::rbac::v1::ClusterRole> = Api::all(client.clone());
    roles.create(&PostParams::default(), &serde_json::from_value(role).unwrap()).await.unwrap();
    let bindings: Api<k8s_openapi::api::rbac::v1::ClusterRoleBinding> = Api::all(client.clone());
    bindings.create(&PostParams::default(), &serde_json::from_value(binding).unwrap()).await.unwrap();
    let peers: Api<WireGuardPeer> = Api::all(client);
    tokio::time::timeout(PATIENCE, async {
        while peers.list(&kube::api::ListParams::default()).await.is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    })
    .await
    .unwrap();
}

async fn create(client: Client, number: u8) {
    let peer = json!({
        "metadata": {"name": format!("w{number}")},
        "spec": {"publicKey": public_key(number).to_string()},
    });
    let mut peer = peer;
    peer["apiVersion"] = json!("keelway.dev/v1alpha1");
    peer["kind"] = json!("WireGuardPeer");
    let peer: WireGuardPeer = serde_json::from_value(peer).unwrap();
    Api::all(client).create(&PostParams::default(), &peer).await.unwrap();
}

async fn give(client: Client, number: u8, address: &str) {
    let peers: Api<WireGuardPeer> = Api::all(client);
    let status = json!({"status": {"addresses": [address], "podCIDRs": [format!("10.244.{number}.0/24")]}});
    let patch = Patch::Merge(&status);
    peers.patch_status(&format!("w{number}"), &PatchParams::default(), &patch).await.unwrap();
}

async fn delete(client: Client, number: u8) {
    let peers: Api<WireGuardPeer> = Api::all(client);
    peers.delete(&format!("w{number}"), &DeleteParams::default()).await.unwrap();
}
