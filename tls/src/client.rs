//! The side that asks.

use std::sync::Arc;

use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::current::Current;
use crate::{HANDSHAKE, HandshakeError, TlsError, TlsFiles, identity};

/// The side that asks.
#[derive(Debug)]
pub struct TlsClient {
    shown: PresentedIdentity,
}

/// What it shows.
#[derive(Debug)]
enum PresentedIdentity {
    Files(Current<ClientConfig>),
    Always(Arc<ClientConfig>),
}

impl TlsClient {
    /// Shows the certificate of those files.
    pub fn new(files: TlsFiles) -> Result<Self, TlsError> {
        Ok(Self { shown: PresentedIdentity::Files(Current::new(files, identity::client)?) })
    }

    /// Shows the certificate of this configuration, and goes by whom it trusts.
    #[must_use]
    pub fn of(config: Arc<ClientConfig>) -> Self {
        Self { shown: PresentedIdentity::Always(config) }
    }

    /// A handshake with a server that must prove to be `name`.
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
