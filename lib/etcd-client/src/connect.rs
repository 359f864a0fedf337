//! The connection to one member.

use std::{future::Future, io, sync::Arc, time::Duration};

use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls_pki_types::{InvalidDnsNameError, ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint};

/// How long a connection with calls can be silent before it is checked, and then how long the member may take to respond.
const SILENCE: Duration = Duration::from_secs(10);

/// How a client and one member authenticate each other.
#[derive(Debug, Clone)]
pub struct MemberTls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl MemberTls {
    /// Uses the authorities and the client certificate of `config`. The member must prove that its name is `name`.
    pub fn new(config: &ClientConfig, name: &str) -> Result<Self, InvalidDnsNameError> {
        let mut config = config.clone();
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Self { config: Arc::new(config), name: ServerName::try_from(name.to_owned())? })
    }
}

/// Returns a channel over the connections that `dial` opens. It connects with its first call, and again after a connection broke.
pub(crate) fn channel<D, F, S>(tls: MemberTls, dial: D) -> Channel
where
    D: Fn() -> F + Send + Sync + 'static,
    F: Future<Output = io::Result<S>> + Send + 'static,
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let connector = tower::service_fn(move |_: http::Uri| {
        let (dialling, MemberTls { config, name }) = (dial(), tls.clone());
        async move { Ok::<_, io::Error>(TokioIo::new(TlsConnector::from(config).connect(name, dialling.await?).await?)) }
    });
    // The connector ignores the name, and does the TLS handshake.
    Endpoint::from_static("http://etcd")
        .http2_keep_alive_interval(SILENCE)
        .keep_alive_timeout(SILENCE)
        .connect_with_connector_lazy(connector)
}
