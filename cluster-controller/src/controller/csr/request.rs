//! What a CertificateSigningRequest asks for, read from it.

use std::{collections::BTreeSet, net::IpAddr};

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use x509_parser::{
    certification_request::X509CertificationRequest,
    cri_attributes::ParsedCriAttribute,
    extensions::{GeneralName, ParsedExtension},
    oid_registry::{OID_X509_COMMON_NAME, OID_X509_ORGANIZATION_NAME},
    pem::Pem,
    prelude::FromDer,
};

/// Who asks for which certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    /// The signer that is asked.
    pub(crate) signer: String,
    /// The user that asks.
    pub(crate) username: String,
    /// The user's groups.
    pub(crate) groups: BTreeSet<String>,
    /// The usages that are asked for.
    pub(crate) usages: BTreeSet<String>,
    /// What is in the request itself, or why it cannot be read.
    pub(crate) subject: Result<Subject, IllFormed>,
    /// Whether somebody has decided about it.
    pub(crate) decided: bool,
    /// Whether that was to approve it.
    pub(crate) approved: bool,
}

/// The names and the key in a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Subject {
    /// Common names.
    pub(crate) common_names: Vec<String>,
    /// Organizations.
    pub(crate) organizations: Vec<String>,
    /// Whether the subject has other parts.
    pub(crate) has_others: bool,
    /// DNS names.
    pub(crate) dns_names: BTreeSet<String>,
    /// Addresses.
    pub(crate) addresses: BTreeSet<IpAddr>,
    /// Whether there are alternative names of another kind.
    pub(crate) has_other_names: bool,
    /// The public key, as a certificate has it.
    pub(crate) key: Vec<u8>,
}

/// A request that cannot be read, or that two programs could read in two ways.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum IllFormed {
    #[error("the request is no PEM block with a certificate request")]
    Pem,
    #[error("the request is no PKCS#10 certificate request")]
    Structure,
    #[error("the request has an attribute or extension twice")]
    Twice,
    #[error("a name in the request is no text")]
    Name,
}

impl Request {
    pub(crate) fn of(csr: &CertificateSigningRequest) -> Self {
        let conditions = csr.status.iter().flat_map(|status| status.conditions.iter().flatten());
        let kinds: BTreeSet<&str> = conditions.map(|condition| condition.type_.as_str()).collect();
        let has_certificate = csr.status.as_ref().is_some_and(|status| status.certificate.is_some());
        Self {
            signer: csr.spec.signer_name.clone(),
            username: csr.spec.username.clone().unwrap_or_default(),
            groups: csr.spec.groups.iter().flatten().cloned().collect(),
            usages: csr.spec.usages.iter().flatten().cloned().collect(),
            subject: Subject::from_pem(&csr.spec.request.0),
            decided: has_certificate || !kinds.is_empty(),
            approved: kinds.contains("Approved"),
        }
    }
}

impl Subject {
    fn from_pem(pem: &[u8]) -> Result<Self, IllFormed> {
        let (block, _) = Pem::read(std::io::Cursor::new(pem)).map_err(|_| IllFormed::Pem)?;
        if block.label != "CERTIFICATE REQUEST" {
            return Err(IllFormed::Pem);
        }
        let (rest, request) = X509CertificationRequest::from_der(&block.contents).map_err(|_| IllFormed::Structure)?;
        if !rest.is_empty() {
            return Err(IllFormed::Structure);
        }
        let mut subject = Self { key: request.certification_request_info.subject_pki.raw.to_vec(), ..Self::default() };
        subject.read_name(&request)?;
        subject.read_extensions(&request)?;
        Ok(subject)
    }

    fn read_name(&mut self, request: &X509CertificationRequest<'_>) -> Result<(), IllFormed> {
        for attribute in request.certification_request_info.subject.iter_attributes() {
            let kind = attribute.attr_type();
            let text = || attribute.as_str().map(str::to_owned).map_err(|_| IllFormed::Name);
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

    /// Only one list of extensions and one list of names in it: a reader that takes the first of two and a signer that takes
    /// both would not mean the same.
    fn read_extensions(&mut self, request: &X509CertificationRequest<'_>) -> Result<(), IllFormed> {
        let mut lists = 0;
        let mut names = 0;
        for attribute in request.certification_request_info.iter_attributes() {
            let ParsedCriAttribute::ExtensionRequest(list) = attribute.parsed_attribute() else {
                continue;
            };
            lists += 1;
            for extension in &list.extensions {
                let parsed = extension.parsed_extension();
                if let ParsedExtension::SubjectAlternativeName(san) = parsed {
                    names += 1;
                    self.read_names(&san.general_names)?;
                } else if let ParsedExtension::ParseError { .. } = parsed {
                    return Err(IllFormed::Structure);
                }
            }
        }
        if lists > 1 || names > 1 { Err(IllFormed::Twice) } else { Ok(()) }
    }

    fn read_names(&mut self, names: &[GeneralName<'_>]) -> Result<(), IllFormed> {
        for name in names {
            if let GeneralName::DNSName(name) = name {
                self.dns_names.insert((*name).to_owned());
            } else if let GeneralName::IPAddress(bytes) = name {
                self.addresses.insert(address(bytes).ok_or(IllFormed::Name)?);
            } else {
                self.has_other_names = true;
            }
        }
        Ok(())
    }

    /// Whether there are alternative names of any kind.
    pub(crate) fn has_names(&self) -> bool {
        self.has_other_names || !self.dns_names.is_empty() || !self.addresses.is_empty()
    }
}

fn address(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => Some(IpAddr::from(<[u8; 4]>::try_from(bytes).ok()?)),
        16 => Some(IpAddr::from(<[u8; 16]>::try_from(bytes).ok()?)),
        _ => None,
    }
}
