//! TLS towards components: TLS 1.2 or newer, always verified.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use keelway_api::{Documents, documents::SecretName, machine::sha256_hex};
use keelway_hypervisor_agent::tls::client_without;
use keelway_planner::{Identity, REVOCATION_LIST, REVOKED};
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

/// TLS clients, each made once: many components trust one authority and ask as one client, and whoever is asked again resumes
/// its session.
#[derive(Default)]
pub(crate) struct Clients(Mutex<BTreeMap<(SecretName, Option<Identity>), Made>>);

/// A client, and the digest of what it was made of.
struct Made {
    of: String,
    config: Arc<ClientConfig>,
}

impl Clients {
    /// A client that trusts one authority, and shows a certificate where it has one.
    pub(crate) fn client(
        &self,
        documents: &Documents,
        authority: &SecretName,
        identity: Option<&Identity>,
    ) -> Result<Arc<ClientConfig>, TlsError> {
        let trusted = value(documents, authority, "bundle.crt")?;
        let shown = identity
            .map(|identity| {
                let certificate = value(documents, &identity.secret, &format!("{}.crt", identity.name))?;
                let key = value(documents, &identity.secret, &format!("{}.key", identity.name))?;
                Ok::<_, TlsError>((certificate, key))
            })
            .transpose()?;
        let (certificate, key) = shown.unwrap_or_default();
        // An authority without such a list has revoked nothing.
        let list = SecretName { namespace: authority.namespace.clone(), name: REVOKED.to_owned() };
        let revoked = value(documents, &list, REVOCATION_LIST).ok();
        let of = sha256_hex(&[trusted, certificate, key, revoked.unwrap_or_default()].concat());
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let name = (authority.clone(), identity.cloned());
        if let Some(made) = kept.get(&name).filter(|made| made.of == of) {
            return Ok(Arc::clone(&made.config));
        }
        let config = Arc::new(client_without(trusted, revoked, shown)?);
        kept.insert(name, Made { of, config: Arc::clone(&config) });
        Ok(config)
    }
}
