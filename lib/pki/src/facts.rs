//! The content of a certificate.

use core::fmt::Write;
use std::net::IpAddr;

use x509_parser::{
    certificate::X509Certificate,
    extensions::{ExtendedKeyUsage, GeneralName},
};

use crate::{CertificateError, CertificateUsage, Validity, certificate, name};

/// The content of a certificate in plain types. Nothing is verified here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFacts {
    /// The serial number in hexadecimal digits.
    pub serial: String,
    /// The subject's common name.
    pub common_name: Option<String>,
    /// The subject's organizations, in order.
    pub organizations: Vec<String>,
    /// The DNS names among the subject's alternative names, in order.
    pub dns_names: Vec<String>,
    /// The addresses among the subject's alternative names, in order.
    pub ip_addresses: Vec<IpAddr>,
    /// The extended key usages that this crate knows, `ServerAuth` first.
    pub usages: Vec<CertificateUsage>,
    /// The period during which the certificate is valid.
    pub validity: Validity,
    /// Whether the certificate is that of an authority.
    pub is_authority: bool,
    /// The subject key identifier.
    pub key_id: Option<Vec<u8>>,
    /// The authority key identifier: it identifies the key that signed the certificate.
    pub authority_key_id: Option<Vec<u8>>,
}

impl CertificateFacts {
    /// Reads a PEM text with exactly one certificate.
    pub fn from_pem(pem: &str) -> Result<Self, CertificateError> {
        Self::of(&certificate::parse(&certificate::decode_one(pem)?)?)
    }

    /// Reads a certificate in DER, as TLS sends it.
    pub fn from_der(der: &[u8]) -> Result<Self, CertificateError> {
        Self::of(&certificate::parse(der)?)
    }

    /// Returns the subject key identifier in hexadecimal digits.
    #[must_use]
    pub fn key_digits(&self) -> Option<String> {
        self.key_id.as_deref().map(hex)
    }

    /// Returns the authority key identifier in hexadecimal digits.
    #[must_use]
    pub fn issuer_digits(&self) -> Option<String> {
        self.authority_key_id.as_deref().map(hex)
    }

    pub(crate) fn of(parsed: &X509Certificate<'_>) -> Result<Self, CertificateError> {
        let alternative_names = certificate::alternative_names(parsed)?;
        let constraints = certificate::basic_constraints(parsed)?;
        Ok(Self {
            serial: hex(parsed.raw_serial()),
            common_name: name::common_name(parsed.subject()).map_err(CertificateError::Subject)?,
            organizations: name::organizations(parsed.subject()).map_err(CertificateError::Subject)?,
            dns_names: alternative_names.iter().filter_map(dns_name).collect(),
            ip_addresses: alternative_names.iter().filter_map(ip_address).collect(),
            usages: certificate::extended_key_usage(parsed)?.map(usages).unwrap_or_default(),
            validity: certificate::validity(parsed)?,
            is_authority: constraints.is_some_and(|constraints| constraints.ca),
            key_id: certificate::subject_key_id(parsed)?.map(<[u8]>::to_vec),
            authority_key_id: certificate::authority_key_id(parsed)?.map(<[u8]>::to_vec),
        })
    }
}

fn usages(extension: &ExtendedKeyUsage<'_>) -> Vec<CertificateUsage> {
    let known =
        [(extension.server_auth, CertificateUsage::ServerAuth), (extension.client_auth, CertificateUsage::ClientAuth)];
    known.into_iter().filter_map(|(is_there, usage)| is_there.then_some(usage)).collect()
}

fn dns_name(name: &GeneralName<'_>) -> Option<String> {
    if let GeneralName::DNSName(name) = name { Some((*name).to_owned()) } else { None }
}

fn ip_address(name: &GeneralName<'_>) -> Option<IpAddr> {
    let GeneralName::IPAddress(octets) = name else {
        return None;
    };
    let v4 = <[u8; 4]>::try_from(*octets).map(IpAddr::from);
    v4.or_else(|_| <[u8; 16]>::try_from(*octets).map(IpAddr::from)).ok()
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        LeafRequest,
        testing::{authority, hours, seeded},
    };
    use proptest::prelude::*;

    fn request() -> impl Strategy<Value = LeafRequest> {
        let usages = prop::sample::select(vec![
            vec![CertificateUsage::ServerAuth],
            vec![CertificateUsage::ClientAuth],
            vec![CertificateUsage::ServerAuth, CertificateUsage::ClientAuth],
        ]);
        (
            ".{1,64}",
            prop::collection::vec(".{1,40}", 0..2),
            prop::collection::vec("[a-z0-9]{1,20}(\\.[a-z0-9]{1,20}){0,3}", 1..4),
            prop::collection::vec(any::<IpAddr>(), 0..4),
            usages,
            1_i64..87600,
        )
            .prop_map(|(common_name, organizations, dns_names, ip_addresses, usages, lifetime)| LeafRequest {
                common_name,
                organizations,
                dns_names,
                ip_addresses,
                usages,
                validity: hours(lifetime),
            })
    }

    /// Returns the base64 text between the begin and end lines of a certificate.
    fn body(pem: &str) -> String {
        let begin = pem.find("CERTIFICATE-----").unwrap();
        let end = pem.find("-----END").unwrap();
        pem[begin..end].split_whitespace().collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]
        #[test]
        fn facts_are_those_of_the_request(request in request(), seed: u64) {
            let authority = authority(1);
            let leaf = authority.issue(&request, &mut seeded(seed)).unwrap();
            let facts = CertificateFacts::from_pem(&leaf.certificate_pem).unwrap();
            let issuer = CertificateFacts::from_pem(authority.certificate().pem()).unwrap();
            prop_assert_eq!(facts.common_name.as_ref(), Some(&request.common_name));
            prop_assert_eq!(&facts.organizations, &request.organizations);
            prop_assert_eq!(&facts.dns_names, &request.dns_names);
            prop_assert_eq!(&facts.ip_addresses, &request.ip_addresses);
            prop_assert_eq!(&facts.usages, &request.usages);
            prop_assert_eq!(facts.validity, request.validity);
            prop_assert!(!facts.is_authority && issuer.is_authority);
            prop_assert!(issuer.key_id.is_some());
            prop_assert_eq!(facts.authority_key_id, issuer.key_id);
        }

        #[test]
        fn damaged_text_is_refused_or_holds_something_else(position: prop::sample::Index, byte: u8) {
            let pem = authority(1).certificate().pem().to_owned();
            let original = certificate::decode_one(&pem).unwrap();
            let mut damaged = pem.clone().into_bytes();
            let position = position.index(damaged.len());
            damaged[position] = byte & 0x7f;
            let damaged = String::from_utf8(damaged).unwrap();
            if CertificateFacts::from_pem(&damaged).is_ok() {
                let same_body = body(&damaged) == body(&pem);
                prop_assert_eq!(certificate::decode_one(&damaged).unwrap() == original, same_body);
            }
        }
    }
}
