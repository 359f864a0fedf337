//! Checks that a key, a certificate and a bundle of authorities belong together.

use jiff::Timestamp;
use rcgen::PublicKeyData;
use x509_parser::{certificate::X509Certificate, oid_registry::OID_SIG_ECDSA_WITH_SHA256};

use crate::{
    CertificateError, CertificateFacts, KeyError, PrivateKeyPem, Validity, authority, certificate, key::KeyPair,
};

/// The reason that a certificate, a key and a bundle do not belong together.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// The certificate could not be read.
    #[error("cannot read the certificate")]
    Certificate(#[source] CertificateError),
    /// The bundle could not be read.
    #[error("cannot read the authorities' bundle")]
    Bundle(#[source] CertificateError),
    /// The key could not be read.
    #[error("cannot read the private key")]
    Key(#[source] KeyError),
    /// No authority of the bundle signed the certificate.
    #[error("no authority of the bundle signed the certificate")]
    NotIssued,
    /// The certificate is not valid at the given time.
    #[error(
        "the certificate is valid from {} to {}, not at {now}",
        validity.not_before(),
        validity.not_after()
    )]
    CertificateDates {
        /// The validity of the certificate.
        validity: Validity,
        /// The time of use.
        now: Timestamp,
    },
    /// The authority that signed the certificate is not valid at the given time.
    #[error(
        "the certificate's authority is valid from {} to {}, not at {now}",
        validity.not_before(),
        validity.not_after()
    )]
    AuthorityDates {
        /// The validity of the authority.
        validity: Validity,
        /// The time of use.
        now: Timestamp,
    },
}

/// Returns whether the private key belongs to the certificate. Every field of the certificate must be readable.
///
/// If the key contains its public half (RFC 5915, section 3), only that half is compared, which takes a thousandth of the time needed to compute
/// it. All keys that are minted here contain it.
pub fn key_matches_certificate(certificate_pem: &str, key_pem: &PrivateKeyPem) -> Result<bool, VerifyError> {
    let der = certificate::decode_one(certificate_pem).map_err(VerifyError::Certificate)?;
    let parsed = certificate::parse(&der).map_err(VerifyError::Certificate)?;
    CertificateFacts::of(&parsed).map_err(VerifyError::Certificate)?;
    if key_pem.carries(&parsed.public_key().subject_public_key.data) {
        return Ok(true);
    }
    let key = KeyPair::from_pem(key_pem).map_err(VerifyError::Key)?;
    Ok(key.subject_public_key_info() == parsed.public_key().raw)
}

/// Checks that an authority of the bundle signed the certificate directly, without an intermediate, and that both are valid at `now`. Usages are
/// not checked.
pub fn verify_issued_by(certificate_pem: &str, bundle_pem: &str, now: Timestamp) -> Result<(), VerifyError> {
    let leaf = certificate::decode_one(certificate_pem).map_err(VerifyError::Certificate)?;
    let leaf = certificate::parse(&leaf).map_err(VerifyError::Certificate)?;
    let bundle = certificate::decode_bundle(bundle_pem).map_err(VerifyError::Bundle)?;
    let mut issuer = None;
    for authority in &bundle {
        let authority = certificate::parse(authority).map_err(VerifyError::Bundle)?;
        if authority::may_sign(&authority).map_err(VerifyError::Bundle)? && signed(&authority, &leaf)? {
            issuer = Some(authority);
            break;
        }
    }
    let issuer = issuer.ok_or(VerifyError::NotIssued)?;
    let validity = certificate::validity(&issuer).map_err(VerifyError::Bundle)?;
    if !validity.contains(now) {
        return Err(VerifyError::AuthorityDates { validity, now });
    }
    let validity = certificate::validity(&leaf).map_err(VerifyError::Certificate)?;
    if !validity.contains(now) {
        return Err(VerifyError::CertificateDates { validity, now });
    }
    Ok(())
}

fn signed(authority: &X509Certificate<'_>, leaf: &X509Certificate<'_>) -> Result<bool, VerifyError> {
    if authority.subject().as_raw() != leaf.issuer().as_raw() {
        return Ok(false);
    }
    let wanted = certificate::authority_key_id(leaf).map_err(VerifyError::Certificate)?;
    let own = certificate::subject_key_id(authority).map_err(VerifyError::Bundle)?;
    let other_key = wanted.is_some() && own.is_some() && wanted != own;
    Ok(!other_key && signature_holds(authority, leaf))
}

/// Accepts only ECDSA with SHA-256. Certificates of Keelway use nothing else, and the parser would also accept RSA with SHA-1.
fn signature_holds(authority: &X509Certificate<'_>, leaf: &X509Certificate<'_>) -> bool {
    let algorithm = &leaf.signature_algorithm;
    algorithm.algorithm == OID_SIG_ECDSA_WITH_SHA256
        && algorithm == &leaf.tbs_certificate.signature
        && leaf.verify_signature(Some(authority.public_key())).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Authority,
        testing::{authority, hours, now, seeded, server},
    };
    use jiff::ToSpan;

    fn leaf(authority: &Authority) -> crate::IssuedCertificate {
        authority.issue(&server(hours(24)), &mut seeded(5)).unwrap()
    }

    #[test]
    fn issued_by_any_of_the_bundle() {
        let (old, new) = (authority(1), authority(2));
        let bundle = format!("{}{}", old.certificate().pem(), new.certificate().pem());
        for authority in [&old, &new] {
            verify_issued_by(&leaf(authority).certificate_pem, &bundle, now()).unwrap();
        }
    }

    #[test]
    fn another_authority_of_the_same_name_did_not_issue_it() {
        let result = verify_issued_by(&leaf(&authority(1)).certificate_pem, authority(2).certificate().pem(), now());
        assert!(matches!(result, Err(VerifyError::NotIssued)));
        let result = verify_issued_by(&leaf(&authority(1)).certificate_pem, "", now());
        assert!(matches!(result, Err(VerifyError::NotIssued)));
    }

    #[test]
    fn a_changed_certificate_is_not_issued() {
        let authority = authority(1);
        let mut bytes = certificate::decode_one(&leaf(&authority).certificate_pem).unwrap();
        let position = bytes.windows(14).position(|part| part == b"kube-apiserver").unwrap();
        bytes[position] = b'K';
        certificate::parse(&bytes).unwrap();
        let pem = certificate::to_pem(&bytes).unwrap();
        let result = verify_issued_by(&pem, authority.certificate().pem(), now());
        assert!(matches!(result, Err(VerifyError::NotIssued)));
    }

    #[test]
    fn a_leaf_issues_nothing() {
        let leaf = leaf(&authority(1));
        let result = verify_issued_by(&leaf.certificate_pem, &leaf.certificate_pem, now());
        assert!(matches!(result, Err(VerifyError::NotIssued)));
    }

    #[test]
    fn dates_count() {
        let authority = Authority::mint("kubernetes", hours(24), &mut seeded(1)).unwrap();
        let leaf = authority.issue(&server(hours(12)), &mut seeded(5)).unwrap();
        let at = |time| verify_issued_by(&leaf.certificate_pem, authority.certificate().pem(), time);
        at(now() - 5.minutes()).unwrap();
        at(now() + 12.hours()).unwrap();
        assert!(matches!(at(now() + 13.hours()), Err(VerifyError::CertificateDates { .. })));
        assert!(matches!(at(now() + 25.hours()), Err(VerifyError::AuthorityDates { .. })));
        assert!(matches!(at(now() - 1.hour()), Err(VerifyError::AuthorityDates { .. })));
    }

    #[test]
    fn a_key_matches_its_certificate_only() {
        let (one, two) = (leaf(&authority(1)), authority(1));
        assert!(key_matches_certificate(&one.certificate_pem, &one.key_pem).unwrap());
        assert!(!key_matches_certificate(&one.certificate_pem, two.key_pem()).unwrap());
        assert!(key_matches_certificate(two.certificate().pem(), two.key_pem()).unwrap());
    }
}
