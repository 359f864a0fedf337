//! An endpoint that records all requests.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use keelway_pki::{Authority, CertificateUsage, LeafRequest, Validity};
use rand::{SeedableRng, rngs::ChaCha8Rng};
use rustls::ServerConfig;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
};
use tokio_rustls::TlsAcceptor;

use crate::plane::Plane;

/// A running endpoint. It ends with the test.
pub(crate) struct Endpoint {
    pub(crate) address: SocketAddr,
    heard: Arc<Mutex<String>>,
    connections: Arc<AtomicUsize>,
    closed: Arc<AtomicUsize>,
}

impl Endpoint {
    /// Starts an endpoint of the cluster. Its clock is ahead by `ahead`.
    pub(crate) async fn of_cluster(plane: &Plane, ahead: SignedDuration) -> Self {
        let identity = plane.server_identity("kube-apiserver");
        Self::start(&(identity.certificate_pem.clone() + plane.authority()), identity.key_pem.expose(), ahead).await
    }

    /// Starts an endpoint of another cluster.
    pub(crate) async fn of_another() -> Self {
        let random = || ChaCha8Rng::from_rng(&mut rand::rng());
        let validity = Validity::starting(Timestamp::now(), SignedDuration::from_hours(1)).unwrap();
        let authority = Authority::mint("kubernetes", validity, &mut random()).unwrap();
        let leaf = LeafRequest {
            common_name: "kube-apiserver".to_owned(),
            organizations: vec![],
            dns_names: vec!["kubernetes".to_owned()],
            ip_addresses: vec![],
            usages: vec![CertificateUsage::ServerAuth],
            validity,
        };
        let identity = authority.issue(&leaf, &mut random()).unwrap();
        let chain = identity.certificate_pem.clone() + authority.certificate().pem();
        Self::start(&chain, identity.key_pem.expose(), SignedDuration::ZERO).await
    }

    async fn start(chain: &str, key: &str, ahead: SignedDuration) -> Self {
        let listener = TcpListener::bind("203.0.113.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let acceptor = acceptor(chain, key);
        let (heard, connections) = (Arc::new(Mutex::new(String::new())), Arc::new(AtomicUsize::new(0)));
        let closed = Arc::new(AtomicUsize::new(0));
        let (to, counted, left) = (Arc::clone(&heard), Arc::clone(&connections), Arc::clone(&closed));
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                counted.fetch_add(1, Ordering::Relaxed);
                if left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok() {
                    continue;
                }
                if let Ok(request) = answer(&acceptor, stream, Timestamp::now() + ahead).await {
                    to.lock().unwrap().push_str(&request);
                }
            }
        });
        Self { address, heard, connections, closed }
    }

    /// Closes the next connections at once, as an ingress without a ready API server does.
    pub(crate) fn close_next(&self, connections: usize) {
        self.closed.store(connections, Ordering::Relaxed);
    }

    /// Returns the number of connections so far.
    pub(crate) fn connections(&self) -> usize {
        self.connections.load(Ordering::Relaxed)
    }

    /// Returns all requests so far.
    pub(crate) fn heard(&self) -> String {
        self.heard.lock().unwrap().clone()
    }
}

fn acceptor(chain: &str, key: &str) -> TlsAcceptor {
    let chain = CertificateDer::pem_slice_iter(chain.as_bytes()).map(Result::unwrap).collect();
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    TlsAcceptor::from(Arc::new(builder.with_no_client_auth().with_single_cert(chain, key).unwrap()))
}

/// Answers one request, whatever it is, and returns it.
async fn answer(acceptor: &TlsAcceptor, stream: TcpStream, now: Timestamp) -> std::io::Result<String> {
    let mut stream = BufReader::new(acceptor.accept(stream).await?);
    let mut request = String::new();
    while !request.ends_with("\r\n\r\n") && stream.read_line(&mut request).await? > 0 {}
    let date = now.strftime("%a, %d %b %Y %H:%M:%S GMT");
    let head = format!("HTTP/1.1 200 OK\r\nDate: {date}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    stream.shutdown().await?;
    Ok(request)
}
