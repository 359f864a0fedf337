//! Connects to a cluster in the way that its users do: through its ingresses.

use std::{future::Future, io, net::SocketAddr, pin::Pin, sync::Arc, task, time::Duration};

use http::Uri;
use hyper_rustls::{HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::rt::TokioIo;
use keelway_api::{
    Documents,
    name::ClusterId,
    role::{API, Role},
};
use rustls::ClientConfig;
use tokio::net::TcpStream;
use tower::{BoxError, Service};

/// The time limit for the response of one ingress, anywhere on the internet.
const CONNECT: Duration = Duration::from_secs(4);

/// Returns the addresses of a cluster's ingresses: all public addresses of their machines.
pub(super) fn addresses(documents: &Documents, id: &ClusterId) -> Vec<SocketAddr> {
    let ingresses = documents.components_of(id).filter(|(_, component)| component.spec.role == Role::Ingress);
    let mut addresses = Vec::new();
    for (_, ingress) in ingresses.filter(|(_, component)| !component.is_leaving()) {
        let machine = documents.hypervisors.get(&ingress.spec.hypervisor);
        let public = machine.map(|machine| machine.spec.addresses.public.as_slice()).unwrap_or_default();
        let public = public.iter().filter_map(|address| address.parse().ok());
        addresses.extend(public.map(|address| SocketAddr::new(address, ingress.spec.port(API))));
    }
    addresses
}

/// Connects to the first ingress that responds. The host of a request's URI is used for the server's certificate only.
#[derive(Clone)]
pub(super) struct Ingresses {
    pub(super) addresses: Arc<[SocketAddr]>,
    pub(super) tls: ClientConfig,
}

impl Service<Uri> for Ingresses {
    type Response = MaybeHttpsStream<TokioIo<TcpStream>>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _context: &mut task::Context<'_>) -> task::Poll<Result<(), BoxError>> {
        task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let Self { addresses, tls } = self.clone();
        Box::pin(async move {
            let mut last: BoxError = io::Error::from(io::ErrorKind::AddrNotAvailable).into();
            for address in addresses.iter() {
                let builder = HttpsConnectorBuilder::new().with_tls_config(tls.clone()).https_only().enable_http1();
                let mut ingress = builder.wrap_connector(IngressConnector(*address));
                // The timeout includes the TLS handshake: an ingress that accepts connections and then sends nothing does not respond either.
                match tokio::time::timeout(CONNECT, ingress.call(uri.clone())).await {
                    Ok(Ok(stream)) => return Ok(stream),
                    Ok(Err(error)) => last = error,
                    Err(_) => last = io::Error::from(io::ErrorKind::TimedOut).into(),
                }
            }
            Err(last)
        })
    }
}

/// A connection to one ingress, without TLS.
#[derive(Clone)]
struct IngressConnector(SocketAddr);

impl Service<Uri> for IngressConnector {
    type Response = TokioIo<TcpStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _context: &mut task::Context<'_>) -> task::Poll<io::Result<()>> {
        task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _uri: Uri) -> Self::Future {
        let address = self.0;
        Box::pin(async move { TcpStream::connect(address).await.map(TokioIo::new) })
    }
}

#[cfg(test)]
mod tests {
    use keelway_pki::{Authority, CertificateUsage, LeafRequest, Validity};
    use keelway_tls::component::client_from_pem;
    use rustls::{ServerConfig, crypto::ring};
    use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
    use tokio::net::TcpListener;
    use tokio_rustls::TlsAcceptor;

    use super::*;

    async fn bound() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        (listener, address)
    }

    /// Returns the TLS settings of an API server, and of a client that trusts it.
    fn api_server() -> (TlsAcceptor, ClientConfig) {
        let validity =
            Validity::starting(keelway_api::jiff::Timestamp::now(), keelway_api::jiff::SignedDuration::from_hours(1));
        let validity = validity.unwrap();
        let authority = Authority::mint("kubernetes", validity, &mut rand::rng()).unwrap();
        let request = LeafRequest {
            common_name: "kube-apiserver".to_owned(),
            organizations: vec![],
            dns_names: vec!["kubernetes".to_owned()],
            ip_addresses: vec![],
            usages: vec![CertificateUsage::ServerAuth],
            validity,
        };
        let issued = authority.issue(&request, &mut rand::rng()).unwrap();
        let chain = vec![CertificateDer::from_pem_slice(issued.certificate_pem.as_bytes()).unwrap()];
        let key = PrivateKeyDer::from_pem_slice(issued.key_pem.expose().as_bytes()).unwrap();
        let server = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_no_client_auth()
            .with_single_cert(chain, key)
            .unwrap();
        let client = client_from_pem(authority.certificate().pem().as_bytes(), None).unwrap();
        (TlsAcceptor::from(Arc::new(server)), client)
    }

    #[tokio::test]
    async fn the_next_ingress_is_used_if_one_is_gone_or_silent() {
        let (acceptor, tls) = api_server();
        let gone = bound().await.1;
        let (_silent, silent) = bound().await;
        let (there, address) = bound().await;
        let uri = Uri::from_static("https://kubernetes/");
        let mut ingresses = Ingresses { addresses: [gone, silent, address].into(), tls: tls.clone() };
        let serve = async { acceptor.accept(there.accept().await.unwrap().0).await };
        let (connected, served) = tokio::join!(ingresses.call(uri.clone()), serve);
        assert!(matches!(connected.unwrap(), MaybeHttpsStream::Https(_)));
        served.unwrap();
        for addresses in [vec![gone], vec![]] {
            let mut ingresses = Ingresses { addresses: addresses.into(), tls: tls.clone() };
            assert!(ingresses.call(uri.clone()).await.is_err());
        }
    }
}
