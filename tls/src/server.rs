//! The side that is asked.

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

/// How often it is asked whether those who speak still may: as often as files are looked at that nothing else makes somebody
/// look at.
const LOOK: Duration = Duration::from_secs(2);

/// Whose certificate it is, may not speak here.
#[derive(Debug, thiserror::Error)]
pub enum UnauthorizedPeer {
    /// It showed none.
    #[error("there is no certificate")]
    Nobody,
    /// The authority does not answer for it: it is another's, ended, or revoked.
    #[error("the certificate does not hold")]
    Void(#[source] rustls::Error),
    /// It cannot be made out.
    #[error("the certificate cannot be read")]
    Unreadable(#[source] CertificateError),
    /// It has another part in the installation.
    #[error("{0:?} may not speak here")]
    Role(String),
    /// It is of another installation.
    #[error("{name:?} of {of:?} may not speak here")]
    Installation {
        /// Its common name.
        name: String,
        /// Its organizations.
        of: Vec<String>,
    },
}

/// Who showed a certificate, by what is in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerCertificate {
    /// Its common name.
    pub common_name: String,
    /// Its DNS names.
    pub dns_names: Vec<String>,
}

impl PeerCertificate {
    /// Who is at the other side of a connection that was accepted.
    pub fn of<S>(stream: &TlsStream<S>) -> Result<Self, UnauthorizedPeer> {
        let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first).ok_or(UnauthorizedPeer::Nobody)?;
        let facts = CertificateFacts::from_der(shown).map_err(UnauthorizedPeer::Unreadable)?;
        Ok(Self { common_name: facts.common_name.unwrap_or_default(), dns_names: facts.dns_names })
    }
}

/// What a server has of its files.
#[derive(Debug)]
pub(crate) struct ServerConfiguration {
    pub(crate) config: Arc<ServerConfig>,
    pub(crate) verifier: Arc<dyn ClientCertVerifier>,
    /// Those of its own certificate.
    pub(crate) organizations: Vec<String>,
}

/// The side that is asked.
#[derive(Debug)]
pub struct TlsServer {
    current: Current<ServerConfiguration>,
    clients: BTreeSet<String>,
    of_own_organization: bool,
    protocols: Vec<Vec<u8>>,
}

impl TlsServer {
    /// Takes clients whose certificate has one of those common names.
    pub fn new(files: TlsFiles, clients: BTreeSet<String>) -> Result<Self, TlsError> {
        Ok(Self {
            current: Current::new(files, identity::server)?,
            clients,
            of_own_organization: false,
            protocols: Vec::new(),
        })
    }

    /// Of those only who is of the same organization as the server's own certificate: an installation is one.
    #[must_use]
    pub fn of_own_organization(self) -> Self {
        Self { of_own_organization: true, ..self }
    }

    /// Tells clients that ask for it which protocols are spoken here (ALPN), the first one rather than the others.
    #[must_use]
    pub fn with_protocols(self, protocols: &[&str]) -> Self {
        Self { protocols: protocols.iter().map(|protocol| protocol.as_bytes().to_vec()).collect(), ..self }
    }

    /// A handshake with whoever has connected.
    pub async fn accept<S>(&self, stream: S) -> Result<TlsStream<S>, HandshakeError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let acceptor = TlsAcceptor::from(self.config());
        let accepted = timeout(HANDSHAKE, acceptor.accept(stream)).await;
        self.admit(accepted.map_err(|_| HandshakeError::TimedOut)?.map_err(HandshakeError::Failed)?)
    }

    /// The same with somebody who has begun to speak.
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
        // Also of a session that is resumed, whose certificate was verified when it began.
        self.verify_client(stream.get_ref().1.peer_certificates().unwrap_or_default(), UnixTime::now())?;
        Ok(stream)
    }

    /// Waits until a certificate would not be taken any more, with those between it and the authority, and tells why.
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
