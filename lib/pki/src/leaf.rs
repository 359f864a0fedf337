//! Certificates that identify a server, a client, or both.

use std::net::IpAddr;

use rand_core::CryptoRng;
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, IsCa, KeyUsagePurpose, PublicKeyData, SanType};

use crate::{
    Authority, CertificateError, KeyError, PrivateKeyPem, Serial, Validity, ValidityError, certificate, key::KeyPair,
    name, statement::statement,
};

/// The maximum length of a DNS name in octets, without the final dot (RFC 1035, 2.3.4).
const LONGEST_DNS_NAME: usize = 253;
/// The maximum length of a label of a DNS name (RFC 1035, 2.3.4).
const LONGEST_LABEL: usize = 63;

/// A permitted usage of a certificate (extended key usage, RFC 5280, 4.2.1.12).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CertificateUsage {
    /// The certificate identifies a server to its clients.
    ServerAuth,
    /// The certificate identifies a client to servers.
    ClientAuth,
}

/// A certificate to issue. Names are written in the given order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeafRequest {
    /// The common name of the subject. Kubernetes reads it as the user.
    pub common_name: String,
    /// The organization of the subject, which Kubernetes reads as the group of the user. At most one is allowed: no certificate of Keelway puts
    /// a user into two groups, and the subject name of rcgen holds one value of each type.
    pub organizations: Vec<String>,
    /// The DNS names of the server. The first label may be `*`.
    pub dns_names: Vec<String>,
    /// The addresses of the server.
    pub ip_addresses: Vec<IpAddr>,
    /// The permitted usages. At least one is required.
    pub usages: Vec<CertificateUsage>,
    /// The requested period of validity. It is limited to that of the authority.
    pub validity: Validity,
}

/// A certificate with the key that was generated for it.
#[derive(Clone, PartialEq, Eq)]
pub struct IssuedCertificate {
    /// The certificate, without that of its authority.
    pub certificate_pem: String,
    /// The private key in PKCS#8.
    pub key_pem: PrivateKeyPem,
}

/// An error while issuing a certificate.
#[derive(Debug, thiserror::Error)]
pub enum LeafError {
    /// The common name is empty.
    #[error("the certificate's common name is empty")]
    NoCommonName,
    /// The name of an organization is empty.
    #[error("the certificate for {common_name:?} has an organization without a name")]
    NoOrganization {
        /// The common name of the certificate.
        common_name: String,
    },
    /// The request has more organizations than a certificate can contain.
    #[error("the certificate for {common_name:?} must name at most one organization, not {wanted}")]
    SeveralOrganizations {
        /// The common name of the certificate.
        common_name: String,
        /// The number of organizations in the request.
        wanted: usize,
    },
    /// The request has no usage. A certificate without one would be valid for every usage.
    #[error("the certificate for {common_name:?} has no usage")]
    NoUsage {
        /// The common name of the certificate.
        common_name: String,
    },
    /// The request for a server has no alternative name. Clients compare a server with its alternative names only (RFC 9525).
    #[error("the server certificate for {common_name:?} has neither a DNS name nor an address")]
    NoServerName {
        /// The common name of the certificate.
        common_name: String,
    },
    /// A name is not a DNS name.
    #[error("{name:?} is not a DNS name")]
    DnsName {
        /// The name that was passed.
        name: String,
    },
    /// The requested period does not overlap the validity of the authority.
    #[error("the authority is not valid for the whole validity of the certificate for {common_name:?}")]
    AuthorityDates {
        /// The common name of the certificate.
        common_name: String,
        /// The error of the empty intersection.
        #[source]
        source: ValidityError,
    },
    /// The certificate of the authority could not be read.
    #[error("cannot issue certificates in the authority's name")]
    Authority(#[source] rcgen::Error),
    /// The certificate could not be built or signed.
    #[error("cannot sign the certificate for {common_name:?}")]
    Sign {
        /// The common name of the certificate.
        common_name: String,
        /// The error of rcgen.
        #[source]
        source: rcgen::Error,
    },
    /// The certificate could not be written as PEM.
    #[error("cannot write the certificate")]
    Encode(#[source] CertificateError),
    /// The key of the certificate could not be generated or written.
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

/// Signs a certificate for a key and returns it as PEM. If `serial` is `None`, the serial number is random.
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

/// Accepts host names of RFC 1123, with two additions: the underscore, which many networks use, and a wildcard as the entire first label.
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
