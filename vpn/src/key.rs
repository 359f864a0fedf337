//! Keys. `Debug` never prints a private or preshared key, and both are wiped when they are dropped.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use boringtun::x25519;
use zeroize::{Zeroize, ZeroizeOnDrop};

/// The length of every key of the protocol, in bytes.
pub const KEY_LEN: usize = 32;

/// A text that is not a key.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("must be a key of 32 bytes in base64 or hex")]
pub struct InvalidKey;

/// A Curve25519 public key, which is the identity of a peer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PublicKey(pub [u8; KEY_LEN]);

impl PublicKey {
    /// Parses the 64 hexadecimal digits of the userspace API.
    pub fn from_hex(text: &str) -> Result<Self, InvalidKey> {
        key_from_hex(text).map(Self)
    }

    /// Returns the 64 hexadecimal digits of the userspace API.
    #[must_use]
    pub fn to_hex(&self) -> String {
        key_to_hex(&self.0)
    }
}

impl FromStr for PublicKey {
    type Err = InvalidKey;

    fn from_str(text: &str) -> Result<Self, InvalidKey> {
        key_from_base64(text).map(Self)
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&STANDARD.encode(self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The private key of a device.
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop)]
pub struct PrivateKey([u8; KEY_LEN]);

impl PrivateKey {
    /// Creates a key from 32 random bytes and clamps them, as Curve25519 requires.
    #[must_use]
    pub fn from_bytes(mut bytes: [u8; KEY_LEN]) -> Self {
        bytes[0] &= 0xf8;
        bytes[31] = (bytes[31] & 0x7f) | 0x40;
        Self(bytes)
    }

    /// Parses the 64 hexadecimal digits of the userspace API.
    pub fn from_hex(text: &str) -> Result<Self, InvalidKey> {
        key_from_hex(text).map(Self::from_bytes)
    }

    /// Returns the 64 hexadecimal digits of the userspace API. Use it for the API's socket only.
    #[must_use]
    pub fn to_hex(&self) -> String {
        key_to_hex(&self.0)
    }

    /// Returns the bytes, for the kernel's own device.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; KEY_LEN] {
        &self.0
    }

    /// Returns the public key of this private key.
    #[must_use]
    pub fn public(&self) -> PublicKey {
        PublicKey(x25519::PublicKey::from(&self.secret()).to_bytes())
    }

    pub(crate) fn secret(&self) -> x25519::StaticSecret {
        x25519::StaticSecret::from(self.0)
    }
}

impl FromStr for PrivateKey {
    type Err = InvalidKey;

    fn from_str(text: &str) -> Result<Self, InvalidKey> {
        key_from_base64(text).map(Self::from_bytes)
    }
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKey(..)")
    }
}

/// A symmetric key that two peers share beside their key pairs.
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop)]
pub struct PresharedKey([u8; KEY_LEN]);

impl PresharedKey {
    /// Creates a key from 32 bytes. All zeroes mean no key, as everywhere in WireGuard.
    #[must_use]
    pub fn from_bytes(bytes: [u8; KEY_LEN]) -> Option<Self> {
        (bytes != [0; KEY_LEN]).then_some(Self(bytes))
    }

    /// Parses the 64 hexadecimal digits of the userspace API. All zeroes mean no key.
    pub fn from_hex(text: &str) -> Result<Option<Self>, InvalidKey> {
        key_from_hex(text).map(Self::from_bytes)
    }

    /// Parses base64. All zeroes mean no key.
    pub fn from_base64(text: &str) -> Result<Option<Self>, InvalidKey> {
        key_from_base64(text).map(Self::from_bytes)
    }

    /// Returns the 64 hexadecimal digits of the userspace API. Use it for the API's socket only.
    #[must_use]
    pub fn to_hex(&self) -> String {
        key_to_hex(&self.0)
    }

    /// Returns the bytes, for a session or the kernel's own device.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8; KEY_LEN] {
        &self.0
    }
}

impl fmt::Debug for PresharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PresharedKey(..)")
    }
}

fn key_from_base64(text: &str) -> Result<[u8; KEY_LEN], InvalidKey> {
    let mut bytes = STANDARD.decode(text.trim()).map_err(|_| InvalidKey)?;
    let key = bytes.as_slice().try_into().map_err(|_| InvalidKey);
    bytes.zeroize();
    key
}

fn key_from_hex(text: &str) -> Result<[u8; KEY_LEN], InvalidKey> {
    let digits = text.as_bytes();
    if digits.len() != KEY_LEN * 2 {
        return Err(InvalidKey);
    }
    let mut key = [0; KEY_LEN];
    for (byte, pair) in key.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = hex_value(pair[0])? << 4 | hex_value(pair[1])?;
    }
    Ok(key)
}

fn hex_value(digit: u8) -> Result<u8, InvalidKey> {
    match digit {
        b'0'..=b'9' => Ok(digit - b'0'),
        b'a'..=b'f' => Ok(digit - b'a' + 10),
        b'A'..=b'F' => Ok(digit - b'A' + 10),
        _ => Err(InvalidKey),
    }
}

fn key_to_hex(key: &[u8; KEY_LEN]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    key.iter().flat_map(|byte| [byte >> 4, byte & 15]).map(|nibble| char::from(DIGITS[usize::from(nibble)])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_survive_both_encodings() {
        let public = PublicKey([0xa5; KEY_LEN]);
        assert_eq!(public.to_string().parse(), Ok(public));
        assert_eq!(PublicKey::from_hex(&public.to_hex()), Ok(public));
    }

    #[test]
    fn invalid_keys_are_refused() {
        assert_eq!("AAAA".parse::<PublicKey>(), Err(InvalidKey));
        assert_eq!(PublicKey::from_hex(&"g".repeat(64)), Err(InvalidKey));
        assert_eq!(PublicKey::from_hex(&"a".repeat(63)), Err(InvalidKey));
    }

    #[test]
    fn secrets_are_not_printed() {
        let private = PrivateKey::from_bytes([7; KEY_LEN]);
        let preshared = PresharedKey::from_bytes([7; KEY_LEN]);
        assert_eq!(format!("{private:?} {preshared:?}"), "PrivateKey(..) Some(PresharedKey(..))");
    }

    /// The pair was generated by `wg genkey` and `wg pubkey`.
    #[test]
    fn the_public_half_is_the_one_that_wg_computes() {
        let private: PrivateKey = "wN0b2DfTtwB14g2Tt5SGe2BZYeBo0a1GLSXJCoEOyHo=".parse().unwrap();
        assert_eq!(private.public().to_string(), "ooPHGddg5ghUsg0iks4pMrtrImczzFbmLZN17p1RFSQ=");
    }
}
