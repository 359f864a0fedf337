//! The keys that encrypt Secrets at rest.

use core::fmt;

use base64::{Engine, engine::general_purpose::STANDARD};
use rand_core::CryptoRng;
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use crate::facts::hex;

/// The length in bytes that secretbox requires. It is also the maximum for aescbc.
const LENGTH: usize = 32;

/// A key for an `EncryptionConfiguration` of kube-apiserver. Its memory is zeroed on drop. `Debug` prints the name only.
#[derive(Clone, PartialEq, Eq)]
pub struct EncryptionKey(Zeroizing<[u8; LENGTH]>);

/// The error for an encryption key of the wrong length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an encryption key must have {LENGTH} bytes, not {found}")]
pub struct EncryptionKeyError {
    /// The number of bytes found.
    pub found: usize,
}

impl EncryptionKey {
    /// Mints a new key.
    pub fn mint<R: CryptoRng + ?Sized>(rng: &mut R) -> Self {
        let mut key = Zeroizing::new([0; LENGTH]);
        rng.fill_bytes(key.as_mut());
        Self(key)
    }

    /// Creates a key from its bytes.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, EncryptionKeyError> {
        let key = bytes.try_into().map_err(|_| EncryptionKeyError { found: bytes.len() })?;
        Ok(Self(Zeroizing::new(key)))
    }

    /// Returns the secret bytes.
    #[must_use]
    pub fn expose(&self) -> &[u8; LENGTH] {
        &self.0
    }

    /// Returns the secret in base64, the form of `keys[].secret` of an `EncryptionConfiguration`.
    #[must_use]
    pub fn expose_base64(&self) -> Zeroizing<String> {
        Zeroizing::new(STANDARD.encode(self.0.as_slice()))
    }

    /// Returns the name for `keys[].name`: the first 8 bytes of the key's SHA-256 in lowercase hexadecimal. etcd stores the name with every
    /// object that the key encrypted, so the name must not change when keys rotate.
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
    fn the_name_identifies_a_key_and_reveals_nothing_of_it() {
        let key = EncryptionKey::mint(&mut seeded(1));
        assert_eq!(key.name().len(), 16);
        assert_ne!(key.name(), EncryptionKey::mint(&mut seeded(2)).name());
        assert!(!hex(key.expose()).contains(&key.name()));
        assert_eq!(format!("{key:?}"), format!("EncryptionKey({})", key.name()));
    }
}
