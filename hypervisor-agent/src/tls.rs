//! TLS towards components: TLS 1.2 or newer, always verified, by authorities or by key.

mod pinned;

use std::sync::Arc;

use rustls::{
    ClientConfig, RootCertStore,
    client::{Resumption, VerifierBuilderError, WebPkiServerVerifier},
};
use rustls_pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer, pem::PemObject};

pub(crate) use pinned::{PinnedClient, SubjectPublicKey, public_key};

/// Certificates that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum AgentTlsError {
    /// A value is not the PEM that it should be.
    #[error("a certificate or key is not PEM")]
    Pem(#[source] rustls_pki_types::pem::Error),
    /// The TLS library refuses what it was given.
    #[error("a certificate or key cannot be used for TLS")]
    Unusable(#[source] rustls::Error),
    /// No server can be verified by the authorities and what they revoked.
    #[error("the authorities, or the list of what they revoked, cannot verify anybody")]
    Verifier(#[source] VerifierBuilderError),
}

/// A client from PEM texts: the authorities that it trusts, and a certificate with its key where it shows one.
pub fn client_from_pem(authorities: &[u8], identity: Option<(&[u8], &[u8])>) -> Result<ClientConfig, AgentTlsError> {
    client_without(authorities, None, identity)
}

/// Room for the sessions of the few servers that a client has, eight of each: it is taken at once.
const SESSIONS: usize = 32;

/// The same, which takes no server whose certificate is in a list of those that the authority revoked.
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
