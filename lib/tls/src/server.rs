//! The server of a TLS connection.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use keelway_pki::{CertificateError, CertificateFacts};
use rustls::ServerConfig;
use rustls::server::danger::ClientCertVerifier;
use rustls_pki_types::{CertificateDer, UnixTime};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::current::Current;
use crate::{GreetedConnection, HANDSHAKE, HandshakeError, TlsError, TlsFiles, identity};

/// How often the certificates of connected clients are verified again: as often as files are checked if no event causes a check.
const LOOK: Duration = Duration::from_secs(2);

/// A peer is not authorized.
#[derive(Debug, thiserror::Error)]
pub enum UnauthorizedPeer {
    /// The peer presented no certificate.
    #[error("the client presents no certificate")]
    Nobody,
    /// The authority does not vouch for the certificate: it is another authority's, or it has ended, or it is revoked.
    #[error("the client's certificate is not valid")]
    Void(#[source] rustls::Error),
    /// The certificate cannot be parsed.
    #[error("cannot read the client's certificate")]
    Unreadable(#[source] CertificateError),
    /// The common name is not one of those that the server accepts.
    #[error("{0:?} is not authorized")]
    Role(String),
    /// The certificate belongs to another installation.
    #[error("{name:?} of {of:?} is not authorized")]
    Installation {
        /// The common name.
        name: String,
        /// The organizations.
        of: Vec<String>,
    },
}

/// The contents of the certificate that a peer presented.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerCertificate {
    /// The common name.
    pub common_name: String,
    /// The DNS names.
    pub dns_names: Vec<String>,
}

impl PeerCertificate {
    /// Returns the certificate of the client of an accepted connection.
    pub fn of<S>(stream: &TlsStream<S>) -> Result<Self, UnauthorizedPeer> {
        let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first).ok_or(UnauthorizedPeer::Nobody)?;
        let facts = CertificateFacts::from_der(shown).map_err(UnauthorizedPeer::Unreadable)?;
        Ok(Self { common_name: facts.common_name.unwrap_or_default(), dns_names: facts.dns_names })
    }
}

/// What a server builds from its files.
#[derive(Debug)]
pub(crate) struct ServerConfiguration {
    pub(crate) config: Arc<ServerConfig>,
    pub(crate) verifier: Arc<dyn ClientCertVerifier>,
    /// Of its own certificate.
    pub(crate) organizations: Vec<String>,
}

/// The server of a TLS connection.
#[derive(Debug)]
pub struct TlsServer {
    current: Current<ServerConfiguration>,
    clients: BTreeSet<String>,
    of_own_organization: bool,
    protocols: Vec<Vec<u8>>,
}

impl TlsServer {
    /// Returns a server that accepts clients whose certificate has one of these common names.
    pub fn new(files: TlsFiles, clients: BTreeSet<String>) -> Result<Self, TlsError> {
        Ok(Self {
            current: Current::new(files, identity::server)?,
            clients,
            of_own_organization: false,
            protocols: Vec::new(),
        })
    }

    /// Also requires that a client has the organizations of the server's own certificate. They identify the installation.
    #[must_use]
    pub fn of_own_organization(self) -> Self {
        Self { of_own_organization: true, ..self }
    }

    /// Offers these protocols to clients that request one (ALPN), in order of preference.
    #[must_use]
    pub fn with_protocols(self, protocols: &[&str]) -> Self {
        Self { protocols: protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect(), ..self }
    }

    /// Performs a handshake with a client that has connected.
    pub async fn accept<S>(&self, stream: S) -> Result<TlsStream<S>, HandshakeError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let acceptor = TlsAcceptor::from(self.config());
        let accepted = timeout(HANDSHAKE, acceptor.accept(stream)).await;
        self.admit(accepted.map_err(|_| HandshakeError::TimedOut)?.map_err(HandshakeError::Failed)?)
    }

    /// Completes the handshake with a client that has sent its greeting.
    pub async fn finish<S>(&self, greeted: GreetedConnection<S>) -> Result<TlsStream<S>, HandshakeError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        self.admit(greeted.finish(self.config()).await?)
    }

    fn config(&self) -> Arc<ServerConfig> {
        let mut config = Arc::clone(&self.current.get().config);
        if !self.protocols.is_empty() {
            Arc::make_mut(&mut config).alpn_protocols.clone_from(&self.protocols);
        }
        config
    }

    fn admit<S>(&self, stream: TlsStream<S>) -> Result<TlsStream<S>, HandshakeError> {
        // A resumed session is verified too: its certificate was verified only when the session began.
        self.verify_client(stream.get_ref().1.peer_certificates().unwrap_or_default(), UnixTime::now())?;
        Ok(stream)
    }

    /// Waits until a certificate with its intermediates is no longer accepted, and returns the reason.
    pub async fn refuses(&self, shown: &[CertificateDer<'_>]) -> UnauthorizedPeer {
        let mut looks = interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            looks.tick().await;
            if let Err(unwanted) = self.verify_client(shown, UnixTime::now()) {
                return unwanted;
            }
        }
    }

    fn verify_client(&self, shown: &[CertificateDer<'_>], now: UnixTime) -> Result<(), UnauthorizedPeer> {
        let (own, between) = shown.split_first().ok_or(UnauthorizedPeer::Nobody)?;
        let current = self.current.get();
        current.verifier.verify_client_cert(own, between, now).map_err(UnauthorizedPeer::Void)?;
        let facts = CertificateFacts::from_der(own).map_err(UnauthorizedPeer::Unreadable)?;
        let name = facts.common_name.unwrap_or_default();
        if !self.clients.contains(&name) {
            return Err(UnauthorizedPeer::Role(name));
        }
        if self.of_own_organization && facts.organizations != current.organizations {
            return Err(UnauthorizedPeer::Installation { name, of: facts.organizations });
        }
        Ok(())
    }
}
