//! P-256 key pairs, and the PEM text of each half.

use core::fmt;
use std::sync::OnceLock;

use p256::{
    Sec1Point, SecretKey,
    ecdsa::{DerSignature, SigningKey, signature::Signer},
    elliptic_curve::Generate,
    pkcs8::{self, DecodePrivateKey, EncodePrivateKey, EncodePublicKey, LineEnding, der::pem},
};
use rand_core::CryptoRng;
use ring::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_ASN1_SIGNING, EcdsaKeyPair, KeyPair as _},
};
use zeroize::Zeroizing;

/// A private key as PEM text. Its memory is zeroed on drop. `Debug` prints nothing of it.
#[derive(Clone, PartialEq, Eq)]
pub struct PrivateKeyPem(Zeroizing<String>);

/// A public key as PEM text (`PUBLIC KEY`: SubjectPublicKeyInfo, RFC 5280).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicKeyPem(String);

/// An error while reading or writing a key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The bytes are not UTF-8, so they are not PEM.
    #[error("the private key is not text")]
    NotText(#[source] core::str::Utf8Error),
    /// The text is neither PKCS#8 (`PRIVATE KEY`) nor SEC 1 (`EC PRIVATE KEY`) with a P-256 key.
    #[error("the text is not a P-256 private key in PEM")]
    Parse(#[source] pkcs8::Error),
    /// The public half could not be read.
    #[error("the text is not a P-256 public key in PEM")]
    ParsePublic(#[source] pkcs8::spki::Error),
    /// The public half is not a point of the curve.
    #[error("the public key is not a point of P-256")]
    Point,
    /// The private half could not be written as PKCS#8.
    #[error("cannot write a private key as PKCS#8")]
    EncodePrivate(#[source] pkcs8::Error),
    /// The public half could not be written.
    #[error("cannot write a public key")]
    EncodePublic(#[source] pkcs8::spki::Error),
}

impl PrivateKeyPem {
    /// Wraps the text without checking it. A text that is not a key is an error on first use.
    #[must_use]
    pub fn new(text: String) -> Self {
        Self(Zeroizing::new(text))
    }

    /// Wraps the bytes of a Secret or a file, as [`PrivateKeyPem::new`] does.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, KeyError> {
        core::str::from_utf8(bytes).map(|text| Self::new(text.to_owned())).map_err(KeyError::NotText)
    }

    /// Returns whether the PKCS#8 text contains this public half beside the private one.
    pub(crate) fn carries(&self, public_point: &[u8]) -> bool {
        let Ok((_, der)) = pem::decode_vec(self.0.as_bytes()) else { return false };
        let der = Zeroizing::new(der);
        !public_point.is_empty() && der.windows(public_point.len()).any(|part| part == public_point)
    }

    /// Returns the secret text, for writing it to the program that uses it.
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

    /// Returns the PEM text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Both halves of a key. rcgen signs with this type instead of its own key pairs: those use a random generator that cannot be replaced, and
/// their signatures are random.
#[derive(Clone)]
pub(crate) struct KeyPair {
    pem: PrivateKeyPem,
    /// The public half in the form that certificates contain: uncompressed (RFC 5480, 2.2).
    point: Sec1Point,
    /// Computed for the first signature, because most keys that are read never sign.
    signer: OnceLock<SigningKey>,
}

impl KeyPair {
    pub(crate) fn generate<R: CryptoRng + ?Sized>(rng: &mut R) -> Result<Self, KeyError> {
        let signer = SigningKey::generate_from_rng(rng);
        let pem = signer.to_pkcs8_pem(LineEnding::LF).map(PrivateKeyPem).map_err(KeyError::EncodePrivate)?;
        Ok(Self::new(signer, pem))
    }

    pub(crate) fn from_pem(pem: &PrivateKeyPem) -> Result<Self, KeyError> {
        if let Some(point) = checked_public_half(pem) {
            return Ok(Self { pem: pem.clone(), point, signer: OnceLock::new() });
        }
        signing_key(pem).map(|signer| Self::new(signer, pem.clone()))
    }

    fn new(signer: SigningKey, pem: PrivateKeyPem) -> Self {
        Self { pem, point: signer.verifying_key().to_sec1_point(false), signer: OnceLock::from(signer) }
    }

    /// Returns PKCS#8 if the key was generated here, otherwise the text that was read.
    pub(crate) fn private_pem(&self) -> &PrivateKeyPem {
        &self.pem
    }

    pub(crate) fn public_pem(&self) -> Result<PublicKeyPem, KeyError> {
        let public = p256::PublicKey::try_from(&self.point).map_err(|_| KeyError::Point)?;
        public.to_public_key_pem(LineEnding::LF).map(PublicKeyPem).map_err(KeyError::EncodePublic)
    }

    pub(crate) fn signer(&self) -> Result<&SigningKey, KeyError> {
        if let Some(signer) = self.signer.get() {
            return Ok(signer);
        }
        let signer = signing_key(&self.pem)?;
        Ok(self.signer.get_or_init(|| signer))
    }
}

fn signing_key(pem: &PrivateKeyPem) -> Result<SigningKey, KeyError> {
    SecretKey::from_pkcs8_pem(pem.expose())
        .or_else(|error| SecretKey::from_sec1_pem(pem.expose()).map_err(|_| error))
        .map(SigningKey::from)
        .map_err(KeyError::Parse)
}

/// Returns the public half of a PKCS#8 key that contains it (RFC 5915, section 3), checked against the private half. ring needs a tenth of the
/// time that portable arithmetic needs.
fn checked_public_half(pem: &PrivateKeyPem) -> Option<Sec1Point> {
    let (_, der) = pem::decode_vec(pem.expose().as_bytes()).ok()?;
    let der = Zeroizing::new(der);
    let pair = EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_ASN1_SIGNING, &der, &SystemRandom::new()).ok()?;
    Sec1Point::from_bytes(pair.public_key().as_ref()).ok()
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
    /// The signature is deterministic (RFC 6979).
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        let signer = self.signer().map_err(|_| rcgen::Error::RemoteKeyError)?;
        let signature: DerSignature = signer.try_sign(message).map_err(|_| rcgen::Error::RemoteKeyError)?;
        Ok(signature.as_bytes().to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::seeded;

    /// The key of RFC 6979, A.2.5, whose public half is published there.
    const PUBLISHED_KEY: [u8; 32] = [
        0xC9, 0xAF, 0xA9, 0xD8, 0x45, 0xBA, 0x75, 0x16, 0x6B, 0x5C, 0x21, 0x57, 0x67, 0xB1, 0xD6, 0x93, 0x4E, 0x50,
        0xC3, 0xDB, 0x36, 0xE8, 0x9B, 0x12, 0x7B, 0x8A, 0x62, 0x2B, 0x12, 0x0F, 0x67, 0x21,
    ];

    #[test]
    fn pem_round_trip_keeps_the_key() {
        let key = KeyPair::generate(&mut seeded(1)).unwrap();
        let again = KeyPair::from_pem(key.private_pem()).unwrap();
        assert!(key.signer().unwrap() == again.signer().unwrap());
        assert!(key.private_pem().expose().starts_with("-----BEGIN PRIVATE KEY-----\n"));
        assert!(key.public_pem().unwrap().as_str().starts_with("-----BEGIN PUBLIC KEY-----\n"));
    }

    #[test]
    fn sec1_is_read_too() {
        let secret = SecretKey::from_slice(&PUBLISHED_KEY).unwrap();
        let sec1 = PrivateKeyPem::new(secret.to_sec1_pem(LineEnding::LF).unwrap().to_string());
        assert!(sec1.expose().starts_with("-----BEGIN EC PRIVATE KEY-----\n"));
        assert_eq!(KeyPair::from_pem(&sec1).unwrap().signer().unwrap().to_bytes().as_slice(), PUBLISHED_KEY);
    }

    /// Both ways to read a key have the same result, and both reject halves that do not belong together.
    #[test]
    fn halves_belong_together() {
        let [one, two] = [1, 2].map(|seed| KeyPair::generate(&mut seeded(seed)).unwrap());
        assert_eq!(checked_public_half(one.private_pem()), Some(one.point));
        assert_eq!(signing_key(one.private_pem()).unwrap().verifying_key().to_sec1_point(false), one.point);
        let (label, mut der) = pem::decode_vec(one.private_pem().expose().as_bytes()).unwrap();
        let at = der.len() - two.point.len();
        der[at..].copy_from_slice(two.point.as_bytes());
        let mixed = PrivateKeyPem::new(pem::encode_string(label, LineEnding::LF, &der).unwrap());
        assert_eq!(checked_public_half(&mixed), None);
        assert!(matches!(KeyPair::from_pem(&mixed), Err(KeyError::Parse(_))));
    }

    #[test]
    fn same_seed_same_key() {
        let pem = |seed| KeyPair::generate(&mut seeded(seed)).unwrap().private_pem().clone();
        assert_eq!(pem(7), pem(7));
        assert_ne!(pem(7), pem(8));
    }

    #[test]
    fn debug_and_errors_show_nothing_of_a_key() {
        let pem = KeyPair::generate(&mut seeded(1)).unwrap().private_pem().clone();
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
