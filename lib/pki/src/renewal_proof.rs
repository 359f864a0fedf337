//! A worker whose certificate has expired proves that it still has the key: it signs the request for its next certificate.

use jiff::Timestamp;
use p256::ecdsa::{DerSignature, signature::Signer};
use ring::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};

use crate::{
    CertificateError, CertificateFacts, KeyError, PrivateKeyPem, VerifyError, certificate, key::KeyPair,
    verify_issued_by,
};

/// What the signature is for, so that it is good for nothing else. A nonce is not needed: a repeated proof requests a certificate for the same new key.
const PURPOSE: &[u8] = b"keelway worker renewal/1\0";

/// A proof is not valid.
#[derive(Debug, thiserror::Error)]
pub enum RenewalProofError {
    /// The certificate could not be read.
    #[error("cannot read the expired certificate")]
    Certificate(#[source] CertificateError),
    /// The cluster's authorities did not issue the certificate.
    #[error("the cluster did not issue the expired certificate")]
    Stranger(#[source] VerifyError),
    /// The signature was made with another key, or for another request.
    #[error("the signature is not that of the expired certificate's key over the request")]
    Signature,
}

/// A certificate whose key is proven.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProvenCertificate {
    /// The certificate, DER.
    pub der: Vec<u8>,
    /// Its content.
    pub facts: CertificateFacts,
}

/// Signs a certificate request (PEM) with the key of the expired certificate.
pub fn sign_renewal(key: &PrivateKeyPem, request: &[u8]) -> Result<Vec<u8>, KeyError> {
    let pair = KeyPair::from_pem(key)?;
    let signature: DerSignature = pair.signer()?.sign(&message(request));
    Ok(signature.as_bytes().to_vec())
}

/// Checks a signature of [`sign_renewal`] by the key of a certificate (PEM). The dates of the certificate are not checked.
pub fn verify_renewal(
    certificate_pem: &str,
    request: &[u8],
    signature: &[u8],
) -> Result<ProvenCertificate, RenewalProofError> {
    let der = certificate::decode_one(certificate_pem).map_err(RenewalProofError::Certificate)?;
    let parsed = certificate::parse(&der).map_err(RenewalProofError::Certificate)?;
    let facts = CertificateFacts::of(&parsed).map_err(RenewalProofError::Certificate)?;
    let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, &parsed.public_key().subject_public_key.data);
    key.verify(&message(request), signature).map_err(|_| RenewalProofError::Signature)?;
    Ok(ProvenCertificate { der, facts })
}

/// Checks that an authority of the bundle (PEM) issued the certificate, whatever the time is now.
pub fn verify_once_issued(certificate_pem: &str, bundle_pem: &str, from: Timestamp) -> Result<(), RenewalProofError> {
    verify_issued_by(certificate_pem, bundle_pem, from).map_err(RenewalProofError::Stranger)
}

fn message(request: &[u8]) -> Vec<u8> {
    [PURPOSE, request].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Authority, CertificateUsage, IssuedCertificate, LeafRequest, Validity, client_signing_request, testing::seeded,
    };

    fn at(hour: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + hour * 3600).unwrap()
    }

    fn authority(seed: u64) -> Authority {
        Authority::mint("kubernetes", Validity::new(at(0), at(1000)).unwrap(), &mut seeded(seed)).unwrap()
    }

    fn issued(authority: &Authority, seed: u64) -> IssuedCertificate {
        let request = LeafRequest {
            common_name: "system:node:w1".to_owned(),
            organizations: vec!["system:nodes".to_owned()],
            dns_names: vec![],
            ip_addresses: vec![],
            usages: vec![CertificateUsage::ClientAuth],
            validity: Validity::new(at(10), at(20)).unwrap(),
        };
        authority.issue(&request, &mut seeded(seed)).unwrap()
    }

    #[test]
    fn only_the_key_of_the_certificate_proves_a_request() {
        let authority = authority(1);
        let (own, other) = (issued(&authority, 2), issued(&authority, 3));
        let request = client_signing_request(&other.key_pem, "system:node:w1", "system:nodes").unwrap();
        let signature = sign_renewal(&own.key_pem, request.as_bytes()).unwrap();
        let proven = verify_renewal(&own.certificate_pem, request.as_bytes(), &signature).unwrap();
        assert_eq!(proven.facts.common_name.as_deref(), Some("system:node:w1"));
        let refused = |certificate: &IssuedCertificate, request: &[u8], signature: &[u8]| {
            let outcome = verify_renewal(&certificate.certificate_pem, request, signature);
            matches!(outcome, Err(RenewalProofError::Signature))
        };
        assert!(refused(&other, request.as_bytes(), &signature), "another certificate");
        assert!(refused(&own, b"another request", &signature));
        assert!(refused(&own, request.as_bytes(), &sign_renewal(&other.key_pem, request.as_bytes()).unwrap()));
        assert!(refused(&own, request.as_bytes(), &[]));
        let plain: DerSignature = KeyPair::from_pem(&own.key_pem).unwrap().signer().unwrap().sign(request.as_bytes());
        assert!(refused(&own, request.as_bytes(), plain.as_bytes()), "a signature for another purpose");
    }

    #[test]
    fn only_the_cluster_issues_certificates_that_count() {
        let (own, other) = (authority(1), authority(4));
        let issued = issued(&own, 2);
        let verify =
            |authority: &Authority| verify_once_issued(&issued.certificate_pem, authority.certificate().pem(), at(10));
        verify(&own).unwrap();
        assert!(matches!(verify(&other), Err(RenewalProofError::Stranger(_))));
    }
}
