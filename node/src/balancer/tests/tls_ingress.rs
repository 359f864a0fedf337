//! An ingress with an API server behind it, which counts handshakes and requests.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use jiff::{SignedDuration, Timestamp};
use keelway_pki::{Authority, CertificateUsage, LeafRequest, Validity};
use rand::{SeedableRng, rngs::ChaCha8Rng};
use rustls::ServerConfig;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    sync::watch,
};
use tokio_rustls::TlsAcceptor;

fn hour() -> Validity {
    Validity::starting(Timestamp::now(), SignedDuration::from_hours(1)).unwrap()
}

/// The authority of a cluster.
pub(super) struct TestAuthority(Authority);

impl TestAuthority {
    pub(super) fn new() -> Self {
        Self(Authority::mint("kubernetes", hour(), &mut ChaCha8Rng::seed_from_u64(1)).unwrap())
    }

    /// The authority that replaces the first one.
    pub(super) fn later() -> Self {
        Self(Authority::mint_generation("kubernetes", hour(), &mut ChaCha8Rng::seed_from_u64(3)).unwrap())
    }

    pub(super) fn pem(&self) -> String {
        self.0.certificate().pem().to_owned()
    }

    fn acceptor(&self) -> TlsAcceptor {
        let leaf = LeafRequest {
            common_name: "kube-apiserver".to_owned(),
            organizations: vec![],
            dns_names: vec!["kubernetes".to_owned()],
            ip_addresses: vec![],
            usages: vec![CertificateUsage::ServerAuth],
            validity: hour(),
        };
        let identity = self.0.issue(&leaf, &mut ChaCha8Rng::seed_from_u64(2)).unwrap();
        let chain = CertificateDer::pem_slice_iter(identity.certificate_pem.as_bytes()).map(Result::unwrap).collect();
        let key = PrivateKeyDer::from_pem_slice(identity.key_pem.expose().as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        TlsAcceptor::from(Arc::new(builder.with_no_client_auth().with_single_cert(chain, key).unwrap()))
    }
}

#[derive(Default)]
struct IngressState {
    handshakes: AtomicUsize,
    requests: AtomicUsize,
    /// The number of requests that are answered with an error from now on.
    refusals: AtomicUsize,
    is_silent: AtomicBool,
}

/// An ingress on loopback.
pub(super) struct TlsIngress {
    pub(super) address: SocketAddr,
    state: Arc<IngressState>,
    /// Ends all connections at each change.
    ends: watch::Sender<()>,
}

impl TlsIngress {
    pub(super) async fn start(authority: &TestAuthority) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (state, acceptor, ends) = (Arc::<IngressState>::default(), authority.acceptor(), watch::Sender::new(()));
        let (shared, ending) = (Arc::clone(&state), ends.clone());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let (state, acceptor, mut ended) = (Arc::clone(&shared), acceptor.clone(), ending.subscribe());
                tokio::spawn(async move {
                    tokio::select! {
                        () = answer(&state, &acceptor, stream) => {}
                        _ = ended.changed() => {}
                    }
                });
            }
        });
        Self { address, state, ends }
    }

    pub(super) fn handshakes(&self) -> usize {
        self.state.handshakes.load(Ordering::Relaxed)
    }

    pub(super) fn requests(&self) -> usize {
        self.state.requests.load(Ordering::Relaxed)
    }

    pub(super) fn end_connections(&self) {
        self.ends.send_replace(());
    }

    pub(super) fn refuse_next(&self, requests: usize) {
        self.state.refusals.store(requests, Ordering::Relaxed);
    }

    /// A silent ingress accepts connections and requests, and answers none.
    pub(super) fn set_silent(&self, is_silent: bool) {
        self.state.is_silent.store(is_silent, Ordering::Relaxed);
    }
}

/// Answers all requests of one connection.
async fn answer(state: &IngressState, acceptor: &TlsAcceptor, stream: TcpStream) {
    let Ok(stream) = acceptor.accept(stream).await else { return };
    state.handshakes.fetch_add(1, Ordering::Relaxed);
    let mut stream = BufReader::new(stream);
    loop {
        let mut request = String::new();
        while !request.ends_with("\r\n\r\n") {
            if !matches!(stream.read_line(&mut request).await, Ok(1..)) {
                return;
            }
        }
        state.requests.fetch_add(1, Ordering::Relaxed);
        if state.is_silent.load(Ordering::Relaxed) {
            return std::future::pending().await;
        }
        let refuses = state.refusals.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        let status = if refuses.is_ok() { "500 Internal Server Error" } else { "200 OK" };
        let response = format!("HTTP/1.1 {status}\r\nContent-Length: 2\r\n\r\nok");
        if stream.write_all(response.as_bytes()).await.is_err() {
            return;
        }
    }
}
