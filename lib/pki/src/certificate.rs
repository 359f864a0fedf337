//! Reading certificates.

use p256::pkcs8::{LineEnding, der::pem};
use x509_parser::{
    certificate::X509Certificate,
    error::X509Error,
    extensions::{BasicConstraints, ExtendedKeyUsage, GeneralName, KeyUsage, ParsedExtension},
    oid_registry::{
        OID_X509_EXT_AUTHORITY_KEY_IDENTIFIER, OID_X509_EXT_BASIC_CONSTRAINTS, OID_X509_EXT_EXTENDED_KEY_USAGE,
        OID_X509_EXT_KEY_USAGE, OID_X509_EXT_SUBJECT_ALT_NAME, OID_X509_EXT_SUBJECT_KEY_IDENTIFIER, Oid,
    },
    parse_x509_certificate,
};

use crate::{Validity, ValidityError};

/// An error while reading a certificate.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    /// The text is not PEM, or it is PEM of another type.
    #[error("the text is not a certificate in PEM")]
    Pem(#[source] pem::Error),
    /// The PEM text does not contain a certificate.
    #[error("the PEM block does not contain a certificate")]
    Parse(#[source] X509Error),
    /// The text contains no certificate or several, and the caller expects exactly one.
    #[error("expected one certificate, found {found}")]
    NotOne {
        /// The number of certificates in the text.
        found: usize,
    },
    /// The name of the subject could not be read.
    #[error("cannot read the certificate's subject")]
    Subject(#[source] X509Error),
    /// An extension could not be read, or it occurs twice.
    #[error("cannot read the certificate's extension {oid}")]
    Extension {
        /// The identifier of the extension.
        oid: Oid<'static>,
        /// The error of the parser.
        #[source]
        source: X509Error,
    },
    /// The dates do not form a valid period.
    #[error("the certificate's dates are not valid")]
    Dates(#[source] ValidityError),
}

const LABEL: &str = "CERTIFICATE";
const END: &str = "-----END CERTIFICATE-----";

/// Decodes a PEM text with any number of certificates to DER. Parsing is strict (RFC 7468), as for keys: a damaged certificate is an
/// error, and is not left out.
pub(crate) fn decode_bundle(pem: &str) -> Result<Vec<Vec<u8>>, CertificateError> {
    let blocks = pem.split_inclusive(END).filter(|block| !block.trim().is_empty());
    blocks.map(|block| decode_block(block).map_err(CertificateError::Pem)).collect()
}

fn decode_block(block: &str) -> Result<Vec<u8>, pem::Error> {
    match pem::decode_vec(block.as_bytes())? {
        (LABEL, der) => Ok(der),
        _ => Err(pem::Error::UnexpectedTypeLabel { expected: LABEL }),
    }
}

/// Decodes a PEM text with exactly one certificate to DER.
pub(crate) fn decode_one(pem: &str) -> Result<Vec<u8>, CertificateError> {
    let [der]: [Vec<u8>; 1] =
        decode_bundle(pem)?.try_into().map_err(|all: Vec<_>| CertificateError::NotOne { found: all.len() })?;
    Ok(der)
}

/// Parses DER that contains one certificate and no trailing data.
pub(crate) fn parse(der: &[u8]) -> Result<X509Certificate<'_>, CertificateError> {
    match parse_x509_certificate(der) {
        Ok(([], parsed)) => Ok(parsed),
        Ok(_) => Err(CertificateError::Parse(X509Error::InvalidCertificate)),
        Err(error) => Err(CertificateError::Parse(error.into())),
    }
}

pub(crate) fn to_pem(der: &[u8]) -> Result<String, CertificateError> {
    pem::encode_string(LABEL, LineEnding::LF, der).map_err(CertificateError::Pem)
}

pub(crate) fn validity(certificate: &X509Certificate<'_>) -> Result<Validity, CertificateError> {
    Validity::from_x509(certificate.validity()).map_err(CertificateError::Dates)
}

pub(crate) fn basic_constraints(
    certificate: &X509Certificate<'_>,
) -> Result<Option<BasicConstraints>, CertificateError> {
    extension(certificate, OID_X509_EXT_BASIC_CONSTRAINTS, |parsed| {
        if let ParsedExtension::BasicConstraints(constraints) = parsed { Some(constraints.clone()) } else { None }
    })
}

pub(crate) fn key_usage(certificate: &X509Certificate<'_>) -> Result<Option<KeyUsage>, CertificateError> {
    extension(certificate, OID_X509_EXT_KEY_USAGE, |parsed| {
        if let ParsedExtension::KeyUsage(usage) = parsed { Some(*usage) } else { None }
    })
}

pub(crate) fn extended_key_usage<'a>(
    certificate: &'a X509Certificate<'a>,
) -> Result<Option<&'a ExtendedKeyUsage<'a>>, CertificateError> {
    extension(certificate, OID_X509_EXT_EXTENDED_KEY_USAGE, |parsed| {
        if let ParsedExtension::ExtendedKeyUsage(usage) = parsed { Some(usage) } else { None }
    })
}

pub(crate) fn alternative_names<'a>(
    certificate: &'a X509Certificate<'a>,
) -> Result<&'a [GeneralName<'a>], CertificateError> {
    let names = extension(certificate, OID_X509_EXT_SUBJECT_ALT_NAME, |parsed| {
        if let ParsedExtension::SubjectAlternativeName(names) = parsed {
            Some(names.general_names.as_slice())
        } else {
            None
        }
    });
    Ok(names?.unwrap_or_default())
}

pub(crate) fn subject_key_id<'a>(certificate: &'a X509Certificate<'a>) -> Result<Option<&'a [u8]>, CertificateError> {
    extension(certificate, OID_X509_EXT_SUBJECT_KEY_IDENTIFIER, |parsed| {
        if let ParsedExtension::SubjectKeyIdentifier(id) = parsed { Some(id.0) } else { None }
    })
}

pub(crate) fn authority_key_id<'a>(certificate: &'a X509Certificate<'a>) -> Result<Option<&'a [u8]>, CertificateError> {
    let id = extension(certificate, OID_X509_EXT_AUTHORITY_KEY_IDENTIFIER, |parsed| {
        if let ParsedExtension::AuthorityKeyIdentifier(id) = parsed { Some(id.key_identifier.as_ref()) } else { None }
    });
    Ok(id?.flatten().map(|id| id.0))
}

/// Returns an extension of a certificate, or `None` if the certificate does not have it. `read` returns `None` if the parser could not
/// decode the extension, which is an error.
fn extension<'a, T>(
    certificate: &'a X509Certificate<'a>,
    oid: Oid<'static>,
    read: impl FnOnce(&'a ParsedExtension<'a>) -> Option<T>,
) -> Result<Option<T>, CertificateError> {
    let value = match certificate.get_extension_unique(&oid) {
        Ok(None) => return Ok(None),
        Ok(Some(found)) => read(found.parsed_extension()).ok_or(X509Error::InvalidExtensions),
        Err(error) => Err(error),
    };
    value.map(Some).map_err(|source| CertificateError::Extension { oid, source })
}
