//! Parses a CertificateSigningRequest.

use std::{collections::BTreeSet, net::IpAddr};

use base64::{Engine, engine::general_purpose::STANDARD};
use k8s_openapi::{api::certificates::v1::CertificateSigningRequest, jiff::Timestamp};
use keelway_api::{
    machine::sha256_hex,
    worker::{CREDENTIAL_ID, EXPIRED_CERTIFICATE, RENEWAL_SIGNATURE},
};
use keelway_pki::verify_renewal;
use x509_parser::{
    certification_request::X509CertificationRequest,
    cri_attributes::ParsedCriAttribute,
    extensions::{GeneralName, ParsedExtension},
    oid_registry::{OID_X509_COMMON_NAME, OID_X509_ORGANIZATION_NAME},
    prelude::FromDer,
};

/// A parsed request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The name of the signer.
    pub signer: String,
    /// The name of the requesting user.
    pub username: String,
    /// The groups of that user.
    pub groups: BTreeSet<String>,
    /// The id of the certificate with which the user authenticated.
    pub credential: Option<String>,
    /// The requested usages.
    pub usages: BTreeSet<String>,
    /// The content of the PKCS#10 request, or why it cannot be parsed.
    pub subject: Result<CsrSubject, MalformedRequest>,
    /// Whether the request is already decided.
    pub decided: bool,
    /// The creation time.
    pub created: Option<Timestamp>,
    /// The id of the expired certificate whose key signed the request, if the signature is valid.
    pub proven: Option<String>,
}

/// The names and the key in a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CsrSubject {
    /// The common names.
    pub common_names: Vec<String>,
    /// The organizations, which are groups.
    pub organizations: Vec<String>,
    /// Whether the subject has other parts.
    pub has_others: bool,
    /// The alternative names that are DNS names.
    pub dns_names: BTreeSet<String>,
    /// The alternative names that are addresses.
    pub addresses: BTreeSet<IpAddr>,
    /// Whether there are alternative names of another kind.
    pub has_other_names: bool,
    /// The public key, in the encoding of a certificate.
    pub key: Vec<u8>,
}

/// A request that cannot be parsed, or that two programs could parse differently.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MalformedRequest {
    /// It is not one canonical PEM block.
    #[error("the request must be exactly one PEM block CERTIFICATE REQUEST, in lines of 64 characters")]
    Pem,
    /// It is not PKCS#10.
    #[error("the request is not a valid PKCS#10 certificate request")]
    Structure,
    /// A part is there twice.
    #[error("the request contains an attribute or extension twice")]
    Twice,
    /// It contains more than alternative names.
    #[error("the request contains an attribute or extension other than alternative names")]
    Extension,
    /// A name is not text.
    #[error("a name in the request is not valid text")]
    Name,
}

impl Request {
    /// Parses a request.
    #[must_use]
    pub fn of(csr: &CertificateSigningRequest) -> Self {
        let conditions = csr.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let is_decided = conditions.count() > 0;
        let has_certificate = csr.status.as_ref().is_some_and(|status| status.certificate.is_some());
        Self {
            signer: csr.spec.signer_name.clone(),
            username: csr.spec.username.clone().unwrap_or_default(),
            groups: csr.spec.groups.iter().flatten().cloned().collect(),
            credential: csr.spec.extra.as_ref().and_then(|extra| extra.get(CREDENTIAL_ID)?.first().cloned()),
            usages: csr.spec.usages.iter().flatten().cloned().collect(),
            subject: CsrSubject::from_pem(&csr.spec.request.0),
            decided: has_certificate || is_decided,
            created: csr.metadata.creation_timestamp.as_ref().map(|created| created.0),
            proven: proven(csr),
        }
    }
}

impl CsrSubject {
    fn from_pem(pem: &[u8]) -> Result<Self, MalformedRequest> {
        let der = canonical(pem).ok_or(MalformedRequest::Pem)?;
        let (rest, request) = X509CertificationRequest::from_der(&der).map_err(|_| MalformedRequest::Structure)?;
        if !rest.is_empty() {
            return Err(MalformedRequest::Structure);
        }
        let mut subject = Self { key: request.certification_request_info.subject_pki.raw.to_vec(), ..Self::default() };
        subject.read_name(&request)?;
        subject.read_extensions(&request)?;
        Ok(subject)
    }

    fn read_name(&mut self, request: &X509CertificationRequest<'_>) -> Result<(), MalformedRequest> {
        for attribute in request.certification_request_info.subject.iter_attributes() {
            let kind = attribute.attr_type();
            let text = || attribute.as_str().map(str::to_owned).map_err(|_| MalformedRequest::Name);
            if *kind == OID_X509_COMMON_NAME {
                self.common_names.push(text()?);
            } else if *kind == OID_X509_ORGANIZATION_NAME {
                self.organizations.push(text()?);
            } else {
                self.has_others = true;
            }
        }
        Ok(())
    }

    /// Accepts only one list of extensions with only one list of names, and nothing else. A parser that skips unknown extensions and a signer
    /// that knows them would understand different requests.
    fn read_extensions(&mut self, request: &X509CertificationRequest<'_>) -> Result<(), MalformedRequest> {
        let mut lists = 0;
        let mut names = 0;
        for attribute in request.certification_request_info.iter_attributes() {
            let ParsedCriAttribute::ExtensionRequest(list) = attribute.parsed_attribute() else {
                return Err(MalformedRequest::Extension);
            };
            lists += 1;
            for extension in &list.extensions {
                let ParsedExtension::SubjectAlternativeName(san) = extension.parsed_extension() else {
                    return Err(MalformedRequest::Extension);
                };
                names += 1;
                self.read_names(&san.general_names)?;
            }
        }
        if lists > 1 || names > 1 { Err(MalformedRequest::Twice) } else { Ok(()) }
    }

    fn read_names(&mut self, names: &[GeneralName<'_>]) -> Result<(), MalformedRequest> {
        for name in names {
            if let GeneralName::DNSName(name) = name {
                self.dns_names.insert((*name).to_owned());
            } else if let GeneralName::IPAddress(bytes) = name {
                self.addresses.insert(address(bytes).ok_or(MalformedRequest::Name)?);
            } else {
                self.has_other_names = true;
            }
        }
        Ok(())
    }

    /// Whether there are alternative names of any kind.
    #[must_use]
    pub fn has_names(&self) -> bool {
        self.has_other_names || !self.dns_names.is_empty() || !self.addresses.is_empty()
    }
}

/// Returns the id of the expired certificate whose key signed the request.
fn proven(csr: &CertificateSigningRequest) -> Option<String> {
    let annotations = csr.metadata.annotations.as_ref()?;
    let signature = STANDARD.decode(annotations.get(RENEWAL_SIGNATURE)?).ok()?;
    let proven = verify_renewal(annotations.get(EXPIRED_CERTIFICATE)?, &csr.spec.request.0, &signature).ok()?;
    Some(sha256_hex(&proven.der))
}

/// Decodes a PEM block that has exactly the canonical form. A lenient parser might find a block where another parser finds none or
/// another one.
fn canonical(pem: &[u8]) -> Option<Vec<u8>> {
    const BEGIN: &str = "-----BEGIN CERTIFICATE REQUEST-----\n";
    const END: &str = "-----END CERTIFICATE REQUEST-----\n";
    let body = std::str::from_utf8(pem).ok()?.strip_prefix(BEGIN)?.strip_suffix(END)?;
    let der = STANDARD.decode(body.replace('\n', "")).ok()?;
    let text = STANDARD.encode(&der);
    let mut lines = String::with_capacity(body.len());
    for line in text.as_bytes().chunks(64) {
        lines.push_str(std::str::from_utf8(line).ok()?);
        lines.push('\n');
    }
    (!der.is_empty() && lines == body).then_some(der)
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => Some(IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?)),
        16 => Some(IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use keelway_pki::{PrivateKeyPem, client_signing_request};
    use rand::{SeedableRng, rngs::ChaCha8Rng};
    use rcgen::{CertificateParams, CustomExtension, DistinguishedName, DnType, KeyPair, SanType};

    use super::*;

    const BEGIN: &str = "-----BEGIN CERTIFICATE REQUEST-----\n";
    const END: &str = "-----END CERTIFICATE REQUEST-----\n";

    fn parameters() -> CertificateParams {
        let mut parameters = CertificateParams::default();
        let mut subject = DistinguishedName::new();
        subject.push(DnType::OrganizationName, "system:nodes");
        subject.push(DnType::CommonName, "system:node:w1");
        parameters.distinguished_name = subject;
        parameters
    }

    fn der(parameters: &CertificateParams) -> Vec<u8> {
        parameters.serialize_request(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    fn pem_of(der: &[u8], width: usize) -> String {
        let text = STANDARD.encode(der);
        let lines: Vec<&str> = text.as_bytes().chunks(width).map(|line| std::str::from_utf8(line).unwrap()).collect();
        format!("{BEGIN}{}\n{END}", lines.join("\n"))
    }

    fn read(pem: &str) -> Result<CsrSubject, MalformedRequest> {
        CsrSubject::from_pem(pem.as_bytes())
    }

    #[test]
    fn requests_of_kubelet_and_join_are_read() {
        let key = PrivateKeyPem::mint(&mut ChaCha8Rng::seed_from_u64(1)).unwrap();
        let joining = read(&client_signing_request(&key, "system:node:w1", "system:nodes").unwrap()).unwrap();
        assert_eq!(joining.common_names, ["system:node:w1"]);
        assert!(!joining.has_names());

        let mut serving = parameters();
        let address: IpAddr = "100.80.0.17".parse().unwrap();
        serving.subject_alt_names = vec![SanType::DnsName("w1".try_into().unwrap()), SanType::IpAddress(address)];
        let serving = read(&pem_of(&der(&serving), 64)).unwrap();
        assert_eq!(serving.dns_names, ["w1".to_owned()].into());
        assert_eq!(serving.addresses, [address].into());
    }

    /// Some PEM parsers accept each of these, or another part of it.
    #[test]
    fn only_the_canonical_form_is_read() {
        let (good, other) = (pem_of(&der(&parameters()), 64), pem_of(&der(&parameters()), 64));
        assert!(read(&good).is_ok());
        let body = good.strip_prefix(BEGIN).unwrap().strip_suffix(END).unwrap();
        let padded = body.trim_end().trim_end_matches('=');
        let hostile = [
            ("two blocks", format!("{good}{other}")),
            ("text before", format!("a\n{good}")),
            ("an empty line before", format!("\n{good}")),
            ("text after", format!("{good}a")),
            ("an empty line after", format!("{good}\n")),
            ("no last newline", good.trim_end().to_owned()),
            ("text after BEGIN", good.replacen("REQUEST-----\n", "REQUEST----- \n", 1)),
            ("a block that Go skips", good.replacen("REQUEST-----\n", "REQUEST-----x\n", 1) + &other),
            ("another END", good.replace("END CERTIFICATE REQUEST", "END CERTIFICATE")),
            ("another END, then another block", good.replace("END CERTIFICATE REQUEST", "END X") + &other),
            ("another label", good.replace("CERTIFICATE REQUEST", "NEW CERTIFICATE REQUEST")),
            ("headers", good.replacen("REQUEST-----\n", "REQUEST-----\nA: b\n\n", 1)),
            ("carriage returns", good.replace('\n', "\r\n")),
            ("lines of 76", pem_of(&der(&parameters()), 76)),
            ("one line", pem_of(&der(&parameters()), 10_000)),
            ("spaces", good.replacen("\nMI", "\nM I", 1)),
            ("an empty line within", good.replacen("REQUEST-----\n", "REQUEST-----\n\n", 1)),
            ("a character of no base64", good.replacen("\nMI", "\nM*I", 1)),
            ("more padding", format!("{BEGIN}{padded}====\n{END}")),
            ("a block within", format!("{BEGIN}{body}{BEGIN}{body}{END}")),
            ("nothing", String::new()),
            ("an empty block", format!("{BEGIN}{END}")),
            ("an empty line as block", format!("{BEGIN}\n{END}")),
            ("base64 alone", body.to_owned()),
        ];
        for (what, pem) in hostile {
            assert_eq!(read(&pem), Err(MalformedRequest::Pem), "{what}");
        }
        assert_eq!(CsrSubject::from_pem(&[0xff, 0xfe]), Err(MalformedRequest::Pem));
        let marked = [&[0xef, 0xbb, 0xbf], good.as_bytes()].concat();
        assert_eq!(CsrSubject::from_pem(&marked), Err(MalformedRequest::Pem), "a byte order mark");
    }

    #[test]
    fn the_block_contains_exactly_one_request() {
        let good = der(&parameters());
        let trailing = [good.as_slice(), &[0]].concat();
        let twice = [good.as_slice(), &good].concat();
        for (what, der) in [
            ("more behind it", trailing.as_slice()),
            ("two of them", &twice),
            ("half of one", &good[..good.len() / 2]),
            ("no request", &[0x30, 0x03, 0x02, 0x01, 0x00]),
        ] {
            assert_eq!(read(&pem_of(der, 64)), Err(MalformedRequest::Structure), "{what}");
        }
    }

    #[test]
    fn extensions_are_alternative_names_only() {
        const NAMES: &[u64] = &[2, 5, 29, 17];
        // SEQUENCE { dNSName w1 }
        const W1: &[u8] = &[0x30, 0x04, 0x82, 0x02, b'w', b'1'];
        let with = |oids: &[&[u64]], content: &[u8]| {
            let mut parameters = parameters();
            let extension = |oid: &&[u64]| CustomExtension::from_oid_content(oid, content.to_vec());
            parameters.custom_extensions = oids.iter().map(extension).collect();
            read(&pem_of(&der(&parameters), 64))
        };
        assert_eq!(with(&[NAMES], W1).unwrap().dns_names, ["w1".to_owned()].into());
        assert_eq!(with(&[NAMES, NAMES], W1), Err(MalformedRequest::Twice));
        assert_eq!(
            with(&[&[2, 5, 29, 19]], &[0x30, 0x03, 0x01, 0x01, 0xff]),
            Err(MalformedRequest::Extension),
            "an authority"
        );
        assert_eq!(
            with(&[&[1, 3, 6, 1, 4, 1, 99999, 1]], &[0x05, 0x00]),
            Err(MalformedRequest::Extension),
            "an unknown one"
        );
        assert_eq!(with(&[NAMES], &[0x05, 0x00]), Err(MalformedRequest::Extension), "invalid names");
        // An address of three bytes, and an email address.
        assert_eq!(with(&[NAMES], &[0x30, 0x05, 0x87, 0x03, 1, 2, 3]), Err(MalformedRequest::Name));
        assert!(with(&[NAMES], &[0x30, 0x05, 0x81, 0x03, b'a', b'@', b'b']).unwrap().has_other_names);
    }
}
