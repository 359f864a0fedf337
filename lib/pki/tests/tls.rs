//! TLS between two certificates. Both sides are rustls in memory, and the test chooses the time.

#![expect(clippy::unwrap_used, reason = "a test that cannot set itself up fails")]

mod support;

use std::{
    io::{Read, Write},
    sync::Arc,
};

use jiff::{Timestamp, ToSpan};
use keelway_pki::{Authority, AuthorityKeyring, CertificateUsage, IssuedCertificate, LeafRequest, RetiredAuthority};
use rustls::{
    CertificateError, ClientConfig, ClientConnection, ConnectionCommon, Error, RootCertStore, ServerConfig,
    ServerConnection, SideData, SupportedProtocolVersion,
    crypto::{CryptoProvider, ring},
    server::WebPkiClientVerifier,
    time_provider::TimeProvider,
    version::{TLS12, TLS13},
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, UnixTime, pem::PemObject};
use support::{authority, client, hours, issue, now, server};

const SERVER_NAME: &str = "kubernetes.default.svc";

#[derive(Debug)]
struct FixedTime(Timestamp);

impl TimeProvider for FixedTime {
    fn current_time(&self) -> Option<UnixTime> {
        let seconds = u64::try_from(self.0.as_second()).ok()?;
        Some(UnixTime::since_unix_epoch(core::time::Duration::from_secs(seconds)))
    }
}

/// One side: its own certificate, and the bundle with which it verifies the other side.
struct Side {
    leaf: IssuedCertificate,
    trusts: String,
}

impl Side {
    fn new(leaf: IssuedCertificate, trusts: &Authority) -> Self {
        Self { leaf, trusts: trusts.certificate().pem().to_owned() }
    }

    fn chain(&self) -> Vec<CertificateDer<'static>> {
        vec![CertificateDer::from_pem_slice(self.leaf.certificate_pem.as_bytes()).unwrap()]
    }

    fn key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::from_pem_slice(self.leaf.key_pem.expose().as_bytes()).unwrap()
    }

    fn roots(&self) -> Arc<RootCertStore> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(self.trusts.as_bytes()) {
            roots.add(certificate.unwrap()).unwrap();
        }
        Arc::new(roots)
    }
}

fn connections(
    client: &Side,
    server: &Side,
    at: Timestamp,
    version: &'static SupportedProtocolVersion,
) -> (ClientConnection, ServerConnection) {
    let provider: Arc<CryptoProvider> = Arc::new(ring::default_provider());
    let client = ClientConfig::builder_with_details(Arc::clone(&provider), Arc::new(FixedTime(at)))
        .with_protocol_versions(&[version])
        .unwrap()
        .with_root_certificates(client.roots())
        .with_client_auth_cert(client.chain(), client.key())
        .unwrap();
    let verifier = WebPkiClientVerifier::builder_with_provider(server.roots(), Arc::clone(&provider)).build().unwrap();
    let server = ServerConfig::builder_with_details(provider, Arc::new(FixedTime(at)))
        .with_protocol_versions(&[version])
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(server.chain(), server.key())
        .unwrap();
    (
        ClientConnection::new(Arc::new(client), SERVER_NAME.try_into().unwrap()).unwrap(),
        ServerConnection::new(Arc::new(server)).unwrap(),
    )
}

/// Passes bytes between both sides until neither has more to write. Returns the first error.
fn run(client: &mut ClientConnection, server: &mut ServerConnection) -> Result<(), Error> {
    while client.wants_write() || server.wants_write() {
        pass(client, server)?;
        pass(server, client)?;
    }
    Ok(())
}

fn pass<A, B>(from: &mut ConnectionCommon<A>, to: &mut ConnectionCommon<B>) -> Result<(), Error>
where
    A: SideData,
    B: SideData,
{
    let mut wire = Vec::new();
    while from.wants_write() {
        from.write_tls(&mut wire).unwrap();
    }
    let mut arriving = wire.as_slice();
    while !arriving.is_empty() {
        to.read_tls(&mut arriving).unwrap();
        to.process_new_packets()?;
    }
    Ok(())
}

/// Performs a handshake, and sends bytes over the connection.
fn talk_in(
    version: &'static SupportedProtocolVersion,
    client: &Side,
    server: &Side,
    at: Timestamp,
) -> Result<(), Error> {
    let (mut client, mut server) = connections(client, server, at, version);
    run(&mut client, &mut server)?;
    assert!(!client.is_handshaking() && !server.is_handshaking());
    client.writer().write_all(b"ping").unwrap();
    run(&mut client, &mut server)?;
    let mut received = [0; 4];
    server.reader().read_exact(&mut received).unwrap();
    assert_eq!(&received, b"ping");
    Ok(())
}

/// Does the same with both versions of TLS, and checks that the results are equal.
fn talk(client: &Side, server: &Side, at: Timestamp) -> Result<(), Error> {
    let [old, new] = [&TLS12, &TLS13].map(|version| talk_in(version, client, server, at));
    assert_eq!(old, new);
    new
}

/// Returns the reason for which a certificate was rejected.
fn refusal(client: &Side, server: &Side, at: Timestamp) -> Option<CertificateError> {
    if let Err(Error::InvalidCertificate(refusal)) = talk(client, server, at) { Some(refusal) } else { None }
}

#[test]
fn leafs_of_one_authority_talk() {
    let authority = authority(1);
    let client = Side::new(issue(&authority, &client()), &authority);
    let server = Side::new(issue(&authority, &server()), &authority);
    assert_eq!(talk(&client, &server, now()), Ok(()));
    assert_eq!(talk(&client, &server, now() - 4.minutes()), Ok(()), "clocks may differ by five minutes");
}

#[test]
fn another_authority_of_the_same_name_is_refused_on_either_side() {
    let (own, other) = (authority(1), authority(2));
    let good_client = Side::new(issue(&own, &client()), &own);
    let good_server = Side::new(issue(&own, &server()), &own);
    let strange_client = Side::new(issue(&other, &client()), &own);
    let strange_server = Side::new(issue(&other, &server()), &own);
    for (client, server) in [(&good_client, &strange_server), (&strange_client, &good_server)] {
        assert!(matches!(
            refusal(client, server, now()),
            Some(CertificateError::BadSignature | CertificateError::UnknownIssuer)
        ));
    }
}

#[test]
fn an_expired_leaf_is_refused_on_either_side() {
    let authority = authority(1);
    let side = |request: &LeafRequest| Side::new(issue(&authority, request), &authority);
    let (mut short_server, mut long_client) = (server(), client());
    (short_server.validity, long_client.validity) = (hours(1), hours(8760));
    let later = now() + 25.hours();
    for (client, server) in [(side(&client()), side(&server())), (side(&long_client), side(&short_server))] {
        assert_eq!(talk(&client, &server, now()), Ok(()));
        assert!(matches!(refusal(&client, &server, later), Some(CertificateError::ExpiredContext { .. })));
        let early = now() - 6.minutes();
        assert!(matches!(refusal(&client, &server, early), Some(CertificateError::NotValidYetContext { .. })));
    }
}

#[test]
fn the_wrong_usage_is_refused_on_either_side() {
    let authority = authority(1);
    let side = |request: &LeafRequest| Side::new(issue(&authority, request), &authority);
    let (mut client_as_server, mut server_as_client) = (server(), client());
    client_as_server.usages = vec![CertificateUsage::ClientAuth];
    server_as_client.usages = vec![CertificateUsage::ServerAuth];
    server_as_client.dns_names = vec!["client".to_owned()];
    for (client, server) in [(side(&client()), side(&client_as_server)), (side(&server_as_client), side(&server()))] {
        assert!(matches!(refusal(&client, &server, now()), Some(CertificateError::InvalidPurposeContext { .. })));
    }
}

#[test]
fn a_server_of_another_name_is_refused() {
    let authority = authority(1);
    let mut elsewhere = server();
    elsewhere.dns_names = vec!["kubernetes.other.svc".to_owned()];
    let client = Side::new(issue(&authority, &client()), &authority);
    let server = Side::new(issue(&authority, &elsewhere), &authority);
    assert!(matches!(refusal(&client, &server, now()), Some(CertificateError::NotValidForNameContext { .. })));
}

#[test]
fn the_bundle_trusts_all_generations() {
    let keyring = AuthorityKeyring {
        next: Some(authority(3)),
        active: authority(2),
        previous: Some(RetiredAuthority::Trusted(authority(1).certificate().clone())),
    };
    let side =
        |seed, request: &LeafRequest| Side { leaf: issue(&authority(seed), request), trusts: keyring.bundle_pem() };
    for (one, two) in [(1, 2), (2, 1), (2, 3), (3, 2), (1, 3)] {
        assert_eq!(talk(&side(one, &client()), &side(two, &server()), now()), Ok(()), "client {one}, server {two}");
    }
}
