//! The client of a TLS connection.

use std::sync::Arc;

use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::current::Current;
use crate::{HANDSHAKE, HandshakeError, TlsError, TlsFiles, identity};

/// The client of a TLS connection.
#[derive(Debug)]
pub struct TlsClient {
    shown: PresentedIdentity,
}

/// The source of the certificate that it presents.
#[derive(Debug)]
enum PresentedIdentity {
    Files(Current<ClientConfig>),
    Always(Arc<ClientConfig>),
}

impl TlsClient {
    /// Returns a client that presents the certificate of these files.
    pub fn new(files: TlsFiles) -> Result<Self, TlsError> {
        Ok(Self { shown: PresentedIdentity::Files(Current::new(files, identity::client)?) })
    }

    /// Returns a client that presents the certificate of this configuration and uses its trust anchors.
    #[must_use]
    pub fn of(config: Arc<ClientConfig>) -> Self {
        Self { shown: PresentedIdentity::Always(config) }
    }

    /// Performs a handshake with a server that has to prove that it is `name`.
    pub async fn connect<S>(&self, name: ServerName<'static>, stream: S) -> Result<TlsStream<S>, HandshakeError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let config = match &self.shown {
            PresentedIdentity::Files(current) => current.get(),
            PresentedIdentity::Always(config) => Arc::clone(config),
        };
        let connector = TlsConnector::from(config);
        let connected = tokio::time::timeout(HANDSHAKE, connector.connect(name, stream)).await;
        connected.map_err(|_| HandshakeError::TimedOut)?.map_err(HandshakeError::Failed)
    }
}
