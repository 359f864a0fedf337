//! TLS to components: TLS 1.2 or newer, always verified, by authorities or by key.

mod pinned;

use std::sync::Arc;

use rustls::{
    ClientConfig, RootCertStore,
    client::{Resumption, VerifierBuilderError, WebPkiServerVerifier},
};
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, pem::PemObject};

pub use pinned::{PinnedClient, SubjectPublicKey, public_key};

/// Certificates or keys cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AgentTlsError {
    /// A value is not valid PEM.
    #[error("a certificate or key is not PEM")]
    Pem(#[source] rustls_pki_types::pem::Error),
    /// The TLS library refused a certificate or key.
    #[error("a certificate or key cannot be used for TLS")]
    Unusable(#[source] rustls::Error),
    /// The authorities and their revocation lists cannot verify any server.
    #[error("the authorities or their revocation list cannot verify certificates")]
    Verifier(#[source] VerifierBuilderError),
}

/// Returns a client configuration from PEM texts: the trusted authorities, and optionally a client certificate with its key.
pub fn client_from_pem(authorities: &[u8], identity: Option<(&[u8], &[u8])>) -> Result<ClientConfig, AgentTlsError> {
    client_without(authorities, None, identity)
}

/// The size of the session cache: eight sessions for each of the few servers of a client. The memory is allocated at once.
const SESSIONS: usize = 32;

/// As [`client_from_pem`], but refuses servers whose certificate is in the revocation list.
pub fn client_without(
    authorities: &[u8],
    revoked: Option<&[u8]>,
    identity: Option<(&[u8], &[u8])>,
) -> Result<ClientConfig, AgentTlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(authorities) {
        roots.add(certificate.map_err(AgentTlsError::Pem)?).map_err(AgentTlsError::Unusable)?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let lists = CertificateRevocationListDer::pem_slice_iter(revoked.unwrap_or_default());
    let lists = lists.collect::<Result<Vec<_>, _>>().map_err(AgentTlsError::Pem)?;
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider));
    let verifier = verifier.with_crls(lists).build().map_err(AgentTlsError::Verifier)?;
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(AgentTlsError::Unusable)?
        .with_webpki_verifier(verifier);
    let mut client = match identity {
        None => builder.with_no_client_auth(),
        Some((certificate, key)) => {
            let chain =
                CertificateDer::pem_slice_iter(certificate).collect::<Result<_, _>>().map_err(AgentTlsError::Pem)?;
            let key = PrivateKeyDer::from_pem_slice(key).map_err(AgentTlsError::Pem)?;
            builder.with_client_auth_cert(chain, key).map_err(AgentTlsError::Unusable)?
        }
    };
    client.resumption = Resumption::in_memory_sessions(SESSIONS);
    Ok(client)
}
