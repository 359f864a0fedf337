//! A gateway's listener and health, with a relay on loopback.

use std::collections::BTreeSet;
use std::fs;

use jiff::{SignedDuration, Timestamp};
use keelway_pki::{Authority, CertificateUsage, LeafRequest, Validity};
use keelway_tls::{TlsClient, TlsFiles};
use rand::SeedableRng as _;
use rand::rngs::ChaCha8Rng;
use rustls_pki_types::ServerName;
use tempfile::TempDir;
use tokio::io::AsyncReadExt as _;
use tokio::time::timeout;

use super::*;
use crate::connect::probe;

const GATEWAY_NAME: &str = "gateway.keelway";
const EGRESS: &str = "keelway:egress";
const DEADLINE: Duration = Duration::from_secs(30);

/// Writes a certificate for both sides, and returns its files.
fn identity(folder: &TempDir) -> TlsFiles {
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let validity = Validity::starting(Timestamp::now(), SignedDuration::from_hours(1)).unwrap();
    let authority = Authority::mint("infrastructure", validity, &mut random).unwrap();
    let request = LeafRequest {
        common_name: EGRESS.to_owned(),
        organizations: vec![],
        dns_names: vec![GATEWAY_NAME.to_owned()],
        ip_addresses: vec![],
        usages: vec![CertificateUsage::ServerAuth, CertificateUsage::ClientAuth],
        validity,
    };
    let issued = authority.issue(&request, &mut random).unwrap();
    let file = |name: &str, content: &str| {
        let path = folder.path().join(name);
        fs::write(&path, content).unwrap();
        path
    };
    TlsFiles {
        certificate_file: file("tls.crt", &issued.certificate_pem),
        key_file: file("tls.key", issued.key_pem.expose()),
        authority_file: file("ca.crt", authority.certificate().pem()),
        revocation_file: None,
    }
}

fn vpn() -> Arc<Vpn> {
    let config = RelayConfig {
        name: "test".to_owned(),
        private_key: None,
        listen_port: 0,
        addresses: vec!["100.80.255.1".parse().unwrap()],
        mtu: 1420,
        limits: CoreLimits::default(),
    };
    Arc::new(Vpn::new(Relay::start(config).unwrap(), 16))
}

#[tokio::test]
async fn an_authenticated_client_displaces_the_oldest_silent_one() {
    let folder = tempfile::tempdir().unwrap();
    let files = identity(&folder);
    let server = TlsServer::new(files.clone(), BTreeSet::from([EGRESS.to_owned()])).unwrap();
    let listener = listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let address = listener.local_addr().unwrap();
    let stop = CancellationToken::new();
    let accepting = tokio::spawn(accept(listener, ConnectListener::new(server, vpn()), stop));

    let mut silent = Vec::new();
    for _ in 0..MOST_CONVERSATIONS + 8 {
        silent.push(TcpStream::connect(address).await.unwrap());
    }
    for oldest in &mut silent[..8] {
        let read = timeout(DEADLINE, oldest.read(&mut [0])).await.expect("the oldest are closed");
        assert!(matches!(read, Ok(0) | Err(_)), "{read:?}");
    }
    let newest = timeout(Duration::from_millis(50), silent.last_mut().unwrap().read(&mut [0])).await;
    assert!(newest.is_err(), "the newest stay: {newest:?}");

    let client = TlsClient::new(files).unwrap();
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from(GATEWAY_NAME).unwrap();
    let stream = timeout(DEADLINE, client.connect(name, stream)).await.unwrap().unwrap();
    assert!(timeout(DEADLINE, probe(stream)).await.unwrap().is_ok());
    accepting.abort();
}

#[tokio::test]
async fn the_end_of_the_packet_thread_ends_readiness_and_liveness_and_the_gateway() {
    let vpn = vpn();
    let (_sender, candidates) = tokio::sync::watch::channel(Some(Vec::new()));
    let health = gateway_health(&vpn, true, candidates);
    assert_eq!(((health.liveness)(), (health.readiness)()), (Ok(()), Ok(())));
    let looks = tokio::spawn(reset_dead(Arc::clone(&vpn)));
    vpn.relay.stop();
    timeout(DEADLINE, looks).await.expect("the task ends, and the gateway with it").unwrap();
    assert!((health.liveness)().is_err());
}
