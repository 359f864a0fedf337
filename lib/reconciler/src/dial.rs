//! HTTP over TLS, over a connection that a machine opens.

use std::{future::Future, net::SocketAddr, pin::Pin, sync::Arc, task, time::Duration};

use http::Uri;
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::rt::TokioIo;
use keelway_api::Hypervisor;
use keelway_cri::proxy::connection::MachineConnection;
use rustls::ClientConfig;
use tower::Service;

use crate::Machines;

/// The time limit for a connection within a private network.
pub(crate) const DIAL: Duration = Duration::from_secs(2);

/// Connects to one address from within a machine's network. The host of a request's URI is used for the server's certificate only.
#[derive(Clone)]
pub(crate) struct Dialler {
    machines: Arc<dyn Machines>,
    machine: Arc<Hypervisor>,
    address: SocketAddr,
}

impl Dialler {
    pub(crate) fn new(machines: Arc<dyn Machines>, machine: &Hypervisor, address: SocketAddr) -> Self {
        Self { machines, machine: Arc::new(machine.clone()), address }
    }

    /// Returns this connector with TLS on top.
    pub(crate) fn https(self, config: ClientConfig) -> HttpsConnector<Self> {
        HttpsConnectorBuilder::new().with_tls_config(config).https_only().enable_http1().wrap_connector(self)
    }
}

impl Service<Uri> for Dialler {
    type Response = TokioIo<MachineConnection>;
    type Error = std::io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, _context: &mut task::Context<'_>) -> task::Poll<Result<(), Self::Error>> {
        task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, _uri: Uri) -> Self::Future {
        let Self { machines, machine, address } = self.clone();
        Box::pin(async move { Ok(TokioIo::new(machines.dial(&machine, address, DIAL).await?)) })
    }
}
