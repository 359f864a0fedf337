//! TLS towards components: TLS 1.2 or newer, always verified.

use std::sync::Arc;

use keelway_api::{Documents, documents::SecretName};
use keelway_planner::Identity;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};

/// Certificates that cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TlsError {
    /// A Secret lacks a value.
    #[error("Secret {namespace}/{name} has no {key}", namespace = secret.namespace, name = secret.name)]
    Missing {
        /// The Secret.
        secret: SecretName,
        /// The key within it.
        key: String,
    },
    /// A value is not the PEM that it should be.
    #[error("a certificate or key is not PEM")]
    Pem(#[source] rustls_pki_types::pem::Error),
    /// The TLS library refuses what it was given.
    #[error("a certificate or key cannot be used for TLS")]
    Unusable(#[source] rustls::Error),
}

/// A value of one of our Secrets.
pub(crate) fn value<'a>(documents: &'a Documents, secret: &SecretName, key: &str) -> Result<&'a [u8], TlsError> {
    documents
        .secrets
        .get(secret)
        .and_then(|found| found.data.as_ref()?.get(key))
        .map(|value| value.0.as_slice())
        .ok_or_else(|| TlsError::Missing { secret: secret.clone(), key: key.to_owned() })
}

/// A client that trusts one authority, and shows a certificate where it has one.
pub(crate) fn client(
    documents: &Documents,
    authority: &SecretName,
    identity: Option<&Identity>,
) -> Result<ClientConfig, TlsError> {
    let identity = identity
        .map(|identity| {
            let certificate = value(documents, &identity.secret, &format!("{}.crt", identity.name))?;
            let key = value(documents, &identity.secret, &format!("{}.key", identity.name))?;
            Ok((certificate, key))
        })
        .transpose()?;
    client_from_pem(value(documents, authority, "bundle.crt")?, identity)
}

/// The same from PEM texts: the authorities, and a certificate with its key.
pub(crate) fn client_from_pem(authorities: &[u8], identity: Option<(&[u8], &[u8])>) -> Result<ClientConfig, TlsError> {
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
