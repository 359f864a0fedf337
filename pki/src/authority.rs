//! Certificate authorities.

use core::fmt;

use rand_core::CryptoRng;
use x509_cert::{
    Certificate, builder, der,
    ext::pkix::{BasicConstraints, KeyUsage, KeyUsages, SubjectKeyIdentifier},
    name::Name,
};

use crate::{
    CertificateError, IssuedCertificate, KeyError, LeafError, LeafRequest, PrivateKeyPem, Validity,
    certificate::{self, Statement},
    key::KeyPair,
    leaf, name,
};

/// The certificate of an authority: what those who trust it need.
#[derive(Clone, PartialEq, Eq)]
pub struct AuthorityCertificate {
    parsed: Certificate,
    pem: String,
    validity: Validity,
}

/// An authority with its key: it signs leafs, and nothing that it signs may sign.
#[derive(Clone)]
pub struct Authority {
    certificate: AuthorityCertificate,
    key: KeyPair,
    key_pem: PrivateKeyPem,
}

/// An authority that could not be minted or read.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// An authority needs a name.
    #[error("the authority's name is empty")]
    NoName,
    /// Its certificate could not be put together or signed.
    #[error("cannot mint the certificate of an authority")]
    Mint(#[source] builder::Error),
    /// Its key could not be read or written.
    #[error("cannot use the authority's key")]
    Key(#[source] KeyError),
    /// Its certificate could not be read.
    #[error("cannot read the authority's certificate")]
    Certificate(#[source] CertificateError),
    /// The certificate may not sign others: RFC 5280 wants `cA` and, where there is a key usage,
    /// `keyCertSign`.
    #[error("the certificate is not an authority's")]
    NotAuthority,
    /// The certificate is another key's.
    #[error("the authority's key does not belong to its certificate")]
    KeyMismatch,
}

impl AuthorityCertificate {
    /// Reads one certificate and checks that it is an authority's.
    pub fn from_pem(pem: &str) -> Result<Self, AuthorityError> {
        let parsed = certificate::parse_one(pem).map_err(AuthorityError::Certificate)?;
        if !may_sign(&parsed).map_err(AuthorityError::Certificate)? {
            return Err(AuthorityError::NotAuthority);
        }
        Self::new(parsed)
    }

    fn new(parsed: Certificate) -> Result<Self, AuthorityError> {
        let pem = certificate::to_pem(&parsed).map_err(|error| AuthorityError::Mint(error.into()))?;
        let validity = certificate::validity(&parsed).map_err(AuthorityError::Certificate)?;
        Ok(Self { parsed, pem, validity })
    }

    /// The certificate as PEM.
    #[must_use]
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// From when until when it holds.
    #[must_use]
    pub fn validity(&self) -> Validity {
        self.validity
    }
}

impl Authority {
    /// Mints a self-signed authority with a new key: path length 0, and the usages keyCertSign,
    /// cRLSign and digitalSignature.
    pub fn mint<R: CryptoRng + ?Sized>(
        common_name: &str,
        validity: Validity,
        rng: &mut R,
    ) -> Result<Self, AuthorityError> {
        if common_name.is_empty() {
            return Err(AuthorityError::NoName);
        }
        let key = KeyPair::generate(rng);
        let parsed = statement(common_name, validity, &key)
            .and_then(|statement| statement.sign(key.signer(), rng))
            .map_err(AuthorityError::Mint)?;
        Ok(Self {
            certificate: AuthorityCertificate::new(parsed)?,
            key_pem: key.private_pem().map_err(AuthorityError::Key)?,
            key,
        })
    }

    /// Reads an authority back, and checks that its key belongs to it.
    pub fn from_pem(certificate_pem: &str, key_pem: &PrivateKeyPem) -> Result<Self, AuthorityError> {
        let certificate = AuthorityCertificate::from_pem(certificate_pem)?;
        let key = KeyPair::from_pem(key_pem).map_err(AuthorityError::Key)?;
        let public_key = certificate::public_key_info(&key).map_err(AuthorityError::Mint)?;
        if &public_key != certificate.parsed.tbs_certificate().subject_public_key_info() {
            return Err(AuthorityError::KeyMismatch);
        }
        Ok(Self { certificate, key, key_pem: key_pem.clone() })
    }

    /// Signs a certificate with a new key for `request`. It ends with the authority at the latest.
    pub fn issue<R: CryptoRng + ?Sized>(
        &self,
        request: &LeafRequest,
        rng: &mut R,
    ) -> Result<IssuedCertificate, LeafError> {
        leaf::issue(self, request, rng)
    }

    /// Its certificate.
    #[must_use]
    pub fn certificate(&self) -> &AuthorityCertificate {
        &self.certificate
    }

    /// Its private key.
    #[must_use]
    pub fn key_pem(&self) -> &PrivateKeyPem {
        &self.key_pem
    }

    pub(crate) fn key(&self) -> &KeyPair {
        &self.key
    }

    pub(crate) fn name(&self) -> &Name {
        self.certificate.parsed.tbs_certificate().subject()
    }

    /// The identifier that its leafs name as their authority's: the one in its certificate, as
    /// verifiers compare them.
    pub(crate) fn key_id(&self) -> Result<der::asn1::OctetString, CertificateError> {
        let parsed = &self.certificate.parsed;
        match certificate::subject_key_id(parsed)? {
            Some(id) => Ok(id),
            None => {
                certificate::key_id(parsed.tbs_certificate().subject_public_key_info()).map_err(CertificateError::Parse)
            }
        }
    }
}

impl fmt::Debug for AuthorityCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AuthorityCertificate({})", self.parsed.tbs_certificate().subject())
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Authority({}, ..)", self.name())
    }
}

/// Two authorities are the same where certificate and key text are.
impl PartialEq for Authority {
    fn eq(&self, other: &Self) -> bool {
        self.certificate == other.certificate && self.key_pem == other.key_pem
    }
}

impl Eq for Authority {}

/// Whether a certificate may sign others.
pub(crate) fn may_sign(certificate: &Certificate) -> Result<bool, CertificateError> {
    let is_ca = certificate::extension::<BasicConstraints>(certificate)?.is_some_and(|constraints| constraints.ca);
    let usage = certificate::extension::<KeyUsage>(certificate)?;
    Ok(is_ca && usage.is_none_or(|usage| usage.key_cert_sign()))
}

fn statement(common_name: &str, validity: Validity, key: &KeyPair) -> builder::Result<Statement> {
    let subject = name::build(common_name, &[])?;
    let public_key = certificate::public_key_info(key)?;
    let usage = KeyUsages::KeyCertSign | KeyUsages::CRLSign | KeyUsages::DigitalSignature;
    let extensions = vec![
        certificate::encode(&BasicConstraints { ca: true, path_len_constraint: Some(0) }, &subject)?,
        certificate::encode(&KeyUsage(usage), &subject)?,
        certificate::encode(&SubjectKeyIdentifier(certificate::key_id(&public_key)?), &subject)?,
    ];
    Ok(Statement { issuer: subject.clone(), subject, validity, public_key, extensions })
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
    fn reads_back_what_it_minted() {
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
    fn debug_shows_no_key() {
        let minted = authority(1);
        assert_eq!(format!("{minted:?}"), "Authority(CN=kubernetes, ..)");
        assert!(minted.certificate().validity().contains(now()));
    }
}
