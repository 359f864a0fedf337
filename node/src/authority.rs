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

use crate::ingress_names::{IngressResolver, resolve_names};

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
    /// A name of the token cannot be resolved.
    #[error("cannot be resolved")]
    Unresolved(#[source] io::Error),
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

/// The outcome of the check of several endpoints.
#[derive(Debug, Default)]
pub(crate) struct CheckedEndpoints {
    pub(crate) trusted: Vec<TrustedEndpoint>,
    /// Addresses and names of the others, with their errors.
    pub(crate) refused: Vec<(String, EndpointError)>,
}

impl CheckedEndpoints {
    /// Checks endpoints concurrently. Each has a text that identifies it in errors.
    async fn check(
        &mut self,
        token: &JoinToken,
        endpoints: impl IntoIterator<Item = (SocketAddr, String)>,
        proxies: &HttpProxies,
    ) {
        let looks = endpoints
            .into_iter()
            .map(|(endpoint, text)| async move { (text, look_at(token, endpoint, proxies).await) });
        for (text, outcome) in join_all(looks).await {
            match outcome {
                Ok(found) => self.trusted.push(found),
                Err(error) => self.refused.push((text, error)),
            }
        }
    }
}

/// Checks all endpoints of the token. If none of them is trusted, resolves its names, and checks the addresses that the token does not contain: the
/// ingresses may have moved since the token was created. The trusted ones are in the token's order.
pub(crate) async fn check_endpoints(
    token: &JoinToken,
    proxies: &HttpProxies,
    resolver: &impl IngressResolver,
) -> CheckedEndpoints {
    let mut checked = CheckedEndpoints::default();
    let endpoints = token.endpoints.iter().map(|endpoint| (*endpoint, endpoint.to_string()));
    checked.check(token, endpoints, proxies).await;
    let Some(port) = token.endpoints.first().map(SocketAddr::port).filter(|_| checked.trusted.is_empty()) else {
        return checked;
    };
    let of_names = resolve_names(resolver, &token.names, port).await;
    let others = of_names.addresses.into_iter().filter(|(address, _)| !token.endpoints.contains(address));
    let others = others.map(|(address, name)| (address, format!("{address} ({name})")));
    checked.check(token, others, proxies).await;
    let failures = of_names.failures.into_iter().map(|(name, error)| (name, EndpointError::Unresolved(error)));
    checked.refused.extend(failures);
    checked
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        loopback_server::{LoopbackAuthority, LoopbackServer},
        samples::LocalResolver,
    };

    const NAME: &str = "api.example.com";

    /// A token of a cluster with a name, whose ingress was at this address.
    fn token(authority: &LoopbackAuthority, endpoint: SocketAddr) -> JoinToken {
        JoinToken {
            endpoints: vec![endpoint],
            names: vec![NAME.to_owned()],
            authorities: vec![authority.hash()],
            bootstrap: "abcdef.0123456789abcdef".parse().unwrap(),
        }
    }

    async fn checked(token: &JoinToken, resolver: &LocalResolver) -> CheckedEndpoints {
        check_endpoints(token, &HttpProxies::default(), resolver).await
    }

    fn refusals(checked: &CheckedEndpoints) -> Vec<(&str, &EndpointError)> {
        checked.refused.iter().map(|(text, error)| (text.as_str(), error)).collect()
    }

    /// Of the addresses of the name, one belongs to another cluster, and one is in the token.
    #[tokio::test]
    async fn an_ingress_that_moved_is_found_by_name() {
        let (cluster, stranger) = (LoopbackAuthority::new(1), LoopbackAuthority::new(2));
        let moved = LoopbackServer::ingress("127.0.0.6:0", &cluster).await;
        let other = LoopbackServer::ingress(moved.beside("127.0.0.7"), &stranger).await;
        let gone = moved.beside("127.0.0.9");
        let resolver = LocalResolver::default();
        resolver.set(NAME, &["127.0.0.9", "127.0.0.7", "127.0.0.6"]);

        let checked = checked(&token(&cluster, gone), &resolver).await;
        let trusted: Vec<SocketAddr> = checked.trusted.iter().map(|found| found.endpoint).collect();
        assert_eq!(trusted, [moved.address]);
        let (gone, named) = (gone.to_string(), format!("{} ({NAME})", other.address));
        assert!(
            matches!(refusals(&checked)[..], [(first, EndpointError::Connect(_)), (second, EndpointError::Stranger)]
                if first == gone && second == named),
            "{checked:?}"
        );
        assert_eq!((other.connections(), other.received()), (1, vec![]));
    }

    #[tokio::test]
    async fn a_name_that_leads_to_another_cluster_is_not_trusted() {
        let (cluster, stranger) = (LoopbackAuthority::new(1), LoopbackAuthority::new(2));
        let other = LoopbackServer::ingress("127.0.0.8:0", &stranger).await;
        let resolver = LocalResolver::default();
        resolver.set(NAME, &["127.0.0.8"]);
        let by_name = checked(&token(&cluster, other.beside("127.0.0.9")), &resolver).await;
        let by_address = checked(&token(&cluster, other.address), &LocalResolver::default()).await;
        assert!(by_name.trusted.is_empty() && by_address.trusted.is_empty());
        assert!(matches!(by_name.refused[..], [_, (_, EndpointError::Stranger)]), "{by_name:?}");
        assert!(matches!(by_address.refused[0], (_, EndpointError::Stranger)), "{by_address:?}");
        assert_eq!((other.connections(), other.received()), (2, vec![]));
    }

    #[tokio::test]
    async fn no_name_is_resolved_while_an_address_is_trusted() {
        let cluster = LoopbackAuthority::new(1);
        let ingress = LoopbackServer::ingress("127.0.0.5:0", &cluster).await;
        let resolver = LocalResolver::default();
        let checked = checked(&token(&cluster, ingress.address), &resolver).await;
        assert_eq!((checked.trusted.len(), resolver.queries()), (1, 0));
    }

    #[tokio::test]
    async fn a_name_that_cannot_be_resolved_is_reported() {
        let cluster = LoopbackAuthority::new(1);
        let ingress = LoopbackServer::ingress("127.0.0.5:0", &cluster).await;
        let checked = checked(&token(&cluster, ingress.beside("127.0.0.9")), &LocalResolver::default()).await;
        assert!(matches!(refusals(&checked)[..], [_, (NAME, EndpointError::Unresolved(_))]), "{checked:?}");
    }
}
