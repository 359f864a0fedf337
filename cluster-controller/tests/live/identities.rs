//! A name belongs to its current worker. A worker that left is no worker any more, whatever it kept.

use base64::{Engine, engine::general_purpose::STANDARD};
use k8s_openapi::{
    ByteString,
    api::{
        certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec},
        core::v1::Node,
    },
};
use keelway_api::worker::{WireGuardPeer, WorkerIdentity};
use keelway_pki::client_signing_request;
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, ObjectMeta, PostParams},
};
use rand::{SeedableRng, rngs::ChaCha8Rng};
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};
use serde_json::json;

use crate::{
    peers::{given, peer},
    plane::Plane,
    requests::decided,
    rules::{refused, remove},
    wait,
};

const NAME: &str = "leaver";

/// Requests a kubelet's client certificate. Returns the name of the request, and the key.
async fn ask(
    client: &Client,
    node: &str,
    content: Option<Vec<u8>>,
) -> (kube::Result<String>, keelway_pki::PrivateKeyPem) {
    let key = keelway_pki::PrivateKeyPem::mint(&mut ChaCha8Rng::from_rng(&mut rand::rng())).unwrap();
    let request = client_signing_request(&key, &format!("system:node:{node}"), "system:nodes").unwrap();
    let csr = CertificateSigningRequest {
        metadata: ObjectMeta { generate_name: Some(format!("{node}-")), ..ObjectMeta::default() },
        spec: CertificateSigningRequestSpec {
            request: ByteString(content.unwrap_or_else(|| request.into_bytes())),
            signer_name: "kubernetes.io/kube-apiserver-client-kubelet".to_owned(),
            usages: Some(["digital signature", "client auth"].map(str::to_owned).to_vec()),
            ..CertificateSigningRequestSpec::default()
        },
        status: None,
    };
    (Api::all(client.clone()).create(&PostParams::default(), &csr).await.map(|made| made.name_any()), key)
}

/// Gets a certificate with a token, as `keelway node join` does.
pub(crate) async fn join(plane: &Plane, admin: &Client, token: &Client, node: &str) -> Client {
    let (name, key) = ask(token, node, None).await;
    let name = name.unwrap();
    let requests = Api::<CertificateSigningRequest>::all(admin.clone());
    let signed = async || {
        let status = requests.get(&name).await.unwrap().status.unwrap_or_default();
        let denied = status.conditions.iter().flatten().find(|condition| condition.type_ == "Denied");
        assert!(denied.is_none(), "{denied:?}");
        status.certificate
    };
    let certificate = wait::some("a certificate by token", signed).await;
    plane.identified(&STANDARD.encode(certificate.0), &STANDARD.encode(key.expose())).await
}

/// Requests the next certificate with the current one, and expects this outcome.
pub(crate) async fn renewal(admin: &Client, worker: &Client, (node, what): (&str, &str), outcome: (&str, &str)) {
    let (name, _) = ask(worker, node, None).await;
    decided(&Api::all(admin.clone()), &name.unwrap(), what, outcome).await;
}

/// Waits until the worker's identity has its peer and the ids of its certificates.
pub(crate) async fn known(admin: &Client, node: &str) {
    let identities = Api::<WorkerIdentity>::all(admin.clone());
    let is_known = async || {
        let identity = identities.get(node).await.unwrap().spec;
        identity.peer.is_some() && identity.certificates.iter().all(|one| one.id.is_some())
    };
    wait::until("the worker's peer and certificate are known", is_known).await;
}

/// Returns the Node that a worker creates of itself.
pub(crate) fn node(name: &str, addresses: &[String]) -> Node {
    let node = json!({
        "metadata": { "name": name },
        "status": { "addresses": [{ "type": "InternalIP", "address": addresses[0] }] },
    });
    serde_json::from_value(node).unwrap()
}

/// Waits until the API server refuses a peer from a worker that left.
pub(crate) async fn left(peers: &Api<WireGuardPeer>, own: &WireGuardPeer) {
    let trial = PostParams { dry_run: true, ..PostParams::default() };
    let is_refused = async || match peers.create(&trial, own).await {
        Err(kube::Error::Api(status)) => status.message.contains("left the cluster"),
        _ => false,
    };
    wait::until("its certificate writes nothing more", is_refused).await;
}

/// Returns a well-formed signing request of more than 8 KiB.
fn large() -> Vec<u8> {
    let mut parameters = CertificateParams::default();
    let mut subject = DistinguishedName::new();
    subject.push(DnType::OrganizationName, "system:nodes");
    subject.push(DnType::CommonName, format!("system:node:{NAME}"));
    parameters.distinguished_name = subject;
    parameters.subject_alt_names =
        (0..500).map(|number| SanType::DnsName(format!("{number}.example.com").try_into().unwrap())).collect();
    parameters.serialize_request(&KeyPair::generate().unwrap()).unwrap().pem().unwrap().into_bytes()
}

/// The worker that left a cluster, and the one that has its name now.
pub(crate) struct Holders {
    former: Client,
    current: Client,
}

/// A machine leaves, and another one joins with its name. Then the first one returns with its old certificate.
pub(crate) async fn a_name_is_its_holders(plane: &Plane, admin: &Client) -> Holders {
    let token = plane.bearer("abcdef.0123456789abcdef").await;
    let identities = Api::<WorkerIdentity>::all(admin.clone());
    let first = join(plane, admin, &token, NAME).await;
    let (peers, nodes) = (Api::<WireGuardPeer>::all(first.clone()), Api::<Node>::all(first.clone()));
    peers.create(&PostParams::default(), &peer(NAME, 121)).await.unwrap();
    let address = given(admin, NAME).await;
    known(admin, NAME).await;
    assert_eq!(identities.get(NAME).await.unwrap().spec.join_token.as_deref(), Some("abcdef"));
    renewal(admin, &first, (NAME, "it renews with its certificate"), ("Approved", "KeelwayApproved")).await;
    let node = node(NAME, &address);
    wait::until("it has a Node", async || nodes.create(&PostParams::default(), &node).await.is_ok()).await;
    refused("to delete its own Node", nodes.delete(NAME, &DeleteParams::default()).await);

    peers.delete(NAME, &DeleteParams::default()).await.unwrap();
    let all = Api::<Node>::all(admin.clone());
    wait::until("the Node of who left is gone", async || all.get_opt(NAME).await.unwrap().is_none()).await;
    left(&peers, &peer(NAME, 122)).await;

    let second = join(plane, admin, &token, NAME).await;
    Api::<WireGuardPeer>::all(second.clone()).create(&PostParams::default(), &peer(NAME, 123)).await.unwrap();
    given(admin, NAME).await;
    known(admin, NAME).await;
    renewal(admin, &first, (NAME, "who left renews"), ("Denied", "FormerWorker")).await;
    renewal(admin, &second, (NAME, "who has the name now renews"), ("Approved", "KeelwayApproved")).await;
    let message = refused("to delete the peer of the next one", peers.delete(NAME, &DeleteParams::default()).await);
    assert!(message.contains("left the cluster"), "{message}");
    let message = refused("a large request", ask(&second, NAME, Some(large())).await.0);
    assert!(message.contains("at most 8192 bytes"), "{message}");
    Holders { former: first, current: second }
}

/// Only the policy named in each step keeps it out.
pub(crate) async fn without_guards(holders: &Holders, admin: &Client) {
    let peers = Api::<WireGuardPeer>::all(holders.former.clone());
    let trial = DeleteParams { dry_run: true, ..DeleteParams::default() };
    remove(admin, "keelway-current").await;
    wait::until("without keelway-current: the peer of the next one", async || peers.delete(NAME, &trial).await.is_ok())
        .await;
    remove(admin, "keelway-requests").await;
    wait::until("without keelway-requests: a large request", async || {
        ask(&holders.current, NAME, Some(large())).await.0.is_ok()
    })
    .await;
}
