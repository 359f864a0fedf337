//! Verifies that an endpoint's certificate chain contains an authority of the token, before any secret is sent there.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::future::join_all;
use jiff::Timestamp;
use keelway_http_proxy::HttpProxies;
use keelway_pki::{CertificateFacts, JoinToken};
use keelway_tls::https::{self, GetError};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error as TlsError, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
};
use rustls_pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::time::timeout;

pub(crate) use keelway_api::worker::API_SERVER_NAME as SERVER_NAME;
/// How long the check of one endpoint may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// An endpoint whose chain contains an authority of the token.
#[derive(Debug, Clone)]
pub(crate) struct TrustedEndpoint {
    pub(crate) endpoint: SocketAddr,
    /// The certificate of the authority.
    pub(crate) authority: CertificateDer<'static>,
    /// The time of the endpoint, from its `Date` header.
    pub(crate) date: Option<Timestamp>,
}

/// Why an endpoint is not trusted.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// The endpoint cannot be reached.
    #[error("is unreachable")]
    Connect(#[source] io::Error),
    /// The endpoint does not respond.
    #[error("did not respond within {} s", PATIENCE.as_secs())]
    Silent,
    /// The chain contains no authority of the token.
    #[error("presented no authority of the token: it belongs to another cluster, or the connection is intercepted")]
    Stranger,
    /// A certificate of the chain is not valid at this machine's time.
    #[error("presented a certificate that is not valid at this machine's time; set the clock")]
    Clock,
    /// The TLS connection or the response is invalid.
    #[error("cannot be trusted")]
    Tls(#[source] GetError),
    /// TLS cannot be set up on this machine.
    #[error("cannot be queried over TLS")]
    Unusable(#[source] TlsError),
}

impl EndpointError {
    /// Whether the endpoint closed the connection before a certificate was seen.
    pub(crate) fn is_closed(&self) -> bool {
        let Self::Tls(GetError::Connect(source)) = self else { return false };
        matches!(source.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset)
    }
}

/// Checks all endpoints concurrently. Returns the trusted ones, in the token's order, and the others with their errors.
pub(crate) async fn check_endpoints(
    token: &JoinToken,
    proxies: &HttpProxies,
) -> (Vec<TrustedEndpoint>, Vec<(SocketAddr, EndpointError)>) {
    let looks =
        token.endpoints.iter().map(|endpoint| async move { (*endpoint, look_at(token, *endpoint, proxies).await) });
    let mut trusted = Vec::new();
    let mut others = Vec::new();
    for (endpoint, outcome) in join_all(looks).await {
        match outcome {
            Ok(found) => trusted.push(found),
            Err(error) => others.push((endpoint, error)),
        }
    }
    (trusted, others)
}

async fn look_at(
    token: &JoinToken,
    endpoint: SocketAddr,
    proxies: &HttpProxies,
) -> Result<TrustedEndpoint, EndpointError> {
    let provider = Arc::new(ring::default_provider());
    let pinned =
        Arc::new(PinnedVerifier { token: token.clone(), provider: Arc::clone(&provider), found: Mutex::default() });
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(EndpointError::Unusable)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::clone(&pinned) as Arc<dyn ServerCertVerifier>)
        .with_no_client_auth();
    // A resumed session sends no chain.
    config.resumption = rustls::client::Resumption::disabled();
    let asked = async {
        let stream = proxies.connect(endpoint).await.map_err(EndpointError::Connect)?;
        https::head(Arc::new(config), SERVER_NAME, stream, endpoint, "/readyz").await.map_err(understood)
    };
    let head = timeout(PATIENCE, asked).await.map_err(|_| EndpointError::Silent)??;
    let date = head.headers.get(http::header::DATE).and_then(|date| date.to_str().ok());
    let date = date.and_then(|date| jiff::fmt::rfc2822::parse(date).ok()).map(|date| date.timestamp());
    let authority = pinned.found.lock().unwrap_or_else(PoisonError::into_inner).clone();
    Ok(TrustedEndpoint { endpoint, authority: authority.ok_or(EndpointError::Stranger)?, date })
}

/// Returns why TLS refused a connection.
pub(crate) fn handshake_error(error: &GetError) -> Option<&TlsError> {
    let GetError::Connect(source) = error else { return None };
    source.get_ref().and_then(|inner| inner.downcast_ref::<TlsError>())
}

/// Maps TLS errors that the user can fix to their own variants.
fn understood(error: GetError) -> EndpointError {
    match handshake_error(&error) {
        Some(TlsError::InvalidCertificate(CertificateError::UnknownIssuer)) => EndpointError::Stranger,
        Some(TlsError::InvalidCertificate(
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. },
        )) => EndpointError::Clock,
        Some(_) | None => EndpointError::Tls(error),
    }
}

/// Trusts a chain that ends in an authority of the token, and no other.
#[derive(Debug)]
struct PinnedVerifier {
    token: JoinToken,
    provider: Arc<CryptoProvider>,
    found: Mutex<Option<CertificateDer<'static>>>,
}

impl PinnedVerifier {
    fn is_named(&self, certificate: &CertificateDer<'_>) -> bool {
        let is_authority = CertificateFacts::from_der(certificate).is_ok_and(|facts| facts.is_authority);
        is_authority && self.token.names(certificate).unwrap_or(false)
    }
}

impl ServerCertVerifier for PinnedVerifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, TlsError> {
        let mut last = TlsError::InvalidCertificate(CertificateError::UnknownIssuer);
        for authority in intermediates.iter().filter(|certificate| self.is_named(certificate)) {
            let mut roots = RootCertStore::empty();
            roots.add(authority.clone().into_owned())?;
            let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&self.provider))
                .build()
                .map_err(|error| TlsError::General(error.to_string()))?;
            match verifier.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now) {
                Ok(holds) => {
                    *self.found.lock().unwrap_or_else(PoisonError::into_inner) = Some(authority.clone().into_owned());
                    return Ok(holds);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        verify_tls12_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, TlsError> {
        verify_tls13_signature(message, certificate, signed, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
