//! Clients and requests that the agent refuses.

use std::{
    cell::RefCell,
    io::Write,
    net::SocketAddr,
    sync::{Arc, Once},
};

use keelway_agent_api::client::{HypervisorAgentClient, channel};
use keelway_api::machine::MachineConfig;
use keelway_hypervisor_agent::agent::ConnectionLimits;
use keelway_pki::{CertificateUsage, LeafRequest};
use rustls::{
    ClientConfig, SupportedProtocolVersion,
    version::{TLS12, TLS13},
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::{
    WITHIN,
    installation::{AGENT, Installation, files, hours},
    machine::{Machine, config},
};

/// The preface of a client of HTTP/2, with empty settings.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Returns a client configuration for TLS 1.3, with the certificate of these files if there are any.
pub(crate) fn tls(identity: Option<&TempDir>) -> ClientConfig {
    client(identity, &TLS13)
}

fn client(identity: Option<&TempDir>, version: &'static SupportedProtocolVersion) -> ClientConfig {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_protocol_versions(&[version]).unwrap();
    let builder = builder.with_root_certificates(Installation::new(1).roots());
    match identity {
        Some(folder) => {
            let chain = CertificateDer::pem_file_iter(folder.path().join("tls.crt")).unwrap().map(Result::unwrap);
            let key = PrivateKeyDer::from_pem_file(folder.path().join("tls.key")).unwrap();
            builder.with_client_auth_cert(chain.collect(), key).unwrap()
        }
        None => builder.with_no_client_auth(),
    }
}

/// Returns the agent's certificate if the agent then speaks HTTP/2 with this client.
pub(crate) async fn greet(machine: &Machine, config: &ClientConfig) -> Option<CertificateDer<'static>> {
    let stream = converse(machine, config).await?;
    Some(stream.get_ref().1.peer_certificates().unwrap()[0].clone())
}

/// Opens a connection on which the agent has begun to speak HTTP/2.
pub(crate) async fn converse(machine: &Machine, config: &ClientConfig) -> Option<TlsStream<TcpStream>> {
    connect(machine.address, config).await
}

/// Opens such a connection to any address.
pub(crate) async fn connect(address: SocketAddr, config: &ClientConfig) -> Option<TlsStream<TcpStream>> {
    let greeting = async {
        let stream = TcpStream::connect(address).await.unwrap();
        let connector = TlsConnector::from(Arc::new(config.clone()));
        let mut stream = connector.connect(ServerName::try_from(AGENT).unwrap(), stream).await.ok()?;
        stream.write_all(PREFACE).await.ok()?;
        stream.read_exact(&mut [0; 9]).await.ok()?;
        Some(stream)
    };
    timeout(WITHIN, greeting).await.unwrap()
}

/// Sends these bytes and nothing more. Returns everything that the agent sends until it closes the connection.
async fn answer(machine: &Machine, says: &[u8]) -> Vec<u8> {
    let answering = async {
        let mut stream = TcpStream::connect(machine.address).await.unwrap();
        stream.write_all(says).await.unwrap();
        let mut answer = Vec::new();
        // It does not matter whether the connection ends cleanly.
        let _ = stream.read_to_end(&mut answer).await;
        answer
    };
    timeout(WITHIN, answering).await.unwrap()
}

thread_local! {
    /// What the test of this thread and its agent have logged.
    static SAID: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Captures what this thread logs from now on.
pub(crate) struct Log(());

impl Log {
    pub(crate) fn begin() -> Self {
        // All tests share one subscriber. If each test had its own, the callsite cache of `tracing` could make some tests miss log lines.
        static ALL: Once = Once::new();
        ALL.call_once(|| {
            let subscriber = tracing_subscriber::fmt().with_max_level(tracing::Level::INFO).with_ansi(false);
            tracing::subscriber::set_global_default(subscriber.with_writer(|| Ear).finish()).unwrap();
        });
        SAID.take();
        Self(())
    }

    #[expect(clippy::unused_self, reason = "nothing is heard before it begins")]
    pub(crate) fn text(&self) -> String {
        SAID.with_borrow(|said| String::from_utf8(said.clone()).unwrap())
    }
}

struct Ear;

impl Write for Ear {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        SAID.with_borrow_mut(|said| Write::write(said, bytes))
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn only_the_driver_of_the_installation_is_answered() {
    let (mut installation, mut other) = (Installation::new(1), Installation::new(2));
    let machine = Machine::new(&mut installation, ConnectionLimits::default());
    let driver = installation.driver(|_| {});
    let differs = |change: fn(&mut LeafRequest)| change;
    let unlike = [
        ("another part", differs(|of| "keelway:agent".clone_into(&mut of.common_name))),
        ("nearly the name", differs(|of| of.common_name.push('2'))),
        ("no installation", differs(|of| of.organizations.clear())),
        ("another installation", differs(|of| of.organizations = vec!["00000000000000ee".to_owned()])),
        ("ended", differs(|of| of.validity = hours(-2, -1))),
        ("not yet", differs(|of| of.validity = hours(1, 2))),
        (
            "a server's",
            differs(|of| {
                of.usages = vec![CertificateUsage::ServerAuth];
                of.dns_names = vec![AGENT.to_owned()];
            }),
        ),
    ];
    let log = Log::begin();
    for (why, change) in unlike {
        let folder = installation.driver(change);
        assert_eq!(greet(&machine, &tls(Some(&folder))).await, None, "{why}");
        assert!(greet(&machine, &tls(Some(&driver))).await.is_some(), "after {why}");
    }
    assert_eq!(greet(&machine, &tls(None)).await, None, "no certificate");
    assert_eq!(greet(&machine, &tls(Some(&other.driver(|_| {})))).await, None, "another authority");
    assert_eq!(greet(&machine, &client(Some(&driver), &TLS12)).await, None, "TLS 1.2");
    let revoked = installation.driver(|_| {});
    assert!(machine.serves(&revoked).await);
    installation.revoke(&machine.tls(), &[&revoked]);
    assert_eq!(greet(&machine, &tls(Some(&revoked))).await, None, "revoked");
    assert!(machine.serves(&driver).await);
    other.be_trusted(&machine.tls());
    assert!(greet(&machine, &tls(Some(&other.driver(|_| {})))).await.is_some(), "another authority, which is trusted");

    let log = log.text();
    assert!(log.contains("refused a connection") && log.contains(r#"\"keelway:agent\" is not authorized"#), "{log}");
    for folder in [driver.path(), revoked.path(), &machine.tls()] {
        let key = std::fs::read_to_string(folder.join("tls.key")).unwrap();
        assert!(key.lines().filter(|line| !line.starts_with('-')).all(|line| !log.contains(line)), "{log}");
    }
}

/// Encodes a `ClientHello` of TLS 1.1 (RFC 4346, 7.4.1.2), or of another version.
fn client_hello(minor: u8) -> Vec<u8> {
    let mut body = vec![3, minor];
    body.extend([7; 32]);
    // No session; one cipher suite, TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA; no compression.
    body.extend([0, 0, 2, 0xc0, 0x09, 1, 0]);
    let length = u8::try_from(body.len()).unwrap();
    [vec![22, 3, 1, 0, length + 4, 1, 0, 0, length], body].concat()
}

#[tokio::test]
async fn only_tls_1_3_gets_a_response() {
    let mut installation = Installation::new(1);
    let machine = Machine::new(&mut installation, ConnectionLimits::default());
    let driver = installation.driver(|_| {});
    let cases = [
        ("HTTP/2", PREFACE.to_vec()),
        ("HTTP/1.1", b"POST /keelway.agent.v1.Agent/GetState HTTP/1.1\r\nHost: a\r\n\r\n".to_vec()),
        ("SSL 3.0", client_hello(0)),
        ("TLS 1.0", client_hello(1)),
        ("TLS 1.1", client_hello(2)),
        ("TLS 1.2", client_hello(3)),
        ("half of a hello", client_hello(3)[..20].to_vec()),
        ("a record that is too long", [&[22, 3, 3, 0xff, 0xff][..], &[0; 1 << 13]].concat()),
        ("noise", (0..=255).cycle().skip(7).step_by(31).take(1 << 14).collect()),
        ("nothing", Vec::new()),
    ];
    for (what, says) in cases {
        let answer = answer(&machine, &says).await;
        // The agent may only send an alert that ends the connection (RFC 8446, 6).
        assert!(answer.is_empty() || (answer[0] == 21 && answer[5] == 2 && answer.len() == 7), "{what}: {answer:?}");
        assert!(machine.serves(&driver).await, "after {what}");
    }
}

/// Only the driver can send a recorded config again, and it has no effect then.
#[tokio::test]
async fn a_recorded_config_has_no_effect_when_sent_again() {
    const SECRET: &str = "what only the component may know";
    let mut installation = Installation::new(1);
    let machine = Machine::new(&mut installation, ConnectionLimits::default());
    let driver = installation.driver(|_| {});
    let client = machine.client(&driver);
    let apply = async |config: &MachineConfig| timeout(WITHIN, client.apply(config, &|_| {})).await.unwrap();
    let current = config(2, SECRET);
    apply(&current).await.unwrap();
    let log = Log::begin();
    let of_others = MachineConfig { installation: "00000000000000ee".parse().unwrap(), ..config(3, SECRET) };
    for (wrong, why) in [
        (config(1, SECRET), "stale documents"),
        (config(2, "other content"), "with different content"),
        (of_others, "obeys installation 00000000000000ff"),
    ] {
        let refused = format!("{:?}", apply(&wrong).await.unwrap_err());
        assert!(refused.contains(why) && log.text().contains(why), "{refused}\n{}", log.text());
    }
    // A driver that dials another machine's agent rejects this one.
    let identity = Arc::new(keelway_tls::TlsClient::new(files(driver.path())).unwrap());
    let other = channel(&machine.address.to_string(), &"hv-2".parse().unwrap(), identity).unwrap();
    timeout(WITHIN, HypervisorAgentClient::on_channel(other).apply(&config(3, SECRET), &|_| {}))
        .await
        .unwrap()
        .unwrap_err();
    assert_eq!(client.state(WITHIN).await.unwrap().applied.unwrap().generation, 2);
    assert!(log.text().contains("refused a connection") && !log.text().contains(SECRET), "{}", log.text());
    apply(&config(3, SECRET)).await.unwrap();
}

/// A driver rejects an agent whose certificate is of another installation.
#[tokio::test]
async fn a_driver_rejects_an_agent_of_another_installation() {
    let (mut installation, mut other) = (Installation::new(1), Installation::new(2));
    let stranger = Machine::new(&mut other, ConnectionLimits::default());
    assert!(stranger.serves(&other.driver(|_| {})).await);
    assert!(!stranger.serves(&installation.driver(|_| {})).await);
}
