//! Certificates for keys that do not leave the machine on which they were generated.

use p256::{PublicKey, Sec1Point, pkcs8::DecodePublicKey};
use rand_core::CryptoRng;
use rcgen::PublicKeyData;
use x509_parser::{certification_request::X509CertificationRequest, pem::parse_x509_pem, prelude::FromDer};

use crate::{Authority, IssuedCertificate, LeafError, LeafRequest, Serial, certificate, key::KeyPair, leaf};

const LABEL: &str = "CERTIFICATE REQUEST";

/// An error while answering a certificate signing request.
#[derive(Debug, thiserror::Error)]
pub enum RequestedError {
    /// The text is not a certificate request.
    #[error("this is not one certificate request in PEM")]
    NoRequest,
    /// The type of the key is not supported.
    #[error("the request's key is not ECDSA P-256")]
    Key(#[source] p256::pkcs8::spki::Error),
    /// The signature of the request does not match its key, so the sender has not proved that it holds the key.
    #[error("the request is not signed by its own key")]
    Signature,
    /// The certificate could not be issued.
    #[error(transparent)]
    Leaf(#[from] LeafError),
}

/// A public key whose private half another machine holds.
struct RequestedKey(Sec1Point);

impl PublicKeyData for RequestedKey {
    fn der_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    fn algorithm(&self) -> &'static rcgen::SignatureAlgorithm {
        &rcgen::PKCS_ECDSA_P256_SHA256
    }
}

impl RequestedKey {
    fn read(signing_request: &str) -> Result<Self, RequestedError> {
        let (_, block) = parse_x509_pem(signing_request.as_bytes()).map_err(|_| RequestedError::NoRequest)?;
        let parsed = X509CertificationRequest::from_der(&block.contents).map_err(|_| RequestedError::NoRequest);
        let (rest, request) = parsed?;
        if block.label != LABEL || !rest.is_empty() {
            return Err(RequestedError::NoRequest);
        }
        let key = request.certification_request_info.subject_pki.raw;
        let key = PublicKey::from_public_key_der(key).map_err(RequestedError::Key)?;
        request.verify_signature().map_err(|_| RequestedError::Signature)?;
        Ok(Self(Sec1Point::from(key)))
    }
}

impl Authority {
    /// Signs a certificate for the key of a signing request and returns it as PEM. That key must have signed the request. The subject and the names
    /// come from `request`, not from the signing request.
    pub fn certify<R: CryptoRng + ?Sized>(
        &self,
        signing_request: &str,
        request: &LeafRequest,
        serial: &Serial,
        rng: &mut R,
    ) -> Result<String, RequestedError> {
        let key = RequestedKey::read(signing_request)?;
        Ok(leaf::sign(self, request, &key, Some(serial), rng)?)
    }
}

impl IssuedCertificate {
    /// Mints a certificate that is signed by its own new key. A program presents it before an authority has issued one to it.
    pub fn self_signed<R: CryptoRng + ?Sized>(request: &LeafRequest, rng: &mut R) -> Result<Self, LeafError> {
        let key = KeyPair::generate(rng).map_err(LeafError::Key)?;
        let sign = |source| LeafError::Sign { common_name: request.common_name.clone(), source };
        let statement = leaf::statement_of(request, request.validity, rng).map_err(sign)?;
        let signed = statement.self_signed(&key).map_err(sign)?;
        Ok(Self {
            certificate_pem: certificate::to_pem(signed.der()).map_err(LeafError::Encode)?,
            key_pem: key.private_pem().clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        CertificateFacts, CertificateUsage, PrivateKeyPem, client_signing_request, key_matches_certificate,
        testing::{authority, hours, now, seeded, server},
        verify_issued_by,
    };

    fn serial() -> Serial {
        "4123456789abcdef0123456789abcdef".parse().unwrap()
    }

    #[test]
    fn the_authority_decides_the_subject_of_a_certificate() {
        let key = PrivateKeyPem::mint(&mut seeded(2)).unwrap();
        let request = client_signing_request(&key, "keelway:driver", "another").unwrap();
        let wanted = server(hours(24));
        let authority = authority(1);
        let pem = authority.certify(&request, &wanted, &serial(), &mut seeded(3)).unwrap();
        assert!(key_matches_certificate(&pem, &key).unwrap());
        verify_issued_by(&pem, authority.certificate().pem(), now()).unwrap();
        let facts = CertificateFacts::from_pem(&pem).unwrap();
        assert_eq!(facts.common_name.as_deref(), Some("kube-apiserver"));
        assert_eq!((facts.dns_names, facts.usages), (wanted.dns_names, vec![CertificateUsage::ServerAuth]));
        assert_eq!(facts.serial, serial().to_string());
    }

    #[test]
    fn a_request_without_the_key_is_refused() {
        let key = PrivateKeyPem::mint(&mut seeded(2)).unwrap();
        let request = client_signing_request(&key, "a", "b").unwrap();
        let certify = |text: &str| authority(1).certify(text, &server(hours(24)), &serial(), &mut seeded(3));
        assert!(certify(&request).is_ok());
        let (_, block) = parse_x509_pem(request.as_bytes()).unwrap();
        let mut der = block.contents;
        *der.last_mut().unwrap() ^= 1;
        let forged = p256::pkcs8::der::pem::encode_string(LABEL, p256::pkcs8::LineEnding::LF, &der).unwrap();
        assert!(matches!(certify(&forged), Err(RequestedError::Signature)));
        for none in ["", "x", authority(1).certificate().pem(), &request.replace("REQUEST", "BEQUEST")] {
            assert!(matches!(certify(none), Err(RequestedError::NoRequest)), "{none}");
        }
    }

    #[test]
    fn a_self_signed_certificate_has_no_issuer() {
        let own = IssuedCertificate::self_signed(&server(hours(1)), &mut seeded(5)).unwrap();
        assert!(key_matches_certificate(&own.certificate_pem, &own.key_pem).unwrap());
        assert!(verify_issued_by(&own.certificate_pem, authority(1).certificate().pem(), now()).is_err());
    }
}
