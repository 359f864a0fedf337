//! Probes over TLS against a server in the test.

use std::{fs, net::SocketAddr, sync::Mutex as StdMutex, time::Duration};

use keelway_cri::{CriRuntime, Deadlines};
use keelway_machine_io::access::MachineAccess;
use rcgen::{BasicConstraints, Certificate, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::{HandshakeKind, RootCertStore, ServerConfig, server::WebPkiClientVerifier};
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    task::JoinHandle,
};
use tokio_rustls::TlsAcceptor;

use super::*;

const NAME: &str = "kube-apiserver";

/// A machine below a directory, with a component that the test serves.
struct World {
    root: TempDir,
    machine: LocalMachine,
    clients: ProbeClients,
    question: LivenessQuery,
    seen: Arc<StdMutex<Vec<HandshakeKind>>>,
    serving: Option<JoinHandle<()>>,
}

impl World {
    async fn new() -> Self {
        let root = TempDir::new().unwrap();
        let access = MachineAccess::of_root(fs::File::open(root.path()).unwrap().into());
        let runtime = CriRuntime::on_socket(root.path().join("nobody"), Deadlines::default()).unwrap();
        let question = LivenessQuery {
            container: "c1".to_owned(),
            pod: PodName {
                cluster: "0123456789abcdef".parse().unwrap(),
                component: "kube-apiserver-0".parse().unwrap(),
            },
            check: ContainerCheck::Https {
                address: SocketAddr::from(([127, 0, 0, 1], 0)),
                path: "/livez".to_owned(),
                server_name: NAME.to_owned(),
                authority: "ca.crt".to_owned(),
                identity: None,
            },
            within: Duration::from_secs(60),
        };
        let machine = LocalMachine::new(access, runtime, None);
        let mut world =
            Self { root, machine, clients: ProbeClients::default(), question, seen: Arc::default(), serving: None };
        world.serve().await;
        world
    }

    /// Serves with a new key on a new port, and writes the key's certificate to the component's file.
    async fn serve(&mut self) {
        self.serve_as(&issue()).await;
    }

    async fn serve_as(&mut self, issued: &Issued) {
        self.write(SERVING_CERTIFICATE, &issued.certificate.pem());
        self.listen(issued.config(None)).await;
    }

    /// Serves with this configuration on a new port, whatever the component's files contain.
    async fn listen(&mut self, config: Arc<ServerConfig>) {
        self.end().await;
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        if let ContainerCheck::Https { address, .. } = &mut self.question.check {
            *address = listener.local_addr().unwrap();
        }
        self.serving = Some(tokio::spawn(answer_all(listener, config, Arc::clone(&self.seen))));
    }

    fn write(&self, name: &str, content: &str) {
        let files = format!(
            "{}{}",
            self.root.path().display(),
            keelway_machine::layout::on_machine(&self.question.pod, "files")
        );
        fs::create_dir_all(&files).unwrap();
        fs::write(format!("{files}/{name}"), content).unwrap();
    }

    async fn end(&mut self) {
        if let Some(serving) = self.serving.take() {
            serving.abort();
            let _ = serving.await;
        }
    }

    async fn ask(&self) -> Result<(), String> {
        ask(&self.machine, &self.clients, &self.question).await
    }

    fn seen(&self) -> Vec<HandshakeKind> {
        std::mem::take(&mut *self.seen.lock().unwrap())
    }
}

/// A key with its certificate, and the authority that issued it.
struct Issued {
    authority: Certificate,
    certificate: Certificate,
    key: KeyPair,
}

fn issue() -> Issued {
    issue_with(|_| ())
}

/// A certificate that expired long ago.
fn expired() -> Issued {
    issue_with(|params| {
        params.not_before = date_time_ymd(2001, 1, 1);
        params.not_after = date_time_ymd(2002, 1, 1);
    })
}

fn issue_with(change: impl FnOnce(&mut CertificateParams)) -> Issued {
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority_key = KeyPair::generate().unwrap();
    let certificate_of_authority = authority.self_signed(&authority_key).unwrap();
    let key = KeyPair::generate().unwrap();
    let issuer = Issuer::new(authority, authority_key);
    let mut params = CertificateParams::new(vec![NAME.to_owned()]).unwrap();
    change(&mut params);
    let certificate = params.signed_by(&key, &issuer).unwrap();
    Issued { authority: certificate_of_authority, certificate, key }
}

impl Issued {
    /// Returns a server configuration with this certificate. If `clients` is set, the server requires client certificates of that authority.
    fn config(&self, clients: Option<&Certificate>) -> Arc<ServerConfig> {
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider));
        let builder = builder.with_safe_default_protocol_versions().unwrap();
        let builder = match clients {
            None => builder.with_no_client_auth(),
            Some(authority) => {
                let mut roots = RootCertStore::empty();
                roots.add(authority.der().clone()).unwrap();
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                builder.with_client_cert_verifier(verifier.build().unwrap())
            }
        };
        let mut config = builder.with_single_cert(vec![self.certificate.der().clone()], key).unwrap();
        config.ticketer = rustls::crypto::ring::Ticketer::new().unwrap();
        Arc::new(config)
    }
}

/// The response of an etcd member whose store has no space.
const FULL: &str = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: 44\r\n\r\n\
                    {\"health\":\"false\",\"reason\":\"ALARM NOSPACE\"}\n";

async fn answer_all(listener: TcpListener, config: Arc<ServerConfig>, seen: Arc<StdMutex<Vec<HandshakeKind>>>) {
    let acceptor = TlsAcceptor::from(config);
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        // A client that trusts another authority aborts the handshake.
        let Ok(mut stream) = acceptor.accept(stream).await else { continue };
        let mut request = [0; 1024];
        let length = stream.read(&mut request).await.unwrap_or_default();
        let asks_for_alarms = request[..length].starts_with(format!("GET {ALARMS} ").as_bytes());
        let answer = if asks_for_alarms { FULL } else { "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok" };
        seen.lock().unwrap().extend(stream.get_ref().1.handshake_kind());
        let _ = stream.write_all(answer.as_bytes()).await;
        let _ = stream.shutdown().await;
    }
}

#[tokio::test]
async fn a_question_that_comes_again_resumes() {
    let world = World::new().await;
    for _ in 0..3 {
        world.ask().await.unwrap();
    }
    let seen = world.seen();
    assert_eq!(seen, [HandshakeKind::Full, HandshakeKind::Resumed, HandshakeKind::Resumed]);
}

#[tokio::test]
async fn another_container_is_met_anew() {
    let mut world = World::new().await;
    world.ask().await.unwrap();
    world.question.container = "c2".to_owned();
    world.ask().await.unwrap();
    assert_eq!(world.seen(), [HandshakeKind::Full, HandshakeKind::Full]);
}

#[tokio::test]
async fn files_that_changed_are_read_again() {
    let mut world = World::new().await;
    world.ask().await.unwrap();
    world.serve().await;
    world.ask().await.unwrap();
    assert_eq!(world.seen(), [HandshakeKind::Full, HandshakeKind::Full]);
}

#[tokio::test]
async fn an_ended_program_does_not_respond() {
    let mut world = World::new().await;
    world.ask().await.unwrap();
    world.end().await;
    let why = world.ask().await.unwrap_err();
    assert!(why.contains("refused"), "{why}");
}

/// Expired certificates, or a wrong clock, do not show whether a process is alive.
#[tokio::test]
async fn dates_are_not_looked_at() {
    let mut world = World::new().await;
    let future = issue_with(|params| params.not_before = date_time_ymd(3000, 1, 1));
    for issued in [expired(), future] {
        world.serve_as(&issued).await;
        world.ask().await.unwrap();
    }
}

/// The server may also check the dates of the client's certificate: it responds, with its own key.
#[tokio::test]
async fn a_server_that_refuses_our_certificate_lives() {
    let mut world = World::new().await;
    let own = expired();
    world.write("peer.crt", &own.certificate.pem());
    world.write("peer.key", &own.key.serialize_pem());
    if let ContainerCheck::Https { identity, .. } = &mut world.question.check {
        *identity = Some(CertificateFiles { certificate: "peer.crt".to_owned(), key: "peer.key".to_owned() });
    }
    let server = issue();
    world.write(SERVING_CERTIFICATE, &server.certificate.pem());
    for authority in [&own.authority, &server.authority] {
        world.listen(server.config(Some(authority))).await;
        world.ask().await.unwrap();
        world.ask().await.unwrap();
    }
    // Another process may refuse the certificate as well.
    let stranger = issue();
    world.listen(stranger.config(Some(&own.authority))).await;
    assert!(world.ask().await.is_err());
}

/// The authority may have issued the certificate of another process too.
#[tokio::test]
async fn another_process_on_the_port_does_not_count() {
    let mut world = World::new().await;
    world.ask().await.unwrap();
    let stranger = issue();
    world.listen(stranger.config(None)).await;
    let why = world.ask().await.unwrap_err();
    assert!(why.contains("a different key"), "{why}");
}

/// A server reloads a new certificate some time after it was written.
#[tokio::test]
async fn the_key_before_counts_until_the_new_one_is_shown() {
    let mut world = World::new().await;
    let (before, after) = (issue(), issue());
    world.serve_as(&before).await;
    world.ask().await.unwrap();
    world.write(SERVING_CERTIFICATE, &after.certificate.pem());
    let pod = world.question.pod.clone();
    world.clients.read_again(|changed| *changed == pod);
    world.ask().await.unwrap();
    world.listen(after.config(None)).await;
    world.ask().await.unwrap();
    // Once there is a third key, the first one is no longer accepted.
    let last = issue();
    world.serve_as(&last).await;
    world.ask().await.unwrap();
    world.listen(before.config(None)).await;
    world.ask().await.unwrap_err();
}

#[tokio::test]
async fn only_etcd_members_are_queried_for_their_space() {
    let mut world = World::new().await;
    world.ask().await.unwrap();
    assert_eq!(has_no_space(&world.machine, &world.clients, &world.question).await, None, "it is no etcd member");
    world.question.pod.component = "etcd-0".parse().unwrap();
    assert_eq!(has_no_space(&world.machine, &world.clients, &world.question).await, None, "it did not answer yet");
    world.serve().await;
    world.ask().await.unwrap();
    assert_eq!(has_no_space(&world.machine, &world.clients, &world.question).await, Some(true));
    world.end().await;
    assert_eq!(has_no_space(&world.machine, &world.clients, &world.question).await, None, "it does not answer");
}

#[test]
fn an_alarm_is_read_from_the_reason_of_etcd() {
    assert_eq!(alarm(r#"{"health":"true","reason":""}"#), Some(false));
    assert_eq!(alarm(r#"{"health":"false","reason":"RAFT NO LEADER"}"#), Some(false));
    assert_eq!(alarm(r#"{"health":"false","reason":"ALARM NOSPACE"}"#), Some(true));
    assert_eq!(alarm("404 page not found"), None);
}
