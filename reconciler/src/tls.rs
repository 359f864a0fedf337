//! TLS towards components: TLS 1.2 or newer, always verified.

use keelway_api::{Documents, documents::SecretName};
use keelway_hypervisor_agent::tls::client_from_pem;
use keelway_planner::Identity;
use rustls::ClientConfig;

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
    /// A value cannot be used.
    #[error(transparent)]
    Unusable(#[from] keelway_hypervisor_agent::tls::TlsError),
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
            Ok::<_, TlsError>((certificate, key))
        })
        .transpose()?;
    Ok(client_from_pem(value(documents, authority, "bundle.crt")?, identity)?)
}
