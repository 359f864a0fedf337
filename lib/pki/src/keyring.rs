//! Keyrings: the generations of an authority or a key, and their representation in a Secret.
//!
//! | Keyring | The Secret's data |
//! |---|---|
//! | [`AuthorityKeyring`] | `active.crt`, `active.key`, `next.crt`, `next.key`, `previous.crt`, `bundle.crt`, and `previous.key` of an authority that still signs |
//! | [`ServiceAccountKeyring`] | `active.key`, `active.pub`, `next.key`, `next.pub`, `previous.pub`, `bundle.pub` |
//! | [`EncryptionKeyring`] | `active.key`, `next.key`, `previous.key`, 32 bytes each |
//! | leaf certificates of a component | `NAME.crt`, `NAME.key` for each, see [`IssuedCertificate::write_to`] |
//! | key of a gateway | `wireguard.key`, `wireguard.pub`, see [`crate::WireGuardKey::write_to`] |
//!
//! Bundles and public keys are derived from the other entries. Keyrings write them for programs that mount the Secret as files. Reading does
//! not require them, and writing renews them.

use std::collections::BTreeMap;

use crate::{
    Authority, AuthorityCertificate, AuthorityError, EncryptionKey, EncryptionKeyError, Generations, IssuedCertificate,
    KeyError, PrivateKeyPem, PublicKeyPem, ServiceAccountKey,
};

/// The decoded `data` of a Kubernetes `Secret`. It contains keys, so it may be stored in a Secret only.
pub type SecretData = BTreeMap<String, Vec<u8>>;

/// The generations of an authority.
pub type AuthorityKeyring = Generations<Authority, RetiredAuthority>;

/// The previous generation of an authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RetiredAuthority {
    /// It can no longer sign.
    Trusted(AuthorityCertificate),
    /// It still signs certificates of servers, for clients that do not trust the next generation yet.
    Signing(Box<Authority>),
}

impl RetiredAuthority {
    /// Returns its certificate.
    #[must_use]
    pub fn certificate(&self) -> &AuthorityCertificate {
        match self {
            Self::Trusted(certificate) => certificate,
            Self::Signing(authority) => authority.certificate(),
        }
    }
}

/// The generations of the service-account key. The previous one can no longer sign.
pub type ServiceAccountKeyring = Generations<ServiceAccountKey, PublicKeyPem>;
/// The generations of the encryption key. The previous one still decrypts.
pub type EncryptionKeyring = Generations<EncryptionKey>;

/// An error while reading a keyring from a Secret.
#[derive(Debug, thiserror::Error)]
pub enum KeyringError {
    /// An entry is missing.
    #[error("the Secret has no {entry:?}")]
    Missing {
        /// The name of the entry.
        entry: String,
    },
    /// The Secret contains an entry that the keyring does not define.
    #[error("the Secret has an unknown entry {entry:?}")]
    Unknown {
        /// The name of the entry.
        entry: String,
    },
    /// An entry is not text.
    #[error("{entry:?} of the Secret is not UTF-8 text")]
    NotText {
        /// The name of the entry.
        entry: String,
        /// The position of the first invalid byte.
        #[source]
        source: core::str::Utf8Error,
    },
    /// A private or public key could not be read.
    #[error("cannot read {entry:?} of the Secret")]
    Key {
        /// The name of the entry.
        entry: String,
        /// The error of the key.
        #[source]
        source: KeyError,
    },
    /// An authority could not be read.
    #[error("cannot read {entry:?} of the Secret")]
    Authority {
        /// The name of the entry.
        entry: String,
        /// The error of the authority.
        #[source]
        source: AuthorityError,
    },
    /// An encryption key could not be read.
    #[error("cannot read {entry:?} of the Secret")]
    EncryptionKey {
        /// The name of the entry.
        entry: String,
        /// The error of the key.
        #[source]
        source: EncryptionKeyError,
    },
}

impl AuthorityKeyring {
    /// Returns the certificates of all generations, for clients that trust the authority. The oldest one is first, so that the bundle stays the same
    /// when the next generation becomes the active one.
    #[must_use]
    pub fn bundle_pem(&self) -> String {
        let previous = self.previous.iter().map(|previous| previous.certificate().pem());
        let current = core::iter::once(&self.active).chain(&self.next).map(|authority| authority.certificate().pem());
        previous.chain(current).collect()
    }

    /// Returns the data of the authority's Secret.
    #[must_use]
    pub fn to_secret_data(&self) -> SecretData {
        let mut data = SecretData::from([entry("bundle.crt", &self.bundle_pem())]);
        for (generation, authority) in current(self) {
            data.extend([
                entry(&format!("{generation}.crt"), authority.certificate().pem()),
                entry(&format!("{generation}.key"), authority.key_pem().expose()),
            ]);
        }
        data.extend(self.previous.iter().map(|previous| entry("previous.crt", previous.certificate().pem())));
        if let Some(RetiredAuthority::Signing(authority)) = &self.previous {
            data.extend([entry("previous.key", authority.key_pem().expose())]);
        }
        data
    }

    /// Reads data that [`AuthorityKeyring::to_secret_data`] wrote.
    pub fn from_secret_data(data: &SecretData) -> Result<Self, KeyringError> {
        const ENTRIES: [&str; 7] =
            ["active.crt", "active.key", "next.crt", "next.key", "previous.crt", "previous.key", "bundle.crt"];
        refuse_unknown(data, &ENTRIES)?;
        let previous = if data.contains_key("previous.key") {
            Some(read_authority(data, "previous").map(|previous| RetiredAuthority::Signing(Box::new(previous))))
        } else {
            data.get("previous.crt").map(|_| {
                let certificate = AuthorityCertificate::from_pem(text(data, "previous.crt")?);
                certificate.map(RetiredAuthority::Trusted).map_err(authority_error("previous.crt"))
            })
        };
        Ok(Self {
            next: has_any(data, &["next.crt", "next.key"]).then(|| read_authority(data, "next")).transpose()?,
            active: read_authority(data, "active")?,
            previous: previous.transpose()?,
        })
    }
}

impl ServiceAccountKeyring {
    /// Returns the public keys of all generations, for `--service-account-key-file`. That flag accepts any number of keys in one file.
    #[must_use]
    pub fn bundle_pem(&self) -> String {
        self.bundle(|key| key.public_pem().as_str(), PublicKeyPem::as_str).collect()
    }

    /// Returns the data of the key's Secret.
    #[must_use]
    pub fn to_secret_data(&self) -> SecretData {
        let mut data = SecretData::from([entry("bundle.pub", &self.bundle_pem())]);
        for (generation, key) in current(self) {
            data.extend([
                entry(&format!("{generation}.key"), key.private_pem().expose()),
                entry(&format!("{generation}.pub"), key.public_pem().as_str()),
            ]);
        }
        data.extend(self.previous.iter().map(|previous| entry("previous.pub", previous.as_str())));
        data
    }

    /// Reads data that [`ServiceAccountKeyring::to_secret_data`] wrote.
    pub fn from_secret_data(data: &SecretData) -> Result<Self, KeyringError> {
        refuse_unknown(data, &["active.key", "active.pub", "next.key", "next.pub", "previous.pub", "bundle.pub"])?;
        let previous = data
            .get("previous.pub")
            .map(|_| PublicKeyPem::new(text(data, "previous.pub")?.to_owned()).map_err(key_error("previous.pub")));
        Ok(Self {
            next: has_any(data, &["next.key", "next.pub"]).then(|| read_service_account(data, "next")).transpose()?,
            active: read_service_account(data, "active")?,
            previous: previous.transpose()?,
        })
    }
}

impl EncryptionKeyring {
    /// Returns all keys. The first one encrypts.
    #[must_use]
    pub fn keys(&self) -> Vec<&EncryptionKey> {
        self.bundle(|key| key, |key| key).collect()
    }

    /// Returns the data of the key's Secret.
    #[must_use]
    pub fn to_secret_data(&self) -> SecretData {
        current(self)
            .chain(self.previous.iter().map(|previous| ("previous", previous)))
            .map(|(generation, key)| (format!("{generation}.key"), key.expose().to_vec()))
            .collect()
    }

    /// Reads data that [`EncryptionKeyring::to_secret_data`] wrote.
    pub fn from_secret_data(data: &SecretData) -> Result<Self, KeyringError> {
        refuse_unknown(data, &["active.key", "next.key", "previous.key"])?;
        let optional = |name: &str| data.contains_key(name).then(|| read_encryption_key(data, name)).transpose();
        Ok(Self {
            next: optional("next.key")?,
            active: read_encryption_key(data, "active.key")?,
            previous: optional("previous.key")?,
        })
    }
}

impl IssuedCertificate {
    /// Writes the certificate and its key to `data` as `NAME.crt` and `NAME.key`. Existing entries are replaced.
    pub fn write_to(&self, data: &mut SecretData, name: &str) {
        data.extend([
            entry(&format!("{name}.crt"), &self.certificate_pem),
            entry(&format!("{name}.key"), self.key_pem.expose()),
        ]);
    }

    /// Reads data that [`IssuedCertificate::write_to`] wrote. Returns `None` if neither entry exists.
    pub fn read_from(data: &SecretData, name: &str) -> Result<Option<Self>, KeyringError> {
        let (certificate, key) = (format!("{name}.crt"), format!("{name}.key"));
        if !has_any(data, &[&certificate, &key]) {
            return Ok(None);
        }
        Ok(Some(Self { certificate_pem: text(data, &certificate)?.to_owned(), key_pem: private_key(data, &key)? }))
    }
}

/// Returns the generations that can sign or encrypt, each with the prefix of its entries.
fn current<T, R>(generations: &Generations<T, R>) -> impl Iterator<Item = (&'static str, &T)> {
    core::iter::once(("active", &generations.active)).chain(generations.next.iter().map(|next| ("next", next)))
}

fn read_authority(data: &SecretData, generation: &str) -> Result<Authority, KeyringError> {
    let certificate = format!("{generation}.crt");
    let key = private_key(data, &format!("{generation}.key"))?;
    Authority::from_pem(text(data, &certificate)?, &key).map_err(authority_error(&certificate))
}

fn read_service_account(data: &SecretData, generation: &str) -> Result<ServiceAccountKey, KeyringError> {
    let name = format!("{generation}.key");
    ServiceAccountKey::from_pem(&private_key(data, &name)?).map_err(key_error(&name))
}

fn read_encryption_key(data: &SecretData, name: &str) -> Result<EncryptionKey, KeyringError> {
    EncryptionKey::from_bytes(bytes(data, name)?)
        .map_err(|source| KeyringError::EncryptionKey { entry: name.to_owned(), source })
}

fn private_key(data: &SecretData, name: &str) -> Result<PrivateKeyPem, KeyringError> {
    PrivateKeyPem::from_bytes(bytes(data, name)?).map_err(key_error(name))
}

fn text<'a>(data: &'a SecretData, name: &str) -> Result<&'a str, KeyringError> {
    core::str::from_utf8(bytes(data, name)?).map_err(|source| KeyringError::NotText { entry: name.to_owned(), source })
}

fn bytes<'a>(data: &'a SecretData, name: &str) -> Result<&'a [u8], KeyringError> {
    data.get(name).map(Vec::as_slice).ok_or_else(|| KeyringError::Missing { entry: name.to_owned() })
}

fn has_any(data: &SecretData, names: &[&str]) -> bool {
    names.iter().any(|name| data.contains_key(*name))
}

fn refuse_unknown(data: &SecretData, known: &[&str]) -> Result<(), KeyringError> {
    match data.keys().find(|name| !known.contains(&name.as_str())) {
        Some(name) => Err(KeyringError::Unknown { entry: name.clone() }),
        None => Ok(()),
    }
}

fn entry(name: &str, text: &str) -> (String, Vec<u8>) {
    (name.to_owned(), text.as_bytes().to_vec())
}

fn key_error(name: &str) -> impl FnOnce(KeyError) -> KeyringError {
    |source| KeyringError::Key { entry: name.to_owned(), source }
}

fn authority_error(name: &str) -> impl FnOnce(AuthorityError) -> KeyringError {
    |source| KeyringError::Authority { entry: name.to_owned(), source }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{authority, hours, seeded, server};
    use proptest::prelude::*;

    fn authorities(next: bool, previous: bool) -> AuthorityKeyring {
        Generations {
            next: next.then(|| authority(3)),
            active: authority(2),
            previous: previous.then(|| RetiredAuthority::Trusted(authority(1).certificate().clone())),
        }
    }

    fn service_accounts(next: bool, previous: bool) -> ServiceAccountKeyring {
        let key = |seed| ServiceAccountKey::mint(&mut seeded(seed)).unwrap();
        Generations {
            next: next.then(|| key(3)),
            active: key(2),
            previous: previous.then(|| key(1).public_pem().clone()),
        }
    }

    fn encryption(next: bool, previous: bool) -> EncryptionKeyring {
        let key = |seed| EncryptionKey::mint(&mut seeded(seed));
        Generations { next: next.then(|| key(3)), active: key(2), previous: previous.then(|| key(1)) }
    }

    fn names(data: &SecretData) -> Vec<&str> {
        data.keys().map(String::as_str).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        #[test]
        fn survive_their_secrets(next: bool, previous: bool) {
            let keyring = authorities(next, previous);
            let data = keyring.to_secret_data();
            prop_assert_eq!(AuthorityKeyring::from_secret_data(&data).unwrap(), keyring);
            let mut keyring = authorities(next, false);
            keyring.previous = Some(RetiredAuthority::Signing(Box::new(authority(1))));
            let data = keyring.to_secret_data();
            prop_assert_eq!(AuthorityKeyring::from_secret_data(&data).unwrap(), keyring);
            let keyring = service_accounts(next, previous);
            let data = keyring.to_secret_data();
            prop_assert_eq!(ServiceAccountKeyring::from_secret_data(&data).unwrap(), keyring);
            let keyring = encryption(next, previous);
            let data = keyring.to_secret_data();
            prop_assert_eq!(EncryptionKeyring::from_secret_data(&data).unwrap(), keyring);
        }
    }

    #[test]
    fn entries_have_their_names() {
        let all = ["active.crt", "active.key", "bundle.crt", "next.crt", "next.key", "previous.crt"];
        assert_eq!(names(&authorities(true, true).to_secret_data()), all);
        assert_eq!(names(&authorities(false, false).to_secret_data()), ["active.crt", "active.key", "bundle.crt"]);
        let all = ["active.key", "active.pub", "bundle.pub", "next.key", "next.pub", "previous.pub"];
        assert_eq!(names(&service_accounts(true, true).to_secret_data()), all);
        assert_eq!(names(&encryption(true, true).to_secret_data()), ["active.key", "next.key", "previous.key"]);
    }

    #[test]
    fn bundles_hold_all_generations_in_order() {
        let expected: String = [1, 2, 3].map(|seed| authority(seed).certificate().pem().to_owned()).concat();
        assert_eq!(authorities(true, true).bundle_pem(), expected);
        assert_eq!(service_accounts(true, true).bundle_pem().matches("BEGIN PUBLIC KEY").count(), 3);
        let keyring = encryption(true, true);
        assert_eq!(
            keyring.keys(),
            [2, 3, 1].map(|seed| EncryptionKey::mint(&mut seeded(seed))).iter().collect::<Vec<_>>()
        );
    }

    #[test]
    fn derived_entries_need_not_be_there() {
        let keyring = service_accounts(true, true);
        let mut data = keyring.to_secret_data();
        data.retain(|name, _| !name.starts_with("bundle") && !matches!(name.as_str(), "active.pub" | "next.pub"));
        assert_eq!(ServiceAccountKeyring::from_secret_data(&data).unwrap(), keyring);
    }

    #[test]
    fn incomplete_unknown_and_mixed_entries_are_refused() {
        let mut data = authorities(true, false).to_secret_data();
        data.remove("next.key");
        let error = AuthorityKeyring::from_secret_data(&data).unwrap_err();
        assert!(matches!(error, KeyringError::Missing { entry } if entry == "next.key"));

        let mut data = encryption(false, false).to_secret_data();
        data.insert("older.key".to_owned(), vec![0; 32]);
        let error = EncryptionKeyring::from_secret_data(&data).unwrap_err();
        assert!(matches!(error, KeyringError::Unknown { entry } if entry == "older.key"));

        let mut data = authorities(true, false).to_secret_data();
        data.insert("active.key".to_owned(), data["next.key"].clone());
        let error = AuthorityKeyring::from_secret_data(&data).unwrap_err();
        assert!(matches!(error, KeyringError::Authority { source: AuthorityError::KeyMismatch, .. }));

        let error = EncryptionKeyring::from_secret_data(&SecretData::new()).unwrap_err();
        assert!(matches!(error, KeyringError::Missing { entry } if entry == "active.key"));
    }

    #[test]
    fn leafs_stand_side_by_side() {
        let authority = authority(1);
        let leaf = |seed| authority.issue(&server(hours(24)), &mut seeded(seed)).unwrap();
        let mut data = SecretData::new();
        leaf(1).write_to(&mut data, "server");
        leaf(2).write_to(&mut data, "peer");
        assert_eq!(names(&data), ["peer.crt", "peer.key", "server.crt", "server.key"]);
        assert_eq!(IssuedCertificate::read_from(&data, "server").unwrap(), Some(leaf(1)));
        assert_eq!(IssuedCertificate::read_from(&data, "peer").unwrap(), Some(leaf(2)));
        assert_eq!(IssuedCertificate::read_from(&data, "client").unwrap(), None);
        data.remove("peer.key");
        let error = IssuedCertificate::read_from(&data, "peer").unwrap_err();
        assert!(matches!(error, KeyringError::Missing { entry } if entry == "peer.key"));
    }

    #[test]
    fn a_previous_generation_cannot_sign_by_default() {
        let private = |data: &SecretData| data.values().filter(|v| v.starts_with(b"-----BEGIN PRIVATE")).count();
        assert_eq!(private(&authorities(true, true).to_secret_data()), 2);
        assert_eq!(private(&service_accounts(true, true).to_secret_data()), 2);
    }
}
