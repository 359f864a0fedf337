//! Reading certificates, and what minting an authority and a leaf have in common.

use p256::{
    ecdsa::{DerSignature, SigningKey},
    pkcs8::LineEnding,
};
use rand_core::CryptoRng;
use sha2::{Digest, Sha256};
use x509_cert::{
    Certificate, SubjectPublicKeyInfo, TbsCertificate,
    builder::{self, Builder, CertificateBuilder, profile::BuilderProfile},
    der::{self, Decode, EncodePem, asn1::OctetString, oid::AssociatedOid, pem::PemLabel},
    ext::{
        Extension, ToExtension,
        pkix::{AuthorityKeyIdentifier, SubjectKeyIdentifier},
    },
    name::Name,
    serial_number::SerialNumber,
    spki::SubjectPublicKeyInfoRef,
};

use crate::{Validity, ValidityError, key::KeyPair};

/// A certificate that could not be read.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// The text is not PEM, or what it holds is not a certificate.
    #[error("the text is not a certificate in PEM")]
    Parse(#[source] der::Error),
    /// None, or several, where one is meant.
    #[error("one certificate is wanted, the text holds {found}")]
    NotOne {
        /// How many there are.
        found: usize,
    },
    /// The subject's name cannot be read.
    #[error("cannot read the certificate's subject")]
    Subject(#[source] der::Error),
    /// An extension cannot be read or is there twice.
    #[error("cannot read the certificate's extension {oid}")]
    Extension {
        /// Which.
        oid: der::asn1::ObjectIdentifier,
        /// Why.
        #[source]
        source: der::Error,
    },
    /// The dates are none.
    #[error("the certificate's dates cannot be")]
    Dates(#[source] ValidityError),
}

const END: &str = "-----END CERTIFICATE-----";

/// The certificates of a PEM text that holds any number of them.
pub(crate) fn parse_bundle(pem: &str) -> Result<Vec<Certificate>, CertificateError> {
    let blocks = pem.split_inclusive(END).filter(|block| !block.trim().is_empty());
    blocks.map(|block| parse_block(block).map_err(CertificateError::Parse)).collect()
}

/// Decodes in two steps, as reading straight from PEM lets bytes after the certificate pass.
fn parse_block(block: &str) -> der::Result<Certificate> {
    let (label, bytes) = der::pem::decode_vec(block.as_bytes())?;
    Certificate::validate_pem_label(label)?;
    Certificate::from_der(&bytes)
}

/// The certificate of a PEM text that holds exactly one.
pub(crate) fn parse_one(pem: &str) -> Result<Certificate, CertificateError> {
    let [certificate]: [Certificate; 1] =
        parse_bundle(pem)?.try_into().map_err(|all: Vec<_>| CertificateError::NotOne { found: all.len() })?;
    Ok(certificate)
}

pub(crate) fn to_pem(certificate: &Certificate) -> der::Result<String> {
    certificate.to_pem(LineEnding::LF)
}

pub(crate) fn validity(certificate: &Certificate) -> Result<Validity, CertificateError> {
    Validity::from_x509(certificate.tbs_certificate().validity()).map_err(CertificateError::Dates)
}

/// An extension of a certificate, if it is there.
pub(crate) fn extension<'a, T>(certificate: &'a Certificate) -> Result<Option<T>, CertificateError>
where
    T: der::Decode<'a, Error = der::Error> + AssociatedOid,
{
    let found = certificate.tbs_certificate().get_extension::<T>();
    let found = found.map_err(|source| CertificateError::Extension { oid: T::OID, source })?;
    Ok(found.map(|(_critical, extension)| extension))
}

pub(crate) fn subject_key_id(certificate: &Certificate) -> Result<Option<OctetString>, CertificateError> {
    Ok(extension::<SubjectKeyIdentifier>(certificate)?.map(|id| id.0))
}

pub(crate) fn authority_key_id(certificate: &Certificate) -> Result<Option<OctetString>, CertificateError> {
    Ok(extension::<AuthorityKeyIdentifier>(certificate)?.and_then(|id| id.key_identifier))
}

/// The identifier of a key: the first 160 bits of SHA-256 over its bit string (RFC 7093, section 2,
/// method 1).
pub(crate) fn key_id(key: &SubjectPublicKeyInfo) -> der::Result<OctetString> {
    let digest = Sha256::digest(key.subject_public_key.raw_bytes());
    OctetString::new(digest.get(..20).unwrap_or(&digest))
}

/// The public half as a certificate carries it.
pub(crate) fn public_key_info(key: &KeyPair) -> builder::Result<SubjectPublicKeyInfo> {
    Ok(SubjectPublicKeyInfo::from_key(key.signer().verifying_key())?)
}

/// What a certificate says, before it is signed.
pub(crate) struct Statement {
    pub(crate) issuer: Name,
    pub(crate) subject: Name,
    pub(crate) validity: Validity,
    pub(crate) public_key: SubjectPublicKeyInfo,
    pub(crate) extensions: Vec<Extension>,
}

impl Statement {
    /// Signs it under a random serial number: positive, at most 18 octets (RFC 5280, 4.1.2.2 allows
    /// 20).
    pub(crate) fn sign<R: CryptoRng + ?Sized>(self, signer: &SigningKey, rng: &mut R) -> builder::Result<Certificate> {
        let validity = self.validity.to_x509()?;
        let public_key = self.public_key.clone();
        CertificateBuilder::new(self, SerialNumber::generate(rng), validity, public_key)?
            .build::<_, DerSignature>(signer)
    }
}

impl BuilderProfile for Statement {
    fn get_issuer(&self, _subject: &Name) -> Name {
        self.issuer.clone()
    }

    fn get_subject(&self) -> Name {
        self.subject.clone()
    }

    fn build_extensions(
        &self,
        _subject_key: SubjectPublicKeyInfoRef<'_>,
        _issuer_key: SubjectPublicKeyInfoRef<'_>,
        _statement: &TbsCertificate,
    ) -> builder::Result<Vec<Extension>> {
        Ok(self.extensions.clone())
    }
}

/// Encodes an extension with the criticality that RFC 5280 gives it.
pub(crate) fn encode(extension: impl ToExtension<Error = der::Error>, subject: &Name) -> der::Result<Extension> {
    extension.to_extension(subject, &[])
}
