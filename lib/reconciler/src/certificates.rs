//! Reads the certificates in the Secrets of the documents.

use std::str;

use keelway_api::{Documents, Secret, documents::SecretName, shared::Map};
use keelway_pki::CertificateFacts;
use keelway_planner::{CertificateSeen, ObservedCertificates};

/// Reads all certificates. A certificate that cannot be read is left out, so that the planner has it minted again.
pub(crate) fn read(documents: &Documents) -> ObservedCertificates {
    documents.secrets.iter().flat_map(|(name, secret)| of_secret(name, secret)).collect()
}

/// Secrets with the certificates that were read from them.
#[derive(Default)]
pub(crate) struct CertificateSnapshot {
    secrets: Map<SecretName, Secret>,
    certificates: ObservedCertificates,
}

impl CertificateSnapshot {
    pub(crate) fn of(documents: &Documents, certificates: ObservedCertificates) -> Self {
        Self { secrets: documents.secrets.clone(), certificates }
    }

    /// Returns the certificates of all clusters. Reads only Secrets that changed since the snapshot.
    pub(crate) fn again(&self, documents: &Documents) -> ObservedCertificates {
        let mut found = ObservedCertificates::new();
        for (name, secret) in documents.secrets.iter().filter(|(name, _)| name.is_of_a_cluster()) {
            if self.secrets.get(name).is_some_and(|known| known.ptr_eq(secret)) {
                let first = (name.clone(), String::new());
                let of_it = self.certificates.range(first..).take_while(|((of, _), _)| of == name);
                found.extend(of_it.map(|(place, seen)| (place.clone(), seen.clone())));
            } else {
                found.extend(of_secret(name, secret));
            }
        }
        found
    }
}

fn of_secret(name: &SecretName, secret: &Secret) -> impl Iterator<Item = ((SecretName, String), CertificateSeen)> {
    secret.data.iter().flatten().filter_map(|(key, value)| {
        let certificate = key.strip_suffix(".crt")?;
        let seen = str::from_utf8(&value.0).ok().and_then(facts)?;
        Some(((name.clone(), certificate.to_owned()), seen))
    })
}

fn facts(pem: &str) -> Option<CertificateSeen> {
    let facts = CertificateFacts::from_pem(pem).ok()?;
    Some(CertificateSeen {
        common_name: facts.common_name.unwrap_or_default(),
        organizations: facts.organizations,
        dns_names: facts.dns_names,
        addresses: facts.ip_addresses,
        not_before: facts.validity.not_before(),
        renew_at: facts.validity.renew_at(),
        not_after: facts.validity.not_after(),
        key_id: facts.key_id,
        authority_key_id: facts.authority_key_id,
    })
}

#[cfg(test)]
mod tests {
    use keelway_api::{jiff::Timestamp, name::ClusterId};

    use super::*;

    /// Returns documents with a Secret whose certificate cannot be read.
    fn documents(of: &SecretName) -> Documents {
        let mut documents = Documents::default();
        documents.put_secret_values(of, [("server.crt".to_owned(), k8s_openapi::ByteString(b"nothing".to_vec()))]);
        documents
    }

    #[test]
    fn unchanged_certificates_are_not_read_again() {
        let id: ClusterId = "aaaaaaaaaaaaaaaa".parse().unwrap();
        let name = SecretName::of(&id, "etcd");
        let before = documents(&name);
        let seen = CertificateSeen {
            common_name: "etcd-0".to_owned(),
            organizations: Vec::new(),
            dns_names: Vec::new(),
            addresses: Vec::new(),
            not_before: Timestamp::UNIX_EPOCH,
            renew_at: Timestamp::UNIX_EPOCH,
            not_after: Timestamp::UNIX_EPOCH,
            key_id: None,
            authority_key_id: None,
        };
        let known: ObservedCertificates = [((name.clone(), "server".to_owned()), seen)].into();
        let read = CertificateSnapshot::of(&before, known.clone());
        assert_eq!(read.again(&before), known);
        assert_eq!(read.again(&documents(&name)), ObservedCertificates::new());
        assert_eq!(CertificateSnapshot::default().again(&before), ObservedCertificates::new());
    }
}
