//! A gateway's relay behind its listener, with workers that reach it over TLS only.

use std::fs;
use std::path::Path;

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::{SignedDuration, Timestamp};
use keelway_api::worker::{RenewalRequest, RenewalResponse};
use keelway_pki::{
    Authority, CertificateUsage, LeafRequest, PrivateKeyPem, Validity, client_signing_request, sign_renewal,
};
use keelway_tls::component::client_from_pem;
use keelway_vpn::{CoreLimits, PeerConfig, PrivateKey, PublicKey, Relay, RelayConfig};
use rand::SeedableRng;
use rand::rngs::ChaCha8Rng;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::*;

const NAME: &str = "gateway.keelway";
const PATIENCE: Duration = Duration::from_secs(30);
const GATEWAY: u8 = 1;
const WORKER: u8 = 2;
const STRANGER: u8 = 3;

fn key(byte: u8) -> PrivateKey {
    PrivateKey::from_bytes([byte; 32])
}

/// A relay with one peer, to which it sends keepalives if it knows where.
fn relay(own: u8, peer: u8, endpoint: Option<SocketAddr>) -> Relay {
    let relay = Relay::start(RelayConfig {
        name: format!("relay-{own}"),
        private_key: Some(key(own)),
        listen_port: 0,
        addresses: vec![Ipv4Addr::new(100, 80, 0, own).into()],
        mtu: 1420,
        limits: CoreLimits::default(),
    });
    let relay = relay.unwrap();
    let peer = PeerConfig { endpoint, persistent_keepalive: 1, ..PeerConfig::new(key(peer).public()) };
    relay.set_peers(&[peer].into_iter().collect());
    relay
}

fn write_identity(folder: &Path, seed: u64) -> TlsFiles {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let valid = |hours| Validity::starting(Timestamp::now(), SignedDuration::from_hours(hours)).unwrap();
    // It issued certificates that have expired.
    let issuing = Validity::starting(Timestamp::now() - SignedDuration::from_hours(20), SignedDuration::from_hours(48));
    let authority = Authority::mint("kubernetes", issuing.unwrap(), &mut random).unwrap();
    let request = LeafRequest {
        common_name: "gateway".to_owned(),
        organizations: Vec::new(),
        dns_names: vec![NAME.to_owned()],
        ip_addresses: Vec::new(),
        usages: vec![CertificateUsage::ServerAuth],
        validity: valid(24),
    };
    let issued = authority.issue(&request, &mut random).unwrap();
    let file = |name: &str, content: &str| {
        let path = folder.join(name);
        fs::write(&path, content).unwrap();
        path
    };
    TlsFiles {
        certificate_file: file("tunnel.crt", &issued.certificate_pem),
        key_file: file("tunnel.key", issued.key_pem.expose()),
        authority_file: file("ca.crt", authority.certificate().pem()),
        revocation_file: None,
    }
}

/// A gateway with a listener. It knows one worker.
struct StreamGateway {
    relay: Relay,
    registry: Arc<StreamRegistry>,
    address: SocketAddr,
    folder: tempfile::TempDir,
}

impl StreamGateway {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let files = write_identity(folder.path(), 1);
        let relay = relay(GATEWAY, WORKER, None);
        let registry = Arc::<StreamRegistry>::default();
        let listener = StreamListener::new(files, relay.listen_port(), Arc::clone(&registry), None).unwrap();
        let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = socket.local_addr().unwrap();
        tokio::spawn(listener.serve(socket));
        Self { relay, registry, address, folder }
    }

    /// Connects as a worker does, with this protocol.
    async fn connect(&self, protocol: &str) -> io::Result<TlsStream<TcpStream>> {
        let authority = fs::read(self.folder.path().join("ca.crt")).unwrap();
        let mut config = client_from_pem(&authority, None).unwrap();
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        let stream = TcpStream::connect(self.address).await.unwrap();
        TlsConnector::from(Arc::new(config)).connect(ServerName::try_from(NAME).unwrap(), stream).await
    }

    /// Starts a worker with this key whose tunnel uses a stream.
    async fn worker(&self, own: u8) -> (Relay, tokio::task::JoinHandle<()>) {
        let stream = self.connect(PROTOCOL).await.unwrap();
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let worker = relay(own, GATEWAY, Some(socket.local_addr().unwrap()));
        socket.connect((Ipv4Addr::LOCALHOST, worker.listen_port())).await.unwrap();
        let carried = tokio::spawn(async move { drop(carry(stream, &socket, SILENCE, |_| true, |_| {}).await) });
        (worker, carried)
    }
}

fn has_met(relay: &Relay, peer: &PublicKey) -> bool {
    relay.stats().iter().any(|stats| stats.public_key == *peer && stats.last_handshake.is_some())
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    let reached = timeout(PATIENCE, async {
        while !holds() {
            sleep(Duration::from_millis(20)).await;
        }
    });
    assert!(reached.await.is_ok(), "{what}");
}

#[tokio::test]
async fn a_worker_is_a_peer_over_a_stream() {
    let gateway = StreamGateway::start().await;
    let (worker, carried) = gateway.worker(WORKER).await;
    until("both ends have met", || {
        has_met(&worker, &key(GATEWAY).public()) && has_met(&gateway.relay, &key(WORKER).public())
    })
    .await;
    assert_eq!(gateway.registry.met(), 1);
    let endpoint = gateway.relay.stats()[0].endpoint.unwrap();
    assert!(is_of_stream(&endpoint), "{endpoint}");
    carried.abort();
    until("the stream ends with the connection", || gateway.registry.met() == 0).await;
}

#[tokio::test]
async fn a_stranger_gets_no_response_on_a_stream() {
    let gateway = StreamGateway::start().await;
    let (stranger, _carried) = gateway.worker(STRANGER).await;
    let (worker, _also) = gateway.worker(WORKER).await;
    until("the worker has met the gateway", || has_met(&worker, &key(GATEWAY).public())).await;
    assert!(!has_met(&stranger, &key(GATEWAY).public()));
    assert_eq!(gateway.registry.met(), 1, "only the worker's stream does not give way");
}

#[tokio::test]
async fn another_authority_is_not_trusted() {
    let gateway = StreamGateway::start().await;
    let other = tempfile::tempdir().unwrap();
    let authority = write_identity(other.path(), 2).authority_file;
    fs::copy(authority, gateway.folder.path().join("ca.crt")).unwrap();
    let refused = gateway.connect(PROTOCOL).await.unwrap_err();
    assert!(refused.to_string().contains("certificate"), "{refused}");
}

#[tokio::test]
async fn other_protocols_are_refused() {
    let gateway = StreamGateway::start().await;
    assert!(gateway.connect("http/1.1").await.is_err());
    let mut stream = gateway.connect(PROTOCOL).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let ended = timeout(PATIENCE, stream.read(&mut [0; 16])).await.unwrap();
    assert!(matches!(ended, Ok(0) | Err(_)), "{ended:?}");
}

/// Sends a request for a certificate, which the key of an expired certificate of this authority signed, or another key.
async fn renew(gateway: &StreamGateway, authority: u64, is_own_key: bool) -> String {
    let mut random = ChaCha8Rng::seed_from_u64(authority);
    let from = Timestamp::now() - SignedDuration::from_hours(10);
    let valid = Validity::starting(from, SignedDuration::from_hours(48)).unwrap();
    let authority = Authority::mint("kubernetes", valid, &mut random).unwrap();
    let request = LeafRequest {
        common_name: "system:node:w1".to_owned(),
        organizations: vec!["system:nodes".to_owned()],
        dns_names: Vec::new(),
        ip_addresses: Vec::new(),
        usages: vec![CertificateUsage::ClientAuth],
        validity: Validity::starting(from, SignedDuration::from_hours(1)).unwrap(),
    };
    let expired = authority.issue(&request, &mut random).unwrap();
    let next = PrivateKeyPem::mint(&mut random).unwrap();
    let request = client_signing_request(&next, "system:node:w1", "system:nodes").unwrap();
    let key = if is_own_key { &expired.key_pem } else { &next };
    let signature = STANDARD.encode(sign_renewal(key, request.as_bytes()).unwrap());
    let asked = RenewalRequest { certificate: expired.certificate_pem.clone(), request, signature };
    let mut stream = gateway.connect(RENEWAL_PROTOCOL).await.unwrap();
    stream.write_all(format!("{}\n", serde_json::to_string(&asked).unwrap()).as_bytes()).await.unwrap();
    let mut response = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut response)).await.unwrap().unwrap();
    match serde_json::from_str(&response).unwrap() {
        RenewalResponse::Failed(why) => why,
        other @ (RenewalResponse::Signed(_) | RenewalResponse::Denied { .. }) => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_stranger_requests_no_certificate_of_the_cluster() {
    let gateway = StreamGateway::start().await;
    let another_key = renew(&gateway, 1, false).await;
    assert!(another_key.contains("the signature is not that of the expired certificate's key"), "{another_key}");
    let another_authority = renew(&gateway, 2, true).await;
    assert!(another_authority.contains("the cluster did not issue the expired certificate"), "{another_authority}");
    let worker = renew(&gateway, 1, true).await;
    assert!(worker.contains("this gateway has no kubeconfig"), "a worker's request goes on to the cluster: {worker}");
}
