//! Lists of revoked certificates.

use p256::pkcs8::{LineEnding, der::pem};
use rcgen::{CertificateRevocationListParams, KeyIdMethod, RevokedCertParams};

use crate::{Authority, CertificateError, Serial, Validity, certificate};

const LABEL: &str = "X509 CRL";

/// An error while signing a revocation list.
#[derive(Debug, thiserror::Error)]
pub enum RevocationError {
    /// The certificate of the authority, or a certificate to revoke, could not be read.
    #[error("cannot read a certificate")]
    Certificate(#[source] CertificateError),
    /// The list could not be built or signed.
    #[error("cannot sign the list of revoked certificates")]
    Sign(#[source] rcgen::Error),
    /// The list could not be written as PEM.
    #[error("cannot write the list of revoked certificates")]
    Encode(#[source] pem::Error),
}

impl Authority {
    /// Signs a revocation list with exactly the certificates of these PEM texts (RFC 5280, 5). Of two lists, the one with the higher `number` is
    /// newer. `validity` is the time of this list and the time by which the next list is due.
    pub fn revoke(&self, revoked: &[&str], number: u64, validity: Validity) -> Result<String, RevocationError> {
        let serial = |pem: &&str| Ok(certificate::parse(&certificate::decode_one(pem)?)?.raw_serial().to_vec());
        let serials = revoked.iter().map(serial).collect::<Result<_, _>>().map_err(RevocationError::Certificate)?;
        self.list(serials, number, validity)
    }

    /// Signs a revocation list as [`Authority::revoke`] does, for serial numbers. The certificates themselves are not needed.
    pub fn revoke_serials(
        &self,
        revoked: &[Serial],
        number: u64,
        validity: Validity,
    ) -> Result<String, RevocationError> {
        self.list(revoked.iter().map(|serial| serial.octets().to_vec()).collect(), number, validity)
    }

    fn list(&self, serials: Vec<Vec<u8>>, number: u64, validity: Validity) -> Result<String, RevocationError> {
        let (this_update, next_update) = validity.to_x509().map_err(RevocationError::Sign)?;
        let revoked = serials.into_iter().map(|serial| RevokedCertParams {
            serial_number: serial.into(),
            revocation_time: this_update,
            reason_code: None,
            invalidity_date: None,
        });
        let list = CertificateRevocationListParams {
            this_update,
            next_update,
            crl_number: number.into(),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::PreSpecified(self.key_id().map_err(RevocationError::Certificate)?),
        };
        let signed = self.issuer().and_then(|issuer| list.signed_by(&issuer)).map_err(RevocationError::Sign)?;
        pem::encode_string(LABEL, LineEnding::LF, signed.der()).map_err(RevocationError::Encode)
    }

    fn key_id(&self) -> Result<Vec<u8>, CertificateError> {
        let der = certificate::decode_one(self.certificate().pem())?;
        let parsed = certificate::parse(&der)?;
        Ok(certificate::subject_key_id(&parsed)?.unwrap_or_default().to_vec())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{authority, hours, now, seeded, server};
    use x509_parser::{parse_x509_crl, prelude::ParsedExtension};

    fn der(list: &str) -> Vec<u8> {
        let (label, der) = pem::decode_vec(list.as_bytes()).unwrap();
        assert_eq!(label, LABEL);
        der
    }

    #[test]
    fn a_list_names_the_certificates_and_its_authority() {
        let authority = authority(1);
        let leafs = [1, 2].map(|seed| authority.issue(&server(hours(24)), &mut seeded(seed)).unwrap().certificate_pem);
        let list = der(&authority.revoke(&[&leafs[0]], 7, hours(24)).unwrap());
        let (_, list) = parse_x509_crl(&list).unwrap();
        let serial = |pem: &str| {
            let der = certificate::decode_one(pem).unwrap();
            certificate::parse(&der).unwrap().raw_serial().to_vec()
        };
        let named: Vec<_> = list.iter_revoked_certificates().map(|revoked| revoked.raw_serial().to_vec()).collect();
        assert_eq!(named, [serial(&leafs[0])]);
        assert_ne!(named, [serial(&leafs[1])]);
        assert_eq!(list.crl_number().unwrap(), &7_u32.into());
        assert_eq!(list.next_update().unwrap().timestamp(), (now() + jiff::SignedDuration::from_hours(24)).as_second());
        let own = certificate::decode_one(authority.certificate().pem()).unwrap();
        let own = certificate::parse(&own).unwrap();
        assert_eq!(list.issuer().as_raw(), own.subject().as_raw());
        assert!(list.verify_signature(own.public_key()).is_ok());
        let named_key = list.extensions().iter().find_map(|extension| {
            let ParsedExtension::AuthorityKeyIdentifier(id) = extension.parsed_extension() else { return None };
            id.key_identifier.as_ref().map(|id| id.0.to_vec())
        });
        assert_eq!(named_key.as_deref(), certificate::subject_key_id(&own).unwrap());
    }

    #[test]
    fn a_certificate_is_named_by_its_serial_number() {
        let serial: Serial = "4123456789abcdef0123456789abcdef".parse().unwrap();
        let list = der(&authority(1).revoke_serials(std::slice::from_ref(&serial), 2, hours(1)).unwrap());
        let (_, list) = parse_x509_crl(&list).unwrap();
        let named: Vec<_> = list.iter_revoked_certificates().map(|revoked| revoked.raw_serial().to_vec()).collect();
        assert_eq!(named, [serial.octets().to_vec()]);
    }

    #[test]
    fn a_list_may_be_empty() {
        let list = der(&authority(1).revoke(&[], 1, hours(1)).unwrap());
        assert_eq!(parse_x509_crl(&list).unwrap().1.iter_revoked_certificates().count(), 0);
    }
}
