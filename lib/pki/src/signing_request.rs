//! Certificate signing requests: the holder of a key requests a certificate from an authority elsewhere.

use std::net::IpAddr;

use p256::pkcs8::{LineEnding, der::pem};
use rand_core::CryptoRng;
use rcgen::{CertificateParams, SanType};

use crate::{KeyError, PrivateKeyPem, key::KeyPair, name};

/// An error while creating a signing request.
#[derive(Debug, thiserror::Error)]
pub enum SigningRequestError {
    /// The key could not be read or generated.
    #[error("cannot use the key of the request")]
    Key(#[source] KeyError),
    /// The request could not be built or signed.
    #[error("cannot sign the request for {common_name:?}")]
    Sign {
        /// The common name of the request.
        common_name: String,
        /// The error of rcgen.
        #[source]
        source: rcgen::Error,
    },
    /// The request could not be written as PEM.
    #[error("cannot write the request")]
    Encode(#[source] pem::Error),
}

impl PrivateKeyPem {
    /// Mints a new key in PKCS#8.
    pub fn mint<R: CryptoRng + ?Sized>(rng: &mut R) -> Result<Self, KeyError> {
        KeyPair::generate(rng).map(|key| key.private_pem().clone())
    }
}

/// Returns a certificate request for a client as PEM (PKCS#10, RFC 2986). It has a subject and no alternative names.
pub fn client_signing_request(
    key: &PrivateKeyPem,
    common_name: &str,
    organization: &str,
) -> Result<String, SigningRequestError> {
    signing_request(key, common_name, organization, Vec::new())
}

/// Returns a certificate request for a server with these names and addresses as PEM.
pub fn server_signing_request(
    key: &PrivateKeyPem,
    common_name: &str,
    organization: &str,
    (dns_names, addresses): (&[String], &[IpAddr]),
) -> Result<String, SigningRequestError> {
    let names = dns_names.iter().map(|name| name.as_str().try_into().map(SanType::DnsName));
    let addresses = addresses.iter().copied().map(SanType::IpAddress);
    let alternatives: Result<Vec<_>, _> = names.chain(addresses.map(Ok)).collect();
    let alternatives =
        alternatives.map_err(|source| SigningRequestError::Sign { common_name: common_name.to_owned(), source })?;
    signing_request(key, common_name, organization, alternatives)
}

fn signing_request(
    key: &PrivateKeyPem,
    common_name: &str,
    organization: &str,
    alternatives: Vec<SanType>,
) -> Result<String, SigningRequestError> {
    let key = KeyPair::from_pem(key).map_err(SigningRequestError::Key)?;
    let mut request = CertificateParams::default();
    request.distinguished_name = name::build(common_name, Some(organization));
    request.subject_alt_names = alternatives;
    let signed = request
        .serialize_request(&key)
        .map_err(|source| SigningRequestError::Sign { common_name: common_name.to_owned(), source })?;
    pem::encode_string("CERTIFICATE REQUEST", LineEnding::LF, signed.der()).map_err(SigningRequestError::Encode)
}

#[cfg(test)]
mod tests {
    use x509_parser::{
        certification_request::X509CertificationRequest,
        extensions::{GeneralName, ParsedExtension},
        pem::Pem,
        prelude::FromDer,
    };

    use super::*;
    use crate::testing::seeded;

    #[test]
    fn a_request_holds_the_subject_and_is_signed_by_its_key() {
        let key = PrivateKeyPem::mint(&mut seeded(1)).unwrap();
        let text = client_signing_request(&key, "system:node:w1", "system:nodes").unwrap();
        let (block, _) = Pem::read(std::io::Cursor::new(text.as_bytes())).unwrap();
        assert_eq!(block.label, "CERTIFICATE REQUEST");
        let (rest, request) = X509CertificationRequest::from_der(&block.contents).unwrap();
        assert!(rest.is_empty());
        request.verify_signature().unwrap();
        let subject = &request.certification_request_info.subject;
        assert_eq!(name::common_name(subject).unwrap().as_deref(), Some("system:node:w1"));
        assert_eq!(name::organizations(subject).unwrap(), ["system:nodes"]);
        assert_eq!(request.requested_extensions().map(Iterator::count).unwrap_or_default(), 0);
    }

    #[test]
    fn a_request_of_a_server_holds_its_names_and_addresses() {
        let key = PrivateKeyPem::mint(&mut seeded(1)).unwrap();
        let names = (["w1".to_owned()], ["10.0.0.7".parse().unwrap(), "fd00::7".parse().unwrap()]);
        let text = server_signing_request(&key, "system:node:w1", "system:nodes", (&names.0, &names.1)).unwrap();
        let (block, _) = Pem::read(std::io::Cursor::new(text.as_bytes())).unwrap();
        let (_, request) = X509CertificationRequest::from_der(&block.contents).unwrap();
        request.verify_signature().unwrap();
        let mut extensions = request.requested_extensions().unwrap();
        let Some(ParsedExtension::SubjectAlternativeName(found)) = extensions.next() else { panic!("no names") };
        let octets = names.1.map(|address: IpAddr| match address {
            IpAddr::V4(address) => address.octets().to_vec(),
            IpAddr::V6(address) => address.octets().to_vec(),
        });
        let wanted =
            [GeneralName::DNSName("w1"), GeneralName::IPAddress(&octets[0]), GeneralName::IPAddress(&octets[1])];
        assert_eq!(found.general_names, wanted);
        assert!(extensions.next().is_none());
    }
}
