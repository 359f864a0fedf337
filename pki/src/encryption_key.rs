//! The keys that encrypt Secrets at rest.

use core::fmt;

use base64::{Engine, engine::general_purpose::STANDARD};
use rand_core::CryptoRng;
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use crate::facts::hex;

/// The length that secretbox wants, and the longest that aescbc takes.
const LENGTH: usize = 32;

/// A key for an `EncryptionConfiguration` of kube-apiserver. It is wiped when dropped, and `Debug`
/// shows its name only.
#[derive(Clone, PartialEq, Eq)]
pub struct EncryptionKey(Zeroizing<[u8; LENGTH]>);

/// Bytes that are no encryption key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an encryption key has {LENGTH} bytes, not {found}")]
pub struct EncryptionKeyError {
    /// How many there are.
    pub found: usize,
}

impl EncryptionKey {
    /// Makes a new key.
    pub fn mint<R: CryptoRng + ?Sized>(rng: &mut R) -> Self {
        let mut key = Zeroizing::new([0; LENGTH]);
        rng.fill_bytes(key.as_mut());
        Self(key)
    }

    /// Takes the bytes of a key.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, EncryptionKeyError> {
        let key = bytes.try_into().map_err(|_| EncryptionKeyError { found: bytes.len() })?;
        Ok(Self(Zeroizing::new(key)))
    }

    /// The secret itself.
    #[must_use]
    pub fn expose(&self) -> &[u8; LENGTH] {
        &self.0
    }

    /// The secret as `keys[].secret` of an `EncryptionConfiguration` wants it.
    #[must_use]
    pub fn expose_base64(&self) -> Zeroizing<String> {
        Zeroizing::new(STANDARD.encode(self.0.as_slice()))
    }

    /// The name for `keys[].name`. etcd keeps it beside every object that the key encrypted, so it
    /// stays with the key through every rotation: the first 8 bytes of its SHA-256, lower hex.
    #[must_use]
    pub fn name(&self) -> String {
        hex(Sha256::digest(self.0.as_slice()).get(..8).unwrap_or_default())
    }
}

impl fmt::Debug for EncryptionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EncryptionKey({})", self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::seeded;

    #[test]
    fn a_key_is_its_bytes() {
        let key = EncryptionKey::mint(&mut seeded(1));
        assert_eq!(EncryptionKey::from_bytes(key.expose()).unwrap(), key);
        assert_eq!(STANDARD.decode(key.expose_base64().as_bytes()).unwrap(), key.expose());
        assert_ne!(EncryptionKey::mint(&mut seeded(2)), key);
        assert_eq!(EncryptionKey::from_bytes(&[0; 31]), Err(EncryptionKeyError { found: 31 }));
    }

    #[test]
    fn the_name_says_which_key_and_nothing_of_it() {
        let key = EncryptionKey::mint(&mut seeded(1));
        assert_eq!(key.name().len(), 16);
        assert_ne!(key.name(), EncryptionKey::mint(&mut seeded(2)).name());
        assert!(!hex(key.expose()).contains(&key.name()));
        assert_eq!(format!("{key:?}"), format!("EncryptionKey({})", key.name()));
    }
}
