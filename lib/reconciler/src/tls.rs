//! TLS clients for components: TLS 1.2 or newer, always verified.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use keelway_api::{Documents, documents::SecretName, machine::sha256_hex};
use keelway_planner::{CertificateReference, REVOCATION_LIST, REVOKED};
use keelway_tls::component::client_without;
use rustls::ClientConfig;

#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientTlsError {
    #[error("Secret {namespace}/{name} has no {key}", namespace = secret.namespace, name = secret.name)]
    Missing { secret: SecretName, key: String },
    #[error(transparent)]
    Unusable(#[from] keelway_tls::component::AgentTlsError),
}

/// Returns a value of a Secret in the documents.
pub(crate) fn value<'a>(documents: &'a Documents, secret: &SecretName, key: &str) -> Result<&'a [u8], ClientTlsError> {
    documents
        .secrets
        .get(secret)
        .and_then(|found| found.data.as_ref()?.get(key))
        .map(|value| value.0.as_slice())
        .ok_or_else(|| ClientTlsError::Missing { secret: secret.clone(), key: key.to_owned() })
}

/// Caches TLS clients. Many components share an authority and a client certificate, and a later probe resumes the TLS session. If there are more
/// than [`MOST`], the least recently used are dropped, because each holds memory for its sessions.
#[derive(Default)]
pub(crate) struct TlsClients(Mutex<ClientCache>);

/// The most clients in the cache.
const MOST: usize = 512;

#[derive(Default)]
struct ClientCache {
    clients: BTreeMap<(SecretName, Option<CertificateReference>), CachedClient>,
    /// The number of requests for a client so far.
    asked: u64,
}

struct CachedClient {
    of: String,
    config: Arc<ClientConfig>,
    asked: u64,
}

impl ClientCache {
    fn forget_the_oldest(&mut self) {
        let oldest = self.clients.iter().min_by_key(|(_, made)| made.asked).map(|(name, _)| name.clone());
        if let Some(oldest) = oldest.filter(|_| self.clients.len() > MOST) {
            self.clients.remove(&oldest);
        }
    }
}

impl TlsClients {
    /// Drops the clients of a namespace's authorities, with their sessions.
    pub(crate) fn forget(&self, namespace: &str) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        kept.clients.retain(|(authority, _), _| authority.namespace != namespace);
    }

    /// Returns a client that trusts one authority, and presents a client certificate if there is one.
    pub(crate) fn client(
        &self,
        documents: &Documents,
        authority: &SecretName,
        identity: Option<&CertificateReference>,
    ) -> Result<Arc<ClientConfig>, ClientTlsError> {
        let trusted = value(documents, authority, "bundle.crt")?;
        let shown = identity
            .map(|identity| {
                let certificate = value(documents, &identity.secret, &format!("{}.crt", identity.name))?;
                let key = value(documents, &identity.secret, &format!("{}.key", identity.name))?;
                Ok::<_, ClientTlsError>((certificate, key))
            })
            .transpose()?;
        let (certificate, key) = shown.unwrap_or_default();
        // An authority without a revocation list has revoked nothing.
        let list = SecretName { namespace: authority.namespace.clone(), name: REVOKED.to_owned() };
        let revoked = value(documents, &list, REVOCATION_LIST).ok();
        let of = sha256_hex(&[trusted, certificate, key, revoked.unwrap_or_default()].concat());
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let name = (authority.clone(), identity.cloned());
        kept.asked += 1;
        let asked = kept.asked;
        if let Some(made) = kept.clients.get_mut(&name).filter(|made| made.of == of) {
            made.asked = asked;
            return Ok(Arc::clone(&made.config));
        }
        let config = Arc::new(client_without(trusted, revoked, shown)?);
        kept.clients.insert(name, CachedClient { of, config: Arc::clone(&config), asked });
        kept.forget_the_oldest();
        Ok(config)
    }
}
