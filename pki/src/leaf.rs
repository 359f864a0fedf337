//! Certificates that identify a server, a client, or both.

use std::net::IpAddr;

use rand_core::CryptoRng;
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, IsCa, KeyUsagePurpose, PublicKeyData, SanType};

use crate::{
    Authority, CertificateError, KeyError, PrivateKeyPem, Serial, Validity, ValidityError, certificate, key::KeyPair,
    name, statement::statement,
};

/// The longest DNS name, in octets without a final dot (RFC 1035, 2.3.4).
const LONGEST_DNS_NAME: usize = 253;
/// The longest label of a DNS name (RFC 1035, 2.3.4).
const LONGEST_LABEL: usize = 63;

/// What a certificate may be used for (extended key usage, RFC 5280, 4.2.1.12).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CertificateUsage {
    /// It identifies a server to its clients.
    ServerAuth,
    /// It identifies a client to servers.
    ClientAuth,
}

/// A certificate to be issued. Names are written in the order given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafRequest {
    /// The subject's common name; Kubernetes reads it as the user.
    pub common_name: String,
    /// The subject's organization, which Kubernetes reads as the user's group: one at most. No user of
    /// Keelway is in two groups by certificate, and a subject's name as rcgen has it holds one value
    /// of each kind.
    pub organizations: Vec<String>,
    /// The DNS names that a server is reached by; the first label may be `*`.
    pub dns_names: Vec<String>,
    /// The addresses that a server is reached by.
    pub ip_addresses: Vec<IpAddr>,
    /// What it may be used for; at least one.
    pub usages: Vec<CertificateUsage>,
    /// From when until when it holds; cut to its authority's.
    pub validity: Validity,
}

/// A certificate with the key that was made for it.
#[derive(Clone, PartialEq, Eq)]
pub struct IssuedCertificate {
    /// The certificate alone, without its authority's.
    pub certificate_pem: String,
    /// Its private key, PKCS#8.
    pub key_pem: PrivateKeyPem,
}

/// A certificate that could not be issued.
#[derive(Debug, thiserror::Error)]
pub enum LeafError {
    /// A common name is needed.
    #[error("the certificate's common name is empty")]
    NoCommonName,
    /// A group's name is needed.
    #[error("the certificate for {common_name:?} has an organization without a name")]
    NoOrganization {
        /// Whose certificate.
        common_name: String,
    },
    /// More groups than a certificate can hold.
    #[error("the certificate for {common_name:?} can name one organization, not {wanted}")]
    SeveralOrganizations {
        /// Whose certificate.
        common_name: String,
        /// How many were asked for.
        wanted: usize,
    },
    /// Without a usage it would be good for anything.
    #[error("the certificate for {common_name:?} has no usage")]
    NoUsage {
        /// Whose certificate.
        common_name: String,
    },
    /// Clients compare a server with its alternative names only (RFC 9525), so that it needs one.
    #[error("the server certificate for {common_name:?} has neither a DNS name nor an address")]
    NoServerName {
        /// Whose certificate.
        common_name: String,
    },
    /// Not a DNS name.
    #[error("{name:?} is not a DNS name")]
    DnsName {
        /// What was given.
        name: String,
    },
    /// The authority does not hold at any time of the wanted validity.
    #[error("the authority does not hold while the certificate for {common_name:?} should")]
    AuthorityDates {
        /// Whose certificate.
        common_name: String,
        /// The empty part in common.
        #[source]
        source: ValidityError,
    },
    /// The authority's certificate could not be read.
    #[error("cannot issue certificates in the authority's name")]
    Authority(#[source] rcgen::Error),
    /// It could not be put together or signed.
    #[error("cannot sign the certificate for {common_name:?}")]
    Sign {
        /// Whose certificate.
        common_name: String,
        /// Why.
        #[source]
        source: rcgen::Error,
    },
    /// It could not be written as PEM.
    #[error("cannot write the certificate")]
    Encode(#[source] CertificateError),
    /// Its key could not be written.
    #[error("cannot write the certificate's key")]
    Key(#[source] KeyError),
}

impl core::fmt::Debug for IssuedCertificate {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str("IssuedCertificate(..)")
    }
}

impl CertificateUsage {
    fn purpose(self) -> ExtendedKeyUsagePurpose {
        match self {
            Self::ServerAuth => ExtendedKeyUsagePurpose::ServerAuth,
            Self::ClientAuth => ExtendedKeyUsagePurpose::ClientAuth,
        }
    }
}

impl LeafRequest {
    fn check(&self) -> Result<(), LeafError> {
        let common_name = || self.common_name.clone();
        if self.common_name.is_empty() {
            return Err(LeafError::NoCommonName);
        }
        if self.organizations.iter().any(String::is_empty) {
            return Err(LeafError::NoOrganization { common_name: common_name() });
        }
        if self.organizations.len() > 1 {
            return Err(LeafError::SeveralOrganizations {
                common_name: common_name(),
                wanted: self.organizations.len(),
            });
        }
        if self.usages.is_empty() {
            return Err(LeafError::NoUsage { common_name: common_name() });
        }
        let nameless = self.dns_names.is_empty() && self.ip_addresses.is_empty();
        if nameless && self.usages.contains(&CertificateUsage::ServerAuth) {
            return Err(LeafError::NoServerName { common_name: common_name() });
        }
        match self.dns_names.iter().find(|name| !is_dns_name(name)) {
            Some(name) => Err(LeafError::DnsName { name: name.clone() }),
            None => Ok(()),
        }
    }

    fn alternative_names(&self) -> Result<Vec<SanType>, rcgen::Error> {
        let dns_names = self.dns_names.iter().map(|name| name.as_str().try_into().map(SanType::DnsName));
        let ip_addresses = self.ip_addresses.iter().map(|address| Ok(SanType::IpAddress(*address)));
        dns_names.chain(ip_addresses).collect()
    }
}

pub(crate) fn issue<R: CryptoRng + ?Sized>(
    authority: &Authority,
    request: &LeafRequest,
    rng: &mut R,
) -> Result<IssuedCertificate, LeafError> {
    let key = KeyPair::generate(rng).map_err(LeafError::Key)?;
    Ok(IssuedCertificate {
        certificate_pem: sign(authority, request, &key, None, rng)?,
        key_pem: key.private_pem().clone(),
    })
}

/// A certificate for a key, PEM. Its serial number is random where none is given.
pub(crate) fn sign<R: CryptoRng + ?Sized>(
    authority: &Authority,
    request: &LeafRequest,
    key: &impl PublicKeyData,
    serial: Option<&Serial>,
    rng: &mut R,
) -> Result<String, LeafError> {
    request.check()?;
    let validity = request
        .validity
        .within(authority.certificate().validity())
        .map_err(|source| LeafError::AuthorityDates { common_name: request.common_name.clone(), source })?;
    let issuer = authority.issuer().map_err(LeafError::Authority)?;
    let sign = |source| LeafError::Sign { common_name: request.common_name.clone(), source };
    let mut statement = statement_of(request, validity, rng).map_err(sign)?;
    if let Some(serial) = serial {
        statement.serial_number = Some(serial.octets().to_vec().into());
    }
    let signed = statement.signed_by(key, &issuer).map_err(sign)?;
    certificate::to_pem(signed.der()).map_err(LeafError::Encode)
}

pub(crate) fn statement_of<R: CryptoRng + ?Sized>(
    request: &LeafRequest,
    validity: Validity,
    rng: &mut R,
) -> Result<CertificateParams, rcgen::Error> {
    let organization = request.organizations.first().map(String::as_str);
    let mut statement = statement(name::build(&request.common_name, organization), validity, rng)?;
    statement.is_ca = IsCa::ExplicitNoCa;
    statement.use_authority_key_identifier_extension = true;
    statement.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    statement.extended_key_usages = request.usages.iter().map(|usage| usage.purpose()).collect();
    statement.subject_alt_names = request.alternative_names()?;
    Ok(statement)
}

/// RFC 1123 host names, with the underscore that many networks use, and a wildcard as the whole
/// first label.
fn is_dns_name(name: &str) -> bool {
    let labels = name.strip_prefix("*.").unwrap_or(name);
    name.len() <= LONGEST_DNS_NAME && labels.split('.').all(is_label)
}

fn is_label(label: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
    (1..=LONGEST_LABEL).contains(&label.len())
        && label.bytes().all(is_inner)
        && !label.starts_with('-')
        && !label.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        CertificateFacts,
        testing::{authority, hours, now, seeded, server},
    };
    use jiff::{SignedDuration, ToSpan};

    fn refused(change: impl FnOnce(&mut LeafRequest)) -> LeafError {
        let mut request = server(hours(24));
        change(&mut request);
        authority(1).issue(&request, &mut seeded(2)).unwrap_err()
    }

    #[test]
    fn ends_with_its_authority() {
        let authority = Authority::mint("etcd-ca", hours(10), &mut seeded(1)).unwrap();
        let leaf = authority.issue(&server(hours(24)), &mut seeded(2)).unwrap();
        let facts = CertificateFacts::from_pem(&leaf.certificate_pem).unwrap();
        assert_eq!(facts.validity, hours(10));
    }

    #[test]
    fn an_expired_authority_issues_nothing() {
        let later = now() + 87600.hours() + 1.hour();
        let error = refused(|request| {
            request.validity = Validity::starting(later, SignedDuration::from_hours(1)).unwrap();
        });
        assert!(matches!(error, LeafError::AuthorityDates { .. }));
    }

    #[test]
    fn serials_and_keys_differ() {
        let authority = authority(1);
        let mut rng = seeded(2);
        let mut issue = || authority.issue(&server(hours(24)), &mut rng).unwrap();
        let (one, two) = (issue(), issue());
        let serial = |leaf: &IssuedCertificate| {
            let der = certificate::decode_one(&leaf.certificate_pem).unwrap();
            certificate::parse(&der).unwrap().raw_serial().to_vec()
        };
        assert_ne!(serial(&one), serial(&two));
        assert_ne!(one.key_pem, two.key_pem);
    }

    #[test]
    fn serials_are_positive_and_short() {
        let authority = authority(1);
        let mut rng = seeded(2);
        for _ in 0..32 {
            let leaf = authority.issue(&server(hours(24)), &mut rng).unwrap();
            let der = certificate::decode_one(&leaf.certificate_pem).unwrap();
            let serial = certificate::parse(&der).unwrap().raw_serial();
            assert!((8..=20).contains(&serial.len()));
            assert!(serial[0] < 0x80, "the first bit is the sign");
        }
    }

    #[test]
    fn senseless_requests_are_refused() {
        assert!(matches!(refused(|r| r.common_name.clear()), LeafError::NoCommonName));
        assert!(matches!(refused(|r| r.organizations.push(String::new())), LeafError::NoOrganization { .. }));
        let error = refused(|r| r.organizations = ["one", "two"].map(str::to_owned).to_vec());
        assert!(matches!(error, LeafError::SeveralOrganizations { wanted: 2, .. }));
        assert!(matches!(refused(|r| r.usages.clear()), LeafError::NoUsage { .. }));
        let error = refused(|r| {
            r.dns_names.clear();
            r.ip_addresses.clear();
        });
        assert!(matches!(error, LeafError::NoServerName { .. }));
        let error = refused(|r| r.dns_names.push("a b".to_owned()));
        assert!(matches!(error, LeafError::DnsName { name } if name == "a b"));
    }

    #[test]
    fn dns_names() {
        for name in ["localhost", "kubernetes.default.svc.cluster.local", "*.example.org", "etcd-0", "_x.y", "10.com"] {
            assert!(is_dns_name(name), "{name}");
        }
        let long = ["a"; 128].join(".");
        for name in ["", ".", "a.", "a..b", "-a", "a-", "*", "a.*.b", "a b", "ä", "a\n", &"a".repeat(64), &long] {
            assert!(!is_dns_name(name), "{name}");
        }
    }

    #[test]
    fn debug_shows_no_key() {
        let leaf = authority(1).issue(&server(hours(24)), &mut seeded(2)).unwrap();
        assert_eq!(format!("{leaf:?}"), "IssuedCertificate(..)");
    }
}
