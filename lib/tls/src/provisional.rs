//! Connections of two parties that do not know each other's certificates yet, and prove their identities over the connection.

use std::io;
use std::sync::Arc;

use keelway_pki::ProvenChannel;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls12_signature, verify_tls13_signature};
use rustls::{
    ClientConfig, ConnectionCommon, DigitallySignedStruct, Error, ServerConfig, SideData, SignatureScheme, version,
};
use rustls_pki_types::pem::PemObject;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::{Instant, timeout, timeout_at};
use tokio_rustls::server::StartHandshake;
use tokio_rustls::{LazyConfigAcceptor, TlsConnector, client, server};

use crate::{HANDSHAKE, HandshakeError, TlsError, identity};

/// The protocol of a connection that enrolls a machine (ALPN, RFC 7301).
const ENROLLING: &[u8] = b"keelway-enrol/1";

/// A client that has connected and sent its greeting.
pub struct GreetedConnection<S> {
    begun: StartHandshake<S>,
    /// The deadline of the handshake.
    until: Instant,
}

/// Waits for the greeting of a client that has connected. The greeting names the protocol.
pub async fn read_client_hello<S: AsyncRead + AsyncWrite + Unpin>(
    stream: S,
) -> Result<GreetedConnection<S>, HandshakeError> {
    let until = Instant::now() + HANDSHAKE;
    let greeting = LazyConfigAcceptor::new(rustls::server::Acceptor::default(), stream);
    let begun = timeout_at(until, greeting).await.map_err(|_| HandshakeError::TimedOut)?;
    Ok(GreetedConnection { begun: begun.map_err(HandshakeError::Failed)?, until })
}

impl<S: AsyncRead + AsyncWrite + Unpin> GreetedConnection<S> {
    /// Returns whether the client connects to enroll the machine.
    pub fn is_to_enroll(&self) -> bool {
        self.begun.client_hello().alpn().is_some_and(|mut protocols| protocols.any(|protocol| protocol == ENROLLING))
    }

    /// Completes the handshake in the time that is left.
    pub(crate) async fn finish(self, config: Arc<ServerConfig>) -> Result<server::TlsStream<S>, HandshakeError> {
        let finished = timeout_at(self.until, self.begun.into_stream(config)).await;
        finished.map_err(|_| HandshakeError::TimedOut)?.map_err(HandshakeError::Failed)
    }
}

/// The server of an agent that has no certificate of an authority.
#[derive(Debug)]
pub struct ProvisionalServer {
    config: Arc<ServerConfig>,
    own: CertificateDer<'static>,
}

impl ProvisionalServer {
    /// Returns a server with a certificate and its key, in PEM.
    pub fn new(certificate: &str, key: &str) -> Result<Self, TlsError> {
        let own = CertificateDer::from_pem_slice(certificate.as_bytes()).map_err(TlsError::Pem)?;
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).map_err(TlsError::Pem)?;
        let mut config = ServerConfig::builder_with_provider(identity::provider())
            .with_protocol_versions(&[&version::TLS13])
            .map_err(TlsError::Unusable)?
            .with_no_client_auth()
            .with_single_cert(vec![own.clone()], key)
            .map_err(TlsError::Unusable)?;
        config.alpn_protocols = vec![ENROLLING.to_vec()];
        // Each connection is proven separately, so none is resumed.
        config.send_tls13_tickets = 0;
        Ok(Self { config: Arc::new(config), own })
    }

    /// Completes the handshake with a client. The connection is private, but the client's identity is unknown.
    pub async fn finish<S>(
        &self,
        greeted: GreetedConnection<S>,
    ) -> Result<(server::TlsStream<S>, ProvenChannel), HandshakeError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let stream = greeted.finish(Arc::clone(&self.config)).await?;
        let channel = channel(stream.get_ref().1, &self.own)?;
        Ok((stream, channel))
    }
}

/// Connects to a machine that is to be enrolled, whichever certificate it presents. The connection is private, but the machine's identity is
/// unknown.
pub async fn connect_unverified<S>(
    name: ServerName<'static>,
    stream: S,
) -> Result<(client::TlsStream<S>, ProvenChannel), HandshakeError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let connector = TlsConnector::from(Arc::new(
        any_certificate_config().map_err(|error| HandshakeError::Failed(io::Error::other(error)))?,
    ));
    let connected = timeout(HANDSHAKE, connector.connect(name, stream)).await;
    let stream = connected.map_err(|_| HandshakeError::TimedOut)?.map_err(HandshakeError::Failed)?;
    let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first).cloned();
    let shown = shown.ok_or_else(|| HandshakeError::Failed(io::ErrorKind::InvalidData.into()))?;
    let channel = channel(stream.get_ref().1, &shown)?;
    Ok((stream, channel))
}

fn channel<D: SideData>(
    connection: &ConnectionCommon<D>,
    agent: &CertificateDer<'_>,
) -> Result<ProvenChannel, HandshakeError> {
    let exported = connection.export_keying_material([0; 32], ProvenChannel::LABEL, None);
    let exported = exported.map_err(|error| HandshakeError::Failed(io::Error::other(error)))?;
    Ok(ProvenChannel::new(exported, agent))
}

fn any_certificate_config() -> Result<ClientConfig, Error> {
    let provider = identity::provider();
    let verifier = AnyCertificateVerifier(provider.signature_verification_algorithms);
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    config.alpn_protocols = vec![ENROLLING.to_vec()];
    Ok(config)
}

/// Accepts any certificate whose key the server has. The token proves the server's identity over the connection.
#[derive(Debug)]
struct AnyCertificateVerifier(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for AnyCertificateVerifier {
    fn verify_server_cert(
        &self,
        _own: &CertificateDer<'_>,
        _between: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        _ocsp: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        own: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, own, signed, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        own: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, own, signed, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}
