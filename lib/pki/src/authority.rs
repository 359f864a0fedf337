//! Certificate authorities.

use core::fmt;

use rand_core::CryptoRng;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyUsagePurpose, PublicKeyData};
use sha2::{Digest, Sha256};
use x509_parser::certificate::X509Certificate;

use crate::{
    CertificateError, IssuedCertificate, KeyError, LeafError, LeafRequest, PrivateKeyPem, Validity, certificate,
    facts::hex, key::KeyPair, leaf, name, statement::statement,
};

/// The number of bytes of a key's SHA-256 that distinguish the generations of an authority.
const FINGERPRINT: usize = 8;

/// The certificate of an authority, without its key. A client needs only this to trust the authority.
#[derive(Clone, PartialEq, Eq)]
pub struct AuthorityCertificate {
    der: Vec<u8>,
    pem: String,
    name: String,
    validity: Validity,
}

/// An authority with its key. It signs leaf certificates only: the certificates that it issues cannot sign others.
#[derive(Clone)]
pub struct Authority {
    certificate: AuthorityCertificate,
    key: KeyPair,
}

/// An error while minting or reading an authority.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// The name of the authority is empty.
    #[error("the authority's name is empty")]
    NoName,
    /// The certificate of the authority could not be built or signed.
    #[error("cannot create the certificate of an authority")]
    Mint(#[source] rcgen::Error),
    /// The key of the authority could not be read or written.
    #[error("cannot use the authority's key")]
    Key(#[source] KeyError),
    /// The certificate of the authority could not be read.
    #[error("cannot read the authority's certificate")]
    Certificate(#[source] CertificateError),
    /// The certificate may not sign others. RFC 5280 requires `cA` and, if there is a key usage, `keyCertSign`.
    #[error("the certificate is not a CA certificate")]
    NotAuthority,
    /// The key does not belong to the certificate.
    #[error("the authority's key does not match its certificate")]
    KeyMismatch,
    /// The name of the authority cannot be written into the certificates that it issues. Names that Keelway mints consist of one common name.
    #[error("the authority's name has an attribute twice or a part of two attributes, and cannot issue")]
    Name,
    /// The name or the key identifier of the authority has an encoding that cannot be reproduced.
    #[error("cannot issue certificates in the authority's name")]
    Issuer(#[source] rcgen::Error),
}

impl AuthorityCertificate {
    /// Reads one certificate and checks that it belongs to an authority.
    pub fn from_pem(pem: &str) -> Result<Self, AuthorityError> {
        let der = certificate::decode_one(pem).map_err(AuthorityError::Certificate)?;
        Self::from_der(der)
    }

    fn from_der(der: Vec<u8>) -> Result<Self, AuthorityError> {
        let parsed = certificate::parse(&der).map_err(AuthorityError::Certificate)?;
        if !may_sign(&parsed).map_err(AuthorityError::Certificate)? {
            return Err(AuthorityError::NotAuthority);
        }
        let validity = certificate::validity(&parsed).map_err(AuthorityError::Certificate)?;
        let name = parsed.subject().to_string();
        let pem = certificate::to_pem(&der).map_err(AuthorityError::Certificate)?;
        Ok(Self { der, pem, name, validity })
    }

    /// Returns the certificate as PEM.
    #[must_use]
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// Returns the period during which the certificate is valid.
    #[must_use]
    pub fn validity(&self) -> Validity {
        self.validity
    }
}

impl Authority {
    /// Mints a self-signed authority with a new key. It has path length 0 and the usages keyCertSign, cRLSign and digitalSignature.
    pub fn mint<R: CryptoRng + ?Sized>(
        common_name: &str,
        validity: Validity,
        rng: &mut R,
    ) -> Result<Self, AuthorityError> {
        if common_name.is_empty() {
            return Err(AuthorityError::NoName);
        }
        let key = KeyPair::generate(rng).map_err(AuthorityError::Key)?;
        Self::of_key(common_name, key, validity, rng)
    }

    /// Mints an authority as [`Authority::mint`] does, with the common name `NAME-FINGERPRINT`. No other generation has that name.
    /// Verifiers select a certificate revocation list by the name of its authority alone, so each generation needs its own.
    pub fn mint_generation<R: CryptoRng + ?Sized>(
        name: &str,
        validity: Validity,
        rng: &mut R,
    ) -> Result<Self, AuthorityError> {
        if name.is_empty() {
            return Err(AuthorityError::NoName);
        }
        let key = KeyPair::generate(rng).map_err(AuthorityError::Key)?;
        let hash = Sha256::digest(key.subject_public_key_info());
        let fingerprint = hex(hash.get(..FINGERPRINT).unwrap_or_default());
        Self::of_key(&format!("{name}-{fingerprint}"), key, validity, rng)
    }

    fn of_key<R: CryptoRng + ?Sized>(
        common_name: &str,
        key: KeyPair,
        validity: Validity,
        rng: &mut R,
    ) -> Result<Self, AuthorityError> {
        let signed = authority_statement(common_name, validity, rng)
            .and_then(|statement| statement.self_signed(&key))
            .map_err(AuthorityError::Mint)?;
        Ok(Self { certificate: AuthorityCertificate::from_der(signed.der().to_vec())?, key })
    }

    /// Reads an authority that was written as PEM, and checks that the key belongs to the certificate.
    pub fn from_pem(certificate_pem: &str, key_pem: &PrivateKeyPem) -> Result<Self, AuthorityError> {
        let certificate = AuthorityCertificate::from_pem(certificate_pem)?;
        let key = KeyPair::from_pem(key_pem).map_err(AuthorityError::Key)?;
        let parsed = certificate::parse(&certificate.der).map_err(AuthorityError::Certificate)?;
        if key.subject_public_key_info() != parsed.public_key().raw {
            return Err(AuthorityError::KeyMismatch);
        }
        if !name::is_kept(parsed.subject()) {
            return Err(AuthorityError::Name);
        }
        let authority = Self { certificate, key };
        authority.issuer().map_err(AuthorityError::Issuer)?;
        Ok(authority)
    }

    /// Signs a certificate for `request` with a new key. The certificate does not outlive the authority.
    pub fn issue<R: CryptoRng + ?Sized>(
        &self,
        request: &LeafRequest,
        rng: &mut R,
    ) -> Result<IssuedCertificate, LeafError> {
        leaf::issue(self, request, rng)
    }

    /// Returns the certificate of the authority.
    #[must_use]
    pub fn certificate(&self) -> &AuthorityCertificate {
        &self.certificate
    }

    /// Returns the private key of the authority.
    #[must_use]
    pub fn key_pem(&self) -> &PrivateKeyPem {
        self.key.private_pem()
    }

    /// Returns the signer of leaf certificates, with the name and key identifier of this certificate. Verifiers compare both.
    pub(crate) fn issuer(&self) -> Result<Issuer<'static, &KeyPair>, rcgen::Error> {
        Issuer::from_ca_cert_der(&self.certificate.der.as_slice().into(), &self.key)
    }
}

impl fmt::Debug for AuthorityCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AuthorityCertificate({})", self.name)
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Authority({}, ..)", self.certificate.name)
    }
}

/// Two authorities are equal if the PEM texts of their certificates and keys are equal.
impl PartialEq for Authority {
    fn eq(&self, other: &Self) -> bool {
        self.certificate == other.certificate && self.key_pem() == other.key_pem()
    }
}

impl Eq for Authority {}

/// Returns whether the certificate may sign others.
pub(crate) fn may_sign(certificate: &X509Certificate<'_>) -> Result<bool, CertificateError> {
    let is_ca = certificate::basic_constraints(certificate)?.is_some_and(|constraints| constraints.ca);
    let usage = certificate::key_usage(certificate)?;
    Ok(is_ca && usage.is_none_or(|usage| usage.key_cert_sign()))
}

fn authority_statement<R: CryptoRng + ?Sized>(
    common_name: &str,
    validity: Validity,
    rng: &mut R,
) -> Result<CertificateParams, rcgen::Error> {
    let mut statement = statement(name::build(common_name, None), validity, rng)?;
    statement.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    statement.key_usages =
        vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign, KeyUsagePurpose::DigitalSignature];
    Ok(statement)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{authority, hours, now, seeded, server};

    #[test]
    fn same_seed_same_authority_and_leaf() {
        let (one, two) = (authority(1), authority(1));
        assert_eq!(one, two);
        assert_ne!(one, authority(2));
        let leaf = |authority: &Authority| authority.issue(&server(hours(24)), &mut seeded(9)).unwrap();
        assert_eq!(leaf(&one), leaf(&two));
    }

    #[test]
    fn a_minted_authority_is_read_back() {
        let minted = authority(1);
        assert_eq!(Authority::from_pem(minted.certificate().pem(), minted.key_pem()).unwrap(), minted);
        assert_eq!(minted.certificate().validity(), hours(87600));
    }

    #[test]
    fn another_key_is_refused() {
        let result = Authority::from_pem(authority(1).certificate().pem(), authority(2).key_pem());
        assert!(matches!(result, Err(AuthorityError::KeyMismatch)));
    }

    #[test]
    fn a_leaf_is_no_authority() {
        let leaf = authority(1).issue(&server(hours(24)), &mut seeded(9)).unwrap();
        let result = Authority::from_pem(&leaf.certificate_pem, &leaf.key_pem);
        assert!(matches!(result, Err(AuthorityError::NotAuthority)));
    }

    #[test]
    fn one_certificate_is_wanted() {
        let minted = authority(1);
        let twice = minted.certificate().pem().repeat(2);
        let refused = |pem: &str| match Authority::from_pem(pem, minted.key_pem()) {
            Err(AuthorityError::Certificate(CertificateError::NotOne { found })) => found,
            other => panic!("{other:?}"),
        };
        assert_eq!(refused(&twice), 2);
        assert_eq!(refused(""), 0);
    }

    #[test]
    fn a_name_is_wanted() {
        assert!(matches!(Authority::mint("", hours(1), &mut seeded(1)), Err(AuthorityError::NoName)));
    }

    #[test]
    fn each_generation_has_a_name_of_its_own() {
        let generation = |seed| Authority::mint_generation("infrastructure", hours(1), &mut seeded(seed)).unwrap();
        let (one, two) = (generation(1), generation(2));
        assert!(one.certificate().name.starts_with("CN=infrastructure-"), "{one:?}");
        assert_ne!(one.certificate().name, two.certificate().name);
        assert_eq!(Authority::from_pem(one.certificate().pem(), one.key_pem()).unwrap(), one);
        let leaf = one.issue(&server(hours(1)), &mut seeded(9)).unwrap();
        let leaf = certificate::decode_one(&leaf.certificate_pem).unwrap();
        assert_eq!(certificate::parse(&leaf).unwrap().issuer().to_string(), one.certificate().name);
    }

    #[test]
    fn debug_shows_no_key() {
        let minted = authority(1);
        assert_eq!(format!("{minted:?}"), "Authority(CN=kubernetes, ..)");
        assert!(minted.certificate().validity().contains(now()));
    }
}
