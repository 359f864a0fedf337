//! The side that asks.

use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::current::Current;
use crate::{HANDSHAKE, HandshakeError, TlsError, TlsFiles, identity};

/// The side that asks.
#[derive(Debug)]
pub struct Client {
    current: Current<ClientConfig>,
}

impl Client {
    /// Shows the certificate of those files.
    pub fn new(files: TlsFiles) -> Result<Self, TlsError> {
        Ok(Self { current: Current::new(files, identity::client)? })
    }

    /// A handshake with a server that must prove to be `name`.
    pub async fn connect<S>(&self, name: ServerName<'static>, stream: S) -> Result<TlsStream<S>, HandshakeError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let connector = TlsConnector::from(self.current.get());
        let connected = tokio::time::timeout(HANDSHAKE, connector.connect(name, stream)).await;
        connected.map_err(|_| HandshakeError::TimedOut)?.map_err(HandshakeError::Failed)
    }
}
