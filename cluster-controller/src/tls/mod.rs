//! Mutual TLS between Keelway's own parts: TLS 1.3, both sides under the authority `infrastructure`.
//!
//! Files are looked at before each handshake, and read again when they have changed. What cannot be used is logged once, and
//! what was used before goes on.

mod files;
mod identity;

use std::collections::BTreeSet;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use keelway_pki::CertificateFacts;
use keelway_vpn::error::Chain;
use rustls::{ClientConfig, ServerConfig};
use rustls_pki_types::ServerName;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{TlsAcceptor, TlsConnector, client, server};

use self::files::Current;

/// How long a handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(5);

/// The files of one identity, PEM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TlsFiles {
    /// The certificate, and those between it and the authority.
    pub certificate_file: PathBuf,
    /// Its private key.
    pub key_file: PathBuf,
    /// The certificates of the authority `infrastructure`: whom the other side is verified by.
    pub authority_file: PathBuf,
}

/// An identity cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or is not PEM.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: rustls_pki_types::pem::Error,
    },
    /// There is no certificate in a file.
    #[error("there is no certificate in {}", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
    },
    /// The TLS library refuses certificate, key or authority.
    #[error("certificate, key and authority cannot be used together")]
    Unusable(#[source] rustls::Error),
    /// No other side can be verified by the authority.
    #[error("the authority cannot verify anybody")]
    Verifier(#[source] rustls::server::VerifierBuilderError),
}

/// There is no connection to speak over.
#[derive(Debug, thiserror::Error)]
pub(crate) enum HandshakeError {
    /// The handshake failed.
    #[error("the TLS handshake failed")]
    Failed(#[source] io::Error),
    /// It took too long.
    #[error("no TLS handshake within {} s", HANDSHAKE.as_secs())]
    TimedOut,
    /// Whose certificate it is, is not among those that may speak here.
    #[error("{0:?} may not speak here")]
    Stranger(String),
}

/// The side that is asked.
pub(crate) struct Server {
    current: Current<ServerConfig>,
    clients: BTreeSet<String>,
}

impl Server {
    /// Takes clients whose certificate has one of those common names.
    pub(crate) fn new(files: TlsFiles, clients: BTreeSet<String>) -> Result<Self, TlsError> {
        Ok(Self { current: Current::new(files, identity::server)?, clients })
    }

    /// A handshake with whoever has connected.
    pub(crate) async fn accept<S>(&self, stream: S) -> Result<server::TlsStream<S>, HandshakeError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let acceptor = TlsAcceptor::from(self.current.get());
        let accepted = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await;
        let stream = accepted.map_err(|_| HandshakeError::TimedOut)?.map_err(HandshakeError::Failed)?;
        let name = common_name(&stream);
        if self.clients.contains(&name) { Ok(stream) } else { Err(HandshakeError::Stranger(name)) }
    }
}

fn common_name<S>(stream: &server::TlsStream<S>) -> String {
    let certificates = stream.get_ref().1.peer_certificates().unwrap_or_default();
    let facts = certificates.first().map(|certificate| CertificateFacts::from_der(certificate));
    let facts = facts
        .and_then(|facts| facts.inspect_err(|error| tracing::debug!("a client's certificate: {}", Chain(error))).ok());
    facts.and_then(|facts| facts.common_name).unwrap_or_default()
}

/// The side that asks.
pub(crate) struct Client {
    current: Current<ClientConfig>,
}

impl Client {
    /// Shows the certificate of those files.
    pub(crate) fn new(files: TlsFiles) -> Result<Self, TlsError> {
        Ok(Self { current: Current::new(files, identity::client)? })
    }

    /// A handshake with a server that must prove to be `name`.
    pub(crate) async fn connect<S>(
        &self,
        name: ServerName<'static>,
        stream: S,
    ) -> Result<client::TlsStream<S>, HandshakeError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let connector = TlsConnector::from(self.current.get());
        let connected = tokio::time::timeout(HANDSHAKE, connector.connect(name, stream)).await;
        connected.map_err(|_| HandshakeError::TimedOut)?.map_err(HandshakeError::Failed)
    }
}
