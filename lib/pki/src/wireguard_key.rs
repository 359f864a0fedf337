//! Key pairs of WireGuard.

use core::fmt;

use base64::{Engine, engine::general_purpose::STANDARD};
use rand_core::CryptoRng;
use x25519_dalek::{X25519_BASEPOINT_BYTES, x25519};
use zeroize::Zeroizing;

use crate::SecretData;

/// The length in bytes of a Curve25519 key.
const LENGTH: usize = 32;

/// A key pair of WireGuard. Both halves are written in base64, as `wg` does. `Debug` prints the public half only.
#[derive(Clone, PartialEq, Eq)]
pub struct WireGuardKey {
    private: Zeroizing<[u8; LENGTH]>,
    public: [u8; LENGTH],
}

/// The error for a text that is not a WireGuard key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a WireGuard key must be {LENGTH} bytes in base64")]
pub struct WireGuardKeyError;

impl WireGuardKey {
    /// Mints a new key pair.
    pub fn mint<R: CryptoRng + ?Sized>(rng: &mut R) -> Self {
        let mut private = Zeroizing::new([0; LENGTH]);
        rng.fill_bytes(private.as_mut());
        Self::of(private)
    }

    /// Reads the private half and derives the public half.
    pub fn from_base64(text: &[u8]) -> Result<Self, WireGuardKeyError> {
        let bytes = Zeroizing::new(STANDARD.decode(text.trim_ascii()).map_err(|_| WireGuardKeyError)?);
        let private = bytes.as_slice().try_into().map_err(|_| WireGuardKeyError)?;
        Ok(Self::of(Zeroizing::new(private)))
    }

    fn of(private: Zeroizing<[u8; LENGTH]>) -> Self {
        let public = x25519(*private, X25519_BASEPOINT_BYTES);
        Self { private, public }
    }

    /// Returns the public half in base64.
    #[must_use]
    pub fn public_base64(&self) -> String {
        STANDARD.encode(self.public)
    }

    /// Writes the key to `data` as `NAME.key` and `NAME.pub`.
    pub fn write_to(&self, data: &mut SecretData, name: &str) {
        let private = Zeroizing::new(STANDARD.encode(self.private.as_slice()));
        data.insert(format!("{name}.key"), private.as_bytes().to_vec());
        data.insert(format!("{name}.pub"), self.public_base64().into_bytes());
    }
}

impl fmt::Debug for WireGuardKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WireGuardKey").field("public", &self.public_base64()).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::seeded;

    /// The key pair of Alice in RFC 7748, section 6.1.
    #[test]
    fn the_public_half_is_that_of_the_rfc() {
        let private: [u8; LENGTH] = [
            0x77, 0x07, 0x6d, 0x0a, 0x73, 0x18, 0xa5, 0x7d, 0x3c, 0x16, 0xc1, 0x72, 0x51, 0xb2, 0x66, 0x45, 0xdf, 0x4c,
            0x2f, 0x87, 0xeb, 0xc0, 0x99, 0x2a, 0xb1, 0x77, 0xfb, 0xa5, 0x1d, 0xb9, 0x2c, 0x2a,
        ];
        let key = WireGuardKey::from_base64(STANDARD.encode(private).as_bytes()).unwrap();
        assert_eq!(key.public_base64(), "hSDwCYkwp1R0i33ctD73Wg2/Og0mOBr066SpjqqbTmo=");
    }

    #[test]
    fn a_pair_survives_its_secret_and_shows_its_public_half_only() {
        let key = WireGuardKey::mint(&mut seeded(1));
        let mut data = SecretData::new();
        key.write_to(&mut data, "wireguard");
        assert_eq!(data["wireguard.pub"], key.public_base64().into_bytes());
        assert_eq!(WireGuardKey::from_base64(&data["wireguard.key"]).unwrap(), key);
        let private = String::from_utf8(data["wireguard.key"].clone()).unwrap();
        assert!(!format!("{key:?}").contains(&private));
        assert_eq!(WireGuardKey::from_base64(b"AAAA"), Err(WireGuardKeyError));
    }
}
