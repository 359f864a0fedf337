//! What the certificates in our Secrets say.

use std::{collections::BTreeMap, str};

use keelway_api::{Documents, documents::SecretName};
use keelway_pki::CertificateFacts;
use keelway_planner::CertificateSeen;

/// Reads every certificate that is there. One that cannot be read is left out, so that it is minted anew.
pub(crate) fn read(documents: &Documents) -> BTreeMap<(SecretName, String), CertificateSeen> {
    let mut found = BTreeMap::new();
    for (secret, document) in &documents.secrets {
        for (key, value) in document.data.iter().flatten() {
            let Some(name) = key.strip_suffix(".crt") else { continue };
            if let Some(seen) = str::from_utf8(&value.0).ok().and_then(facts) {
                found.insert((secret.clone(), name.to_owned()), seen);
            }
        }
    }
    found
}

fn facts(pem: &str) -> Option<CertificateSeen> {
    let facts = CertificateFacts::from_pem(pem).ok()?;
    Some(CertificateSeen {
        common_name: facts.common_name.unwrap_or_default(),
        organizations: facts.organizations,
        dns_names: facts.dns_names,
        addresses: facts.ip_addresses,
        renew_at: facts.validity.renew_at(),
    })
}
