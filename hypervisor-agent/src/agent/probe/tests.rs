//! Questions over TLS to a server of the test's own.

use std::{fs, net::SocketAddr, sync::Mutex as StdMutex, time::Duration};

use keelway_cri::{Deadlines, Runtime};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::{HandshakeKind, ServerConfig};
use rustls_pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
    task::JoinHandle,
};
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::access::Access;

const NAME: &str = "kube-apiserver";

/// A machine below a directory, and a component of it that answers.
struct World {
    root: TempDir,
    machine: LocalMachine,
    clients: Clients,
    question: Question,
    seen: Arc<StdMutex<Vec<HandshakeKind>>>,
    serving: Option<JoinHandle<()>>,
}

impl World {
    async fn new() -> Self {
        let root = TempDir::new().unwrap();
        let access = Access::of_root(fs::File::open(root.path()).unwrap().into());
        let runtime = Runtime::on_socket(root.path().join("nobody"), Deadlines::default()).unwrap();
        let question = Question {
            container: "c1".to_owned(),
            pod: PodName {
                cluster: "0123456789abcdef".parse().unwrap(),
                component: "kube-apiserver-0".parse().unwrap(),
            },
            check: Check::Https {
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
            Self { root, machine, clients: Clients::default(), question, seen: Arc::default(), serving: None };
        world.serve().await;
        world
    }

    /// Serves with a new authority, which the component's file names, at a new port.
    async fn serve(&mut self) {
        self.end().await;
        let (authority, config) = issue();
        let file = format!("{}{}", self.root.path().display(), crate::layout::on_machine(&self.question.pod, "files"));
        fs::create_dir_all(&file).unwrap();
        fs::write(format!("{file}/ca.crt"), authority).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        if let Check::Https { address, .. } = &mut self.question.check {
            *address = listener.local_addr().unwrap();
        }
        self.serving = Some(tokio::spawn(answer_all(listener, config, Arc::clone(&self.seen))));
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

/// A new authority, and a server of it.
fn issue() -> (String, Arc<ServerConfig>) {
    let mut authority = CertificateParams::new(Vec::new()).unwrap();
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let authority_key = KeyPair::generate().unwrap();
    let authority_pem = authority.self_signed(&authority_key).unwrap().pem();
    let key = KeyPair::generate().unwrap();
    let issuer = Issuer::new(authority, authority_key);
    let certificate = CertificateParams::new(vec![NAME.to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
    let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.der().clone()], key)
        .unwrap();
    config.ticketer = rustls::crypto::ring::Ticketer::new().unwrap();
    (authority_pem, Arc::new(config))
}

async fn answer_all(listener: TcpListener, config: Arc<ServerConfig>, seen: Arc<StdMutex<Vec<HandshakeKind>>>) {
    let acceptor = TlsAcceptor::from(config);
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        // Whoever trusts another authority breaks off.
        let Ok(mut stream) = acceptor.accept(stream).await else { continue };
        let mut request = [0; 1024];
        let _ = stream.read(&mut request).await;
        seen.lock().unwrap().extend(stream.get_ref().1.handshake_kind());
        let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok").await;
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
async fn what_ended_does_not_answer() {
    let mut world = World::new().await;
    world.ask().await.unwrap();
    world.end().await;
    let why = world.ask().await.unwrap_err();
    assert!(why.contains("refused"), "{why}");
}
