//! Many workers join at the same time, up to their Nodes. The test sends all requests of a join, without kubelets.

use std::{collections::BTreeSet, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use futures::future::join_all;
use k8s_openapi::{
    ByteString,
    api::{
        certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec},
        core::v1::Node,
    },
};
use keelway_api::{
    ObjectMeta,
    worker::{WireGuardPeer, WireGuardPeerSpec},
};
use keelway_e2e::{
    deadline,
    worker_fleet::{TestCluster, WorkerFleet},
};
use keelway_pki::{JoinToken, PrivateKeyPem, WireGuardKey, client_signing_request};
use kube::{Api, Client, Config, ResourceExt, api::PostParams, config::AuthInfo};
use rand::{SeedableRng, rngs::ChaCha8Rng};
use rustls_pki_types::{CertificateDer, pem::PemObject};
use tokio::{sync::Barrier, time};

/// The interval between polls.
const LOOK: Duration = Duration::from_millis(50);

/// A worker that was evicted, and its former addresses.
pub(crate) struct Evicted<'a> {
    pub(crate) name: &'a str,
    pub(crate) addresses: &'a BTreeSet<String>,
}

/// The endpoint of the API, its authorities, and a bootstrap token.
#[derive(Clone)]
struct Way {
    url: http::Uri,
    authorities: Vec<Vec<u8>>,
    token: String,
}

/// The result of a request for a certificate.
enum Answer {
    Signed { name: String, certificate: String, key: String },
    Denied { reason: String },
}

/// Joins ten workers with different names, two with the same name, and two with the same key. Each gets addresses of its own, or is denied.
pub(crate) fn each_has_its_own(worker_fleet: &WorkerFleet, cluster: &TestCluster, evicted: &Evicted<'_>) {
    let way = Way::to(worker_fleet, cluster);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let ten: Vec<String> = (0..10).map(|number| format!("ten-{number}")).collect();
        let joined = signed(ask(&way, &ten).await, &way);
        make_peers(&joined, || WireGuardKey::mint(&mut random())).await;
        make_nodes(&joined).await;

        let twice = ask(&way, &["twice", "twice"].map(str::to_owned)).await;
        let denied: Vec<_> = twice.iter().filter_map(Answer::denied).collect();
        assert_eq!((twice.len(), &denied[..]), (2, &["NameAsked"][..]), "one of two has a name");

        let of_one_key = signed(ask(&way, &["key-0", "key-1"].map(str::to_owned)).await, &way);
        let key = WireGuardKey::mint(&mut random());
        make_peers(&of_one_key, || key.clone()).await;

        let again = ask(&way, &[evicted.name.to_owned()]).await;
        assert_eq!(again[0].denied(), Some("NameRests"), "the name of an evicted worker");
    });
    all_differ(cluster, evicted);
}

fn signed(answers: Vec<Answer>, way: &Way) -> Vec<(String, Client)> {
    answers.into_iter().map(|answer| answer.signed(way)).collect()
}

/// Creates Nodes as kubelets do, all at once.
async fn make_nodes(workers: &[(String, Client)]) {
    join_all(workers.iter().map(async |(name, client)| {
        let metadata = ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() };
        let node = Node { metadata, ..Node::default() };
        // The admission policy for Nodes observes a new address with a short delay.
        until(&format!("{name} has a Node"), async || {
            Api::all(client.clone()).create(&PostParams::default(), &node).await.is_ok()
        })
        .await;
    }))
    .await;
}

/// Asserts that no two workers in the cluster share a range or an address.
fn all_differ(cluster: &TestCluster, evicted: &Evicted<'_>) {
    // One line for each object that has a value.
    let all = |kind: &str, path: &str| {
        let lines = cluster.value(kind, &format!("{{range .items[*]}}{path}{{\"\\n\"}}{{end}}"));
        lines.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect::<Vec<_>>()
    };
    // Two workers from before, ten new ones, and for peers also one of the two with the same key.
    for (kind, path, count) in [("nodes", "{.spec.podCIDR}", 12), ("wireguardpeers", "{.status.addresses[*]}", 13)] {
        deadline::until(&format!("{count} {kind} have {path}"), deadline::KUBERNETES, || {
            all(kind, path).len() >= count
        });
        let found = all(kind, path);
        let different: BTreeSet<&String> = found.iter().collect();
        assert_eq!((found.len(), different.len()), (count, count), "{path} of {kind}: {found:?}");
        assert!(found.iter().all(|text| !evicted.addresses.contains(text)), "{found:?} of {:?}", evicted.addresses);
    }
}

/// Requests a certificate for each name, all at the same time.
async fn ask(way: &Way, names: &[String]) -> Vec<Answer> {
    let start = Barrier::new(names.len());
    join_all(names.iter().enumerate().map(async |(at, name)| {
        let key = PrivateKeyPem::mint(&mut random()).unwrap();
        let request = client_signing_request(&key, &format!("system:node:{name}"), "system:nodes").unwrap();
        let requests = Api::all(way.client(|auth| auth.token = Some(way.token.clone().into())));
        let object = request_for(&format!("{name}-{at}"), request);
        // This request opens the connection before all start.
        let _ = requests.get_opt("none").await;
        start.wait().await;
        let made = requests.create(&PostParams::default(), &object).await.unwrap().name_any();
        some(&format!("an answer for {name}"), async || decision(&requests.get(&made).await.ok()?, name, &key)).await
    }))
    .await
}

/// Returns a request like that of `keelway node join`.
fn request_for(name: &str, request: String) -> CertificateSigningRequest {
    CertificateSigningRequest {
        metadata: ObjectMeta { name: Some(name.to_owned()), ..ObjectMeta::default() },
        spec: CertificateSigningRequestSpec {
            request: ByteString(request.into_bytes()),
            signer_name: "kubernetes.io/kube-apiserver-client-kubelet".to_owned(),
            usages: Some(["digital signature", "client auth"].map(str::to_owned).to_vec()),
            ..CertificateSigningRequestSpec::default()
        },
        status: None,
    }
}

fn decision(request: &CertificateSigningRequest, name: &str, key: &PrivateKeyPem) -> Option<Answer> {
    let status = request.status.as_ref()?;
    if let Some(no) = status.conditions.iter().flatten().find(|condition| condition.type_ == "Denied") {
        return Some(Answer::Denied { reason: no.reason.clone().unwrap_or_default() });
    }
    let certificate = String::from_utf8(status.certificate.clone()?.0).unwrap();
    Some(Answer::Signed { name: name.to_owned(), certificate, key: key.expose().to_owned() })
}

/// Creates all peers at the same time, and waits until each has a condition.
async fn make_peers(workers: &[(String, Client)], key: impl Fn() -> WireGuardKey) {
    let start = Barrier::new(workers.len());
    join_all(workers.iter().map(async |(name, client)| {
        let peers = Api::<WireGuardPeer>::all(client.clone());
        let peer = WireGuardPeer::new(name, WireGuardPeerSpec { public_key: key().public_base64() });
        let _ = peers.get_opt(name).await;
        start.wait().await;
        peers.create(&PostParams::default(), &peer).await.unwrap();
        until(&format!("the peer {name} is decided about"), async || {
            peers.get(name).await.is_ok_and(|peer| peer.status.is_some_and(|status| !status.conditions.is_empty()))
        })
        .await;
    }))
    .await;
}

impl Way {
    fn to(worker_fleet: &WorkerFleet, cluster: &TestCluster) -> Self {
        let token: JoinToken = String::from_utf8(worker_fleet.token(cluster)).unwrap().trim().parse().unwrap();
        let kubeconfig = cluster.kubectl.kubeconfig();
        let authority = kubeconfig["clusters"][0]["cluster"]["certificate-authority-data"].as_str().unwrap();
        let authorities = CertificateDer::pem_slice_iter(&STANDARD.decode(authority).unwrap())
            .map(|certificate| certificate.unwrap().to_vec())
            .collect();
        let url = format!("https://{}", token.endpoints[0]).parse().unwrap();
        Self { url, authorities, token: token.bootstrap.expose().to_string() }
    }

    fn client(&self, who: impl FnOnce(&mut AuthInfo)) -> Client {
        let mut config = Config::new(self.url.clone());
        config.root_cert = Some(self.authorities.clone());
        config.tls_server_name = Some("kubernetes".to_owned());
        config.proxy_url = None;
        who(&mut config.auth_info);
        Client::try_from(config).unwrap()
    }
}

impl Answer {
    /// Returns the reason if the request was denied.
    fn denied(&self) -> Option<&str> {
        if let Self::Denied { reason } = self { Some(reason) } else { None }
    }

    /// Returns a client with the worker's own certificate.
    fn signed(self, way: &Way) -> (String, Client) {
        let Self::Signed { name, certificate, key } = self else { panic!("refused: {:?}", self.denied()) };
        let client = way.client(|auth| {
            auth.client_certificate_data = Some(STANDARD.encode(certificate));
            auth.client_key_data = Some(STANDARD.encode(key).into());
        });
        (name, client)
    }
}

fn random() -> ChaCha8Rng {
    ChaCha8Rng::from_rng(&mut rand::rng())
}

async fn until(what: &str, holds: impl AsyncFn() -> bool) {
    some(what, async || holds().await.then_some(())).await;
}

async fn some<T>(what: &str, look: impl AsyncFn() -> Option<T>) -> T {
    let looks = async {
        loop {
            if let Some(found) = look().await {
                return found;
            }
            time::sleep(LOOK).await;
        }
    };
    time::timeout(deadline::KUBERNETES, looks)
        .await
        .unwrap_or_else(|_| panic!("{what}: not within {:?}", deadline::KUBERNETES))
}
