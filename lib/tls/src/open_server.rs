//! The server of TLS connections whose clients have no certificate, because another protocol inside authenticates them.

use std::sync::Arc;

use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::current::Current;
use crate::{HANDSHAKE, HandshakeError, TlsError, TlsFiles, identity};

/// A server that proves its own identity and accepts any client. It speaks some application protocols (ALPN).
#[derive(Debug)]
pub struct OpenTlsServer {
    current: Current<ServerConfig>,
    protocols: &'static [&'static str],
}

impl OpenTlsServer {
    /// Creates a server. It fails if the files cannot be used.
    pub fn new(files: TlsFiles, protocols: &'static [&'static str]) -> Result<Self, TlsError> {
        Ok(Self { current: Current::new(files, identity::open_server)?, protocols })
    }

    /// Accepts a connection of a client that speaks one of the protocols, and returns it with that protocol. It fails after a deadline.
    pub async fn accept<S>(&self, stream: S) -> Result<(TlsStream<S>, &'static str), HandshakeError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let mut config = self.current.get();
        Arc::make_mut(&mut config).alpn_protocols =
            self.protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect();
        let accepted = timeout(HANDSHAKE, TlsAcceptor::from(config).accept(stream)).await;
        let stream = accepted.map_err(|_| HandshakeError::TimedOut)?.map_err(HandshakeError::Failed)?;
        // A client that names no protocol at all gets through the negotiation.
        let chosen = stream.get_ref().1.alpn_protocol();
        let known = self.protocols.iter().find(|protocol| chosen == Some(protocol.as_bytes()));
        let protocol = *known.ok_or(HandshakeError::Protocol(self.protocols))?;
        Ok((stream, protocol))
    }
}
