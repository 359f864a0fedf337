//! P-256 key pairs and the PEM text of their halves.

use core::fmt;

use p256::{
    Sec1Point, SecretKey,
    ecdsa::{DerSignature, SigningKey, signature::Signer},
    elliptic_curve::Generate,
    pkcs8::{self, DecodePrivateKey, EncodePrivateKey, EncodePublicKey, LineEnding, der::pem},
};
use rand_core::CryptoRng;
use zeroize::Zeroizing;

/// A private key as PEM text. It is wiped when dropped, and `Debug` shows nothing of it.
#[derive(Clone, PartialEq, Eq)]
pub struct PrivateKeyPem(Zeroizing<String>);

/// A public key as PEM text (`PUBLIC KEY`: SubjectPublicKeyInfo, RFC 5280).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicKeyPem(String);

/// A private key that could not be read or written.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The bytes are no UTF-8, so no PEM.
    #[error("the private key is not text")]
    NotText(#[source] core::str::Utf8Error),
    /// Neither PKCS#8 (`PRIVATE KEY`) nor SEC 1 (`EC PRIVATE KEY`) with a P-256 key.
    #[error("the text is not a P-256 private key in PEM")]
    Parse(#[source] pkcs8::Error),
    /// The public half could not be read.
    #[error("the text is not a P-256 public key in PEM")]
    ParsePublic(#[source] pkcs8::spki::Error),
    /// The private half could not be written as PKCS#8.
    #[error("cannot write a private key as PKCS#8")]
    EncodePrivate(#[source] pkcs8::Error),
    /// The public half could not be written.
    #[error("cannot write a public key")]
    EncodePublic(#[source] pkcs8::spki::Error),
}

impl PrivateKeyPem {
    /// Takes the text over; whether it is a key shows when it is used.
    #[must_use]
    pub fn new(text: String) -> Self {
        Self(Zeroizing::new(text))
    }

    /// As [`PrivateKeyPem::new`], from the bytes of a Secret or a file.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, KeyError> {
        core::str::from_utf8(bytes).map(|text| Self::new(text.to_owned())).map_err(KeyError::NotText)
    }

    /// Whether this public half is written beside the private one.
    pub(crate) fn carries(&self, public_point: &[u8]) -> bool {
        let Ok((_, der)) = pem::decode_vec(self.0.as_bytes()) else { return false };
        let der = Zeroizing::new(der);
        !public_point.is_empty() && der.windows(public_point.len()).any(|part| part == public_point)
    }

    /// The secret itself, for writing it to the one who uses it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for PrivateKeyPem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PrivateKeyPem(..)")
    }
}

impl PublicKeyPem {
    /// Checks that the text is a P-256 public key.
    pub fn new(text: String) -> Result<Self, KeyError> {
        use pkcs8::DecodePublicKey;
        p256::PublicKey::from_public_key_pem(&text).map_err(KeyError::ParsePublic)?;
        Ok(Self(text))
    }

    /// The PEM text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Both halves, ready to sign. rcgen signs with it, whose own keys come from a generator that
/// cannot be passed and whose signatures are random.
#[derive(Clone)]
pub(crate) struct KeyPair {
    signer: SigningKey,
    /// The public half as a certificate carries it: uncompressed (RFC 5480, 2.2).
    point: Sec1Point,
}

impl KeyPair {
    pub(crate) fn generate<R: CryptoRng + ?Sized>(rng: &mut R) -> Self {
        Self::new(SigningKey::generate_from_rng(rng))
    }

    pub(crate) fn from_pem(pem: &PrivateKeyPem) -> Result<Self, KeyError> {
        let secret = SecretKey::from_pkcs8_pem(pem.expose())
            .or_else(|error| SecretKey::from_sec1_pem(pem.expose()).map_err(|_| error))
            .map_err(KeyError::Parse)?;
        Ok(Self::new(SigningKey::from(secret)))
    }

    fn new(signer: SigningKey) -> Self {
        let point = signer.verifying_key().to_sec1_point(false);
        Self { signer, point }
    }

    pub(crate) fn private_pem(&self) -> Result<PrivateKeyPem, KeyError> {
        self.signer.to_pkcs8_pem(LineEnding::LF).map(PrivateKeyPem).map_err(KeyError::EncodePrivate)
    }

    pub(crate) fn public_pem(&self) -> Result<PublicKeyPem, KeyError> {
        self.signer.verifying_key().to_public_key_pem(LineEnding::LF).map(PublicKeyPem).map_err(KeyError::EncodePublic)
    }

    pub(crate) fn signer(&self) -> &SigningKey {
        &self.signer
    }
}

impl rcgen::PublicKeyData for KeyPair {
    fn der_bytes(&self) -> &[u8] {
        self.point.as_bytes()
    }

    fn algorithm(&self) -> &'static rcgen::SignatureAlgorithm {
        &rcgen::PKCS_ECDSA_P256_SHA256
    }
}

impl rcgen::SigningKey for KeyPair {
    /// Deterministic (RFC 6979).
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        let signature: DerSignature = self.signer.try_sign(message).map_err(|_| rcgen::Error::RemoteKeyError)?;
        Ok(signature.as_bytes().to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::seeded;

    /// RFC 6979, A.2.5: a key that others published, with its public half.
    const PUBLISHED_KEY: [u8; 32] = [
        0xC9, 0xAF, 0xA9, 0xD8, 0x45, 0xBA, 0x75, 0x16, 0x6B, 0x5C, 0x21, 0x57, 0x67, 0xB1, 0xD6, 0x93, 0x4E, 0x50,
        0xC3, 0xDB, 0x36, 0xE8, 0x9B, 0x12, 0x7B, 0x8A, 0x62, 0x2B, 0x12, 0x0F, 0x67, 0x21,
    ];

    #[test]
    fn pem_round_trip_keeps_the_key() {
        let key = KeyPair::generate(&mut seeded(1));
        let again = KeyPair::from_pem(&key.private_pem().unwrap()).unwrap();
        assert!(key.signer() == again.signer());
        assert!(key.private_pem().unwrap().expose().starts_with("-----BEGIN PRIVATE KEY-----\n"));
        assert!(key.public_pem().unwrap().as_str().starts_with("-----BEGIN PUBLIC KEY-----\n"));
    }

    #[test]
    fn sec1_is_read_too() {
        let secret = SecretKey::from_slice(&PUBLISHED_KEY).unwrap();
        let sec1 = PrivateKeyPem::new(secret.to_sec1_pem(LineEnding::LF).unwrap().to_string());
        assert!(sec1.expose().starts_with("-----BEGIN EC PRIVATE KEY-----\n"));
        assert_eq!(KeyPair::from_pem(&sec1).unwrap().signer().to_bytes().as_slice(), PUBLISHED_KEY);
    }

    #[test]
    fn same_seed_same_key() {
        let pem = |seed| KeyPair::generate(&mut seeded(seed)).private_pem().unwrap();
        assert_eq!(pem(7), pem(7));
        assert_ne!(pem(7), pem(8));
    }

    #[test]
    fn debug_and_errors_show_nothing_of_a_key() {
        let pem = KeyPair::generate(&mut seeded(1)).private_pem().unwrap();
        assert_eq!(format!("{pem:?}"), "PrivateKeyPem(..)");
        let broken = PrivateKeyPem::new(pem.expose().replacen("MIG", "XXX", 1));
        let Err(error) = KeyPair::from_pem(&broken) else { panic!("a broken key was read") };
        let secret_line = pem.expose().lines().nth(1).unwrap();
        assert!(!format!("{error:?}").contains(secret_line.split_at(20).1));
    }

    #[test]
    fn other_text_is_refused() {
        assert!(matches!(KeyPair::from_pem(&PrivateKeyPem::new("no key".to_owned())), Err(KeyError::Parse(_))));
        assert!(matches!(PublicKeyPem::new("no key".to_owned()), Err(KeyError::ParsePublic(_))));
        assert!(matches!(PrivateKeyPem::from_bytes(&[0xff]), Err(KeyError::NotText(_))));
    }
}
