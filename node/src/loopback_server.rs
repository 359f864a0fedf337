//! TLS servers on loopback addresses, which record what clients send after the handshake.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use jiff::{SignedDuration, Timestamp};
use keelway_api::worker::{RENEWAL_PROTOCOL, RenewalResponse};
use keelway_pki::{Authority, AuthorityHash, CertificateUsage, LeafRequest, Validity};
use rand::{SeedableRng, rngs::ChaCha8Rng};
use rustls::ServerConfig;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream, ToSocketAddrs},
};
use tokio_rustls::TlsAcceptor;

use crate::{authority::SERVER_NAME, tunnels::GATEWAY_NAME};

/// The authority of a cluster.
pub(crate) struct LoopbackAuthority(Authority);

impl LoopbackAuthority {
    /// Creates the authority of one of several clusters.
    pub(crate) fn new(cluster: u64) -> Self {
        Self(Authority::mint("kubernetes", hour(), &mut ChaCha8Rng::seed_from_u64(cluster)).unwrap())
    }

    pub(crate) fn pem(&self) -> String {
        self.0.certificate().pem().to_owned()
    }

    pub(crate) fn hash(&self) -> AuthorityHash {
        AuthorityHash::of_pem(&self.pem()).unwrap()
    }

    /// Returns the settings of a server with this name, which sends the authority, too.
    fn server(&self, name: &str, protocols: &[&str]) -> ServerConfig {
        let leaf = LeafRequest {
            common_name: name.to_owned(),
            organizations: vec![],
            dns_names: vec![name.to_owned()],
            ip_addresses: vec![],
            usages: vec![CertificateUsage::ServerAuth],
            validity: hour(),
        };
        let identity = self.0.issue(&leaf, &mut ChaCha8Rng::seed_from_u64(9)).unwrap();
        let chain = identity.certificate_pem.clone() + &self.pem();
        let chain = CertificateDer::pem_slice_iter(chain.as_bytes()).map(Result::unwrap).collect();
        let key = PrivateKeyDer::from_pem_slice(identity.key_pem.expose().as_bytes()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let mut config = builder.with_no_client_auth().with_single_cert(chain, key).unwrap();
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        config
    }
}

fn hour() -> Validity {
    Validity::starting(Timestamp::now(), SignedDuration::from_hours(1)).unwrap()
}

/// What a server records.
#[derive(Default)]
struct ServerRecord {
    connections: usize,
    received: Vec<String>,
}

/// A running server. It ends with the runtime of the test.
pub(crate) struct LoopbackServer {
    pub(crate) address: SocketAddr,
    record: Arc<Mutex<ServerRecord>>,
}

impl LoopbackServer {
    /// Starts an ingress whose API server is ready.
    pub(crate) async fn ingress(address: impl ToSocketAddrs, authority: &LoopbackAuthority) -> Self {
        let response = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
        Self::start(address, authority.server(SERVER_NAME, &[]), "\r\n\r\n", response.to_owned()).await
    }

    /// Starts a gateway that responds to each request for a certificate.
    pub(crate) async fn gateway(
        address: impl ToSocketAddrs,
        authority: &LoopbackAuthority,
        response: &RenewalResponse,
    ) -> Self {
        let response = serde_json::to_string(response).unwrap() + "\n";
        Self::start(address, authority.server(GATEWAY_NAME, &[RENEWAL_PROTOCOL]), "\n", response).await
    }

    async fn start(address: impl ToSocketAddrs, config: ServerConfig, end: &'static str, response: String) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let (acceptor, record) = (TlsAcceptor::from(Arc::new(config)), Arc::<Mutex<ServerRecord>>::default());
        let records = Arc::clone(&record);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                records.lock().unwrap().connections += 1;
                // One connection after the other: a client that was refused has ended its own.
                let _ = serve(&acceptor, stream, end, &response, &records).await;
            }
        });
        Self { address, record }
    }

    /// Returns another address with the same port.
    pub(crate) fn beside(&self, address: &str) -> SocketAddr {
        SocketAddr::new(address.parse().unwrap(), self.address.port())
    }

    pub(crate) fn connections(&self) -> usize {
        self.record.lock().unwrap().connections
    }

    /// Returns what clients sent after the handshake, one text for each connection that sent something.
    pub(crate) fn received(&self) -> Vec<String> {
        self.record.lock().unwrap().received.clone()
    }
}

async fn serve(
    acceptor: &TlsAcceptor,
    stream: TcpStream,
    end: &str,
    response: &str,
    record: &Mutex<ServerRecord>,
) -> std::io::Result<()> {
    let mut stream = BufReader::new(acceptor.accept(stream).await?);
    let mut request = String::new();
    while !request.ends_with(end) && matches!(stream.read_line(&mut request).await, Ok(1..)) {}
    if !request.is_empty() {
        record.lock().unwrap().received.push(request);
    }
    stream.write_all(response.as_bytes()).await?;
    stream.shutdown().await
}
