//! TLS towards components: TLS 1.2 or newer, always verified.

use std::sync::Arc;

use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};

/// Certificates that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A value is not the PEM that it should be.
    #[error("a certificate or key is not PEM")]
    Pem(#[source] rustls_pki_types::pem::Error),
    /// The TLS library refuses what it was given.
    #[error("a certificate or key cannot be used for TLS")]
    Unusable(#[source] rustls::Error),
}

/// A client from PEM texts: the authorities that it trusts, and a certificate with its key where it shows one.
pub fn client_from_pem(authorities: &[u8], identity: Option<(&[u8], &[u8])>) -> Result<ClientConfig, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(authorities) {
        roots.add(certificate.map_err(TlsError::Pem)?).map_err(TlsError::Unusable)?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(TlsError::Unusable)?
        .with_root_certificates(roots);
    let Some((certificate, key)) = identity else { return Ok(builder.with_no_client_auth()) };
    let chain = CertificateDer::pem_slice_iter(certificate).collect::<Result<Vec<_>, _>>().map_err(TlsError::Pem)?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(TlsError::Pem)?;
    builder.with_client_auth_cert(chain, key).map_err(TlsError::Unusable)
}
