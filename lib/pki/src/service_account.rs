//! The keys that sign service-account tokens.

use rand_core::CryptoRng;

use crate::{KeyError, PrivateKeyPem, PublicKeyPem, key::KeyPair};

/// A key pair for service-account tokens (ES256). kube-apiserver reads the private half with `--service-account-signing-key-file`, and
/// kube-controller-manager with `--service-account-private-key-file`. The public half is for `--service-account-key-file`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceAccountKey {
    private_pem: PrivateKeyPem,
    public_pem: PublicKeyPem,
}

impl ServiceAccountKey {
    /// Mints a new key pair.
    pub fn mint<R: CryptoRng + ?Sized>(rng: &mut R) -> Result<Self, KeyError> {
        let key = KeyPair::generate(rng)?;
        Ok(Self { private_pem: key.private_pem().clone(), public_pem: key.public_pem()? })
    }

    /// Reads a private key and derives the public half.
    pub fn from_pem(private_pem: &PrivateKeyPem) -> Result<Self, KeyError> {
        let public_pem = KeyPair::from_pem(private_pem)?.public_pem()?;
        Ok(Self { private_pem: private_pem.clone(), public_pem })
    }

    /// Returns the private half, which signs. It is PKCS#8 if it was minted here.
    #[must_use]
    pub fn private_pem(&self) -> &PrivateKeyPem {
        &self.private_pem
    }

    /// Returns the public half, which verifies.
    #[must_use]
    pub fn public_pem(&self) -> &PublicKeyPem {
        &self.public_pem
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::seeded;

    #[test]
    fn the_public_half_follows_from_the_private_one() {
        let key = ServiceAccountKey::mint(&mut seeded(1)).unwrap();
        assert_eq!(ServiceAccountKey::from_pem(key.private_pem()).unwrap(), key);
        assert_eq!(PublicKeyPem::new(key.public_pem().as_str().to_owned()).unwrap(), *key.public_pem());
    }
}
