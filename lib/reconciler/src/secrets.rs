//! Validates the keys and certificates in the Secrets of the documents.

use std::{error::Error, str};

use keelway_api::{Secret, fault::Fault, registry::is_pull_secret};
use keelway_base::error_chain::chain_text;
use keelway_pki::{
    AuthorityKeyring, CertificateFacts, EncryptionKeyring, KeyringError, PrivateKeyPem, SecretData,
    ServiceAccountKeyring, VerifyError, WireGuardKey, key_matches_certificate,
};
use keelway_planner::{SecretContents, holds};

const DATA: &str = "data";
const BACK: &str = "restore the Secret as reconcile wrote it";

/// Returns all faults of a Secret's values. A fault contains no value.
///
/// Expiry is no fault: the next pass issues an expired certificate of a component again, and the status of a cluster reports an expired
/// authority.
#[must_use]
pub fn faults(secret: &Secret) -> Vec<Fault> {
    // A pull secret contains no key or certificate, and was validated when it was read.
    if is_pull_secret(secret) {
        return Vec::new();
    }
    let data: SecretData = secret.data.iter().flatten().map(|(key, value)| (key.clone(), value.0.clone())).collect();
    let unreadable = |error: KeyringError| vec![of_keyring(&error)];
    match holds(secret.metadata.name.as_deref().unwrap_or_default()) {
        SecretContents::Authority => {
            AuthorityKeyring::from_secret_data(&data).err().map(unreadable).unwrap_or_default()
        }
        SecretContents::ServiceAccountKey => {
            ServiceAccountKeyring::from_secret_data(&data).err().map(unreadable).unwrap_or_default()
        }
        SecretContents::EncryptionKey => {
            EncryptionKeyring::from_secret_data(&data).err().map(unreadable).unwrap_or_default()
        }
        SecretContents::Certificates => certificates(&data),
    }
}

fn of_keyring(error: &KeyringError) -> Fault {
    let (KeyringError::Missing { entry }
    | KeyringError::Unknown { entry }
    | KeyringError::NotText { entry, .. }
    | KeyringError::Key { entry, .. }
    | KeyringError::Authority { entry, .. }
    | KeyringError::EncryptionKey { entry, .. }) = error;
    Fault::of_entry(DATA, entry, chain_text(error), BACK)
}

fn certificates(data: &SecretData) -> Vec<Fault> {
    let names = data.keys().filter_map(|entry| entry.strip_suffix(".crt"));
    let pairs = data.keys().filter_map(|entry| entry.strip_suffix(".pub"));
    names.filter_map(|name| certificate(data, name)).chain(pairs.filter_map(|name| pair(data, name))).collect()
}

/// Returns a fault unless the public key belongs to the private key beside it. If the private key is missing, both are minted again.
fn pair(data: &SecretData, name: &str) -> Option<Fault> {
    let (public_entry, entry) = (format!("{name}.pub"), format!("{name}.key"));
    let key = WireGuardKey::from_base64(data.get(&entry)?);
    match key {
        Ok(key) if data.get(&public_entry).is_some_and(|public| *public == key.public_base64().into_bytes()) => None,
        Ok(_) => {
            Some(Fault::of_entry(DATA, &public_entry, format!("the public key does not match the key {entry}"), BACK))
        }
        Err(error) => Some(Fault::of_entry(DATA, &entry, chain_text(&error), BACK)),
    }
}

/// Returns a fault unless the certificate is readable and belongs to the key beside it. If either is missing, it is issued again.
fn certificate(data: &SecretData, name: &str) -> Option<Fault> {
    let (entry, key_entry) = (format!("{name}.crt"), format!("{name}.key"));
    let fault = |entry: &str, problem: String| {
        let help = format!("{BACK}, or remove {name}.crt and {name}.key from it to have them issued again");
        Some(Fault::of_entry(DATA, entry, problem, help))
    };
    let Some(pem) = data.get(&entry).and_then(|bytes| str::from_utf8(bytes).ok()) else {
        return fault(&entry, "the certificate is not text".to_owned());
    };
    let told_of_it = |error: &dyn Error| fault(&entry, chain_text(error));
    let Some(key) = data.get(&key_entry) else {
        return CertificateFacts::from_pem(pem).err().and_then(|error| told_of_it(&error));
    };
    let key = match PrivateKeyPem::from_bytes(key) {
        Ok(key) => key,
        Err(error) => return fault(&key_entry, chain_text(&error)),
    };
    match key_matches_certificate(pem, &key) {
        Ok(true) => None,
        Ok(false) => fault(&entry, format!("the certificate does not match the key {key_entry}")),
        Err(VerifyError::Certificate(error)) => told_of_it(&error),
        Err(error) => fault(&key_entry, chain_text(&error)),
    }
}

#[cfg(test)]
mod tests {
    use keelway_api::{
        ByteString,
        jiff::{SignedDuration, Timestamp},
        secret::Metadata,
    };
    use keelway_pki::{Authority, CertificateUsage, EncryptionKey, LeafRequest, ServiceAccountKey, Validity};
    use rand::{SeedableRng, rngs::StdRng};

    use super::*;

    fn now() -> Timestamp {
        "2026-01-01T00:00:00Z".parse().unwrap()
    }

    fn rng(seed: u64) -> StdRng {
        StdRng::seed_from_u64(seed)
    }

    fn validity() -> Validity {
        Validity::starting(now(), SignedDuration::from_hours(24)).unwrap()
    }

    fn authority(seed: u64) -> Authority {
        Authority::mint("kubernetes", validity(), &mut rng(seed)).unwrap()
    }

    fn certificate(seed: u64) -> SecretData {
        let request = LeafRequest {
            common_name: "etcd".to_owned(),
            organizations: Vec::new(),
            dns_names: vec!["etcd".to_owned()],
            ip_addresses: Vec::new(),
            usages: vec![CertificateUsage::ServerAuth],
            validity: validity(),
        };
        let mut data = SecretData::new();
        authority(1).issue(&request, &mut rng(seed)).unwrap().write_to(&mut data, "server");
        data
    }

    fn told_of(name: &str, data: SecretData) -> Vec<String> {
        let secret = Secret {
            metadata: Metadata { name: Some(name.to_owned()), ..Metadata::default() },
            data: Some(data.into_iter().map(|(key, value)| (key, ByteString(value))).collect()),
            ..Secret::default()
        };
        faults(&secret).into_iter().map(|fault| format!("{}: {}", fault.field, fault.problem)).collect()
    }

    /// Replaces the entry with that of another Secret's data.
    fn mixed(mut data: SecretData, other: &SecretData, entry: &str) -> SecretData {
        data.insert(entry.to_owned(), other[entry].clone());
        data
    }

    #[test]
    fn minted_secrets_have_no_fault() {
        let nothing: Vec<String> = Vec::new();
        assert_eq!(told_of("etcd-ca", AuthorityKeyring::first(authority(1)).to_secret_data()), nothing);
        let key = ServiceAccountKey::mint(&mut rng(1)).unwrap();
        assert_eq!(told_of("service-account", ServiceAccountKeyring::first(key).to_secret_data()), nothing);
        let key = EncryptionKey::mint(&mut rng(1));
        assert_eq!(told_of("encryption", EncryptionKeyring::first(key).to_secret_data()), nothing);
        assert_eq!(told_of("etcd-0", certificate(2)), nothing);
    }

    #[test]
    fn a_certificate_and_a_key_that_do_not_belong_together() {
        let found = told_of("etcd-0", mixed(certificate(2), &certificate(3), "server.key"));
        assert_eq!(found, ["data[server.crt]: the certificate does not match the key server.key"]);
        let [one, two] = [1, 2].map(|seed| AuthorityKeyring::first(authority(seed)).to_secret_data());
        let found = told_of("kubernetes-ca", mixed(one, &two, "active.key"));
        assert!(found[0].starts_with("data[active.crt]: "), "{found:?}");
        assert_eq!(found.len(), 1);
    }

    #[test]
    fn damaged_values_are_reported_without_their_content() {
        for (name, entry) in [
            ("etcd-0", "server.crt"),
            ("etcd-0", "server.key"),
            ("etcd-ca", "active.key"),
            ("service-account", "active.key"),
            ("encryption", "active.key"),
        ] {
            let mut data = match holds(name) {
                SecretContents::Certificates => certificate(2),
                SecretContents::Authority => AuthorityKeyring::first(authority(1)).to_secret_data(),
                SecretContents::ServiceAccountKey | SecretContents::EncryptionKey => SecretData::new(),
            };
            data.insert(entry.to_owned(), b"abracadabra".to_vec());
            let found = told_of(name, data);
            assert_eq!(found.len(), 1, "{found:?}");
            let (generation, _) = entry.split_once('.').unwrap();
            assert!(found[0].starts_with(&format!("data[{generation}.")), "{found:?}");
            assert!(!found[0].contains("abracadabra"), "{found:?}");
        }
    }
}
