//! Connections to a cluster as its users have them: through its ingresses.

use std::{future::Future, io, net::SocketAddr, pin::Pin, sync::Arc, task, time::Duration};

use http::Uri;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::rt::TokioIo;
use keelway_api::{
    Documents,
    name::ClusterId,
    role::{API, Role},
};
use rustls::ClientConfig;
use tokio::net::TcpStream;
use tower::Service;

/// How long one ingress may take to answer, anywhere on the internet.
const CONNECT: Duration = Duration::from_secs(4);

/// Where the ingresses of a cluster are reached: every public address of their machines.
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

/// Connects to the first ingress that answers, whatever host the URI names: the name is for the certificate.
#[derive(Clone)]
pub(super) struct Ingresses(pub(super) Arc<[SocketAddr]>);

impl Ingresses {
    /// The same with TLS on top.
    pub(super) fn https(self, config: ClientConfig) -> HttpsConnector<Self> {
        HttpsConnectorBuilder::new().with_tls_config(config).https_only().enable_http1().wrap_connector(self)
    }
}

impl Service<Uri> for Ingresses {
    type Response = TokioIo<TcpStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _context: &mut task::Context<'_>) -> task::Poll<io::Result<()>> {
        task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _uri: Uri) -> Self::Future {
        let addresses = Arc::clone(&self.0);
        Box::pin(async move {
            let mut last = io::ErrorKind::AddrNotAvailable.into();
            for address in addresses.iter() {
                match tokio::time::timeout(CONNECT, TcpStream::connect(address)).await {
                    Ok(Ok(stream)) => return Ok(TokioIo::new(stream)),
                    Ok(Err(error)) => last = error,
                    Err(_) => last = io::ErrorKind::TimedOut.into(),
                }
            }
            Err(last)
        })
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn the_next_ingress_is_taken_where_one_is_gone() {
        let gone = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let there = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut ingresses = Ingresses([gone, there.local_addr().unwrap()].into());
        let (connected, _) = tokio::join!(ingresses.call(Uri::default()), there.accept());
        assert_eq!(connected.unwrap().inner().peer_addr().unwrap(), there.local_addr().unwrap());
        assert!(Ingresses([gone].into()).call(Uri::default()).await.is_err());
        assert!(Ingresses([].into()).call(Uri::default()).await.is_err());
    }
}
