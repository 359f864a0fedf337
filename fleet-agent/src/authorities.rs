//! Which authorities of the fleet the agent trusts, and which one issued its certificate. Both follow what the fleet publishes, so that its authority can be
//! rotated while agents are connected. The agent reports both on its Lease, and a rotation waits for that.

use std::pin::pin;

use futures::StreamExt;
use k8s_openapi::api::core::v1::ConfigMap;
use keelway_api::{
    machine::sha256_hex,
    worker::{CERTIFICATE_ISSUERS, TRUSTED_AUTHORITIES},
};
use keelway_fleet::bootstrap::{AUTHORITIES_KEY, FLEET_INFORMATION, ISSUER_KEY, TOKEN_NAMESPACE};
use kube::{
    Api, Client,
    runtime::{WatchStreamExt, watcher::watch_object},
};
use rustls_pki_types::{CertificateDer, pem, pem::PemObject};
use serde_json::{Map, Value, json};

/// What a session with the fleet relies on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct SessionTrust {
    /// The authorities of the fleet, PEM.
    pub(crate) authorities: String,
    /// The key identifier of the authority that issued the agent's certificate, in hexadecimal digits.
    pub(crate) issuer: Option<String>,
}

/// What differs between a session and what the fleet publishes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TrustChange {
    /// The agent has to trust these authorities from now on, PEM.
    Authorities(String),
    /// The agent has to request a certificate of the authority with this key identifier.
    Certificate(String),
}

impl SessionTrust {
    /// Returns the annotations of the agent's Lease.
    pub(crate) fn annotations(&self) -> Map<String, Value> {
        let trusted = (TRUSTED_AUTHORITIES.to_owned(), json!(sha256_hex(self.authorities.as_bytes())));
        let issuer = self.issuer.as_ref().map(|issuer| (CERTIFICATE_ISSUERS.to_owned(), json!(issuer)));
        [trusted].into_iter().chain(issuer).collect()
    }

    /// Returns what has to change. What was deleted or is no certificate changes nothing.
    fn change(&self, published: Option<&ConfigMap>) -> Option<TrustChange> {
        let data = published?.data.as_ref()?;
        let authorities = data.get(AUTHORITIES_KEY).filter(|text| certificates(text).is_ok_and(|all| !all.is_empty()));
        if let Some(authorities) = authorities.filter(|authorities| **authorities != self.authorities) {
            return Some(TrustChange::Authorities(authorities.clone()));
        }
        let issuer = data.get(ISSUER_KEY)?;
        (self.issuer.as_ref() != Some(issuer)).then(|| TrustChange::Certificate(issuer.clone()))
    }

    /// Waits until something has to change.
    pub(crate) async fn changed(&self, client: &Client) -> TrustChange {
        let published: Api<ConfigMap> = Api::namespaced(client.clone(), TOKEN_NAMESPACE);
        let mut versions = pin!(watch_object(published, FLEET_INFORMATION).default_backoff());
        loop {
            match versions.next().await {
                Some(Ok(version)) => {
                    if let Some(change) = self.change(version.as_ref()) {
                        return change;
                    }
                }
                // A fleet of an earlier release does not allow it.
                Some(Err(error)) => tracing::debug!(%error, "cannot watch what the fleet publishes"),
                None => std::future::pending().await,
            }
        }
    }
}

/// Reads all certificates of a PEM text.
pub(crate) fn certificates(pem: &str) -> Result<Vec<Vec<u8>>, pem::Error> {
    CertificateDer::pem_slice_iter(pem.as_bytes()).map(|certificate| certificate.map(|der| der.to_vec())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const OLD: &str = "-----BEGIN CERTIFICATE-----\nb2xk\n-----END CERTIFICATE-----\n";
    const NEW: &str = "-----BEGIN CERTIFICATE-----\nbmV3\n-----END CERTIFICATE-----\n";

    fn published(authorities: &str, issuer: Option<&str>) -> ConfigMap {
        let issuer = issuer.map(|issuer| (ISSUER_KEY.to_owned(), issuer.to_owned()));
        let data = [(AUTHORITIES_KEY.to_owned(), authorities.to_owned())].into_iter().chain(issuer);
        ConfigMap { data: Some(data.collect()), ..ConfigMap::default() }
    }

    #[test]
    fn authorities_come_first_and_then_a_certificate_of_the_next_one() {
        let both = format!("{OLD}{NEW}");
        let mut session = SessionTrust { authorities: OLD.to_owned(), issuer: Some("01".to_owned()) };
        let change =
            |session: &SessionTrust, authorities: &str, issuer| session.change(Some(&published(authorities, issuer)));
        assert_eq!(change(&session, OLD, None), None);
        assert_eq!(change(&session, &both, Some("02")), Some(TrustChange::Authorities(both.clone())));
        session.authorities.clone_from(&both);
        assert_eq!(change(&session, &both, Some("02")), Some(TrustChange::Certificate("02".to_owned())));
        session.issuer = Some("02".to_owned());
        assert_eq!(change(&session, &both, Some("02")), None);
        assert_eq!(change(&session, NEW, None), Some(TrustChange::Authorities(NEW.to_owned())));
    }

    #[test]
    fn what_is_absent_or_no_certificate_changes_nothing() {
        let session = SessionTrust { authorities: OLD.to_owned(), issuer: Some("01".to_owned()) };
        assert_eq!(session.change(None), None);
        assert_eq!(session.change(Some(&ConfigMap::default())), None);
        for broken in ["", "no PEM", "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n"] {
            assert_eq!(session.change(Some(&published(broken, None))), None, "{broken}");
        }
    }

    #[test]
    fn the_lease_reports_the_authorities_by_their_digest() {
        let session = SessionTrust { authorities: OLD.to_owned(), issuer: Some("01".to_owned()) };
        let expected = json!({ TRUSTED_AUTHORITIES: sha256_hex(OLD.as_bytes()), CERTIFICATE_ISSUERS: "01" });
        assert_eq!(Value::Object(session.annotations()), expected);
    }
}
