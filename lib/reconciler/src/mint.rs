//! Mints keys and certificates into the Secrets of the documents.

mod certificates;

use std::collections::BTreeMap;

use keelway_api::{
    ByteString, Documents,
    documents::SecretName,
    duration::Span,
    jiff::{SignedDuration, Timestamp},
    name::ID_DIGITS,
};
use keelway_pki::{
    Authority, AuthorityError, AuthorityKeyring, CertificateUsage, EncryptionKey, EncryptionKeyring, IssuedCertificate,
    KeyError, KeyringError, LeafError, LeafRequest, RequestedError, RevocationError, SecretData, Serial, SerialError,
    ServiceAccountKey, ServiceAccountKeyring, Validity, ValidityError, WireGuardKey, random_id,
};
use keelway_planner::{CertificateSubject, MintRequest};
use rand::CryptoRng;

use crate::Minter;

/// The number of certificates that are minted together. A batch is in memory twice until it is in the documents.
const AT_ONCE: usize = 256;
/// The validity of the certificate that applies the first bindings.
const FIRST_CERTIFICATE: SignedDuration = SignedDuration::from_mins(10);

/// A key or certificate could not be minted.
#[derive(Debug, thiserror::Error)]
pub enum MintError {
    /// The Secret of the authority or key does not exist.
    #[error("the Secret {0} does not exist")]
    NoSecret(String),
    /// The Secret of an authority or key cannot be read.
    #[error("Secret {name} cannot be read")]
    Keyring {
        /// The name of the Secret.
        name: String,
        /// The cause.
        #[source]
        cause: Box<KeyringError>,
    },
    /// The previous generation of an authority cannot sign.
    #[error("the Secret {0} has no key of the previous generation")]
    NoPrevious(String),
    /// An authority could not be minted.
    #[error("cannot create an authority")]
    Authority(#[source] AuthorityError),
    /// A certificate could not be issued.
    #[error("cannot issue a certificate")]
    Leaf(#[source] LeafError),
    /// A key could not be minted.
    #[error("cannot create a key")]
    Key(#[source] KeyError),
    /// A serial number is not valid.
    #[error("cannot create a serial number")]
    Serial(#[source] SerialError),
    /// A revocation list could not be signed.
    #[error("cannot issue the list of revoked certificates")]
    Revoke(#[source] RevocationError),
    /// A signing request was refused.
    #[error("cannot issue a certificate for a key")]
    Request(#[source] RequestedError),
    /// The validity period of a certificate is out of range.
    #[error("the validity of a certificate is out of range")]
    Validity(#[source] ValidityError),
}

/// The entries of one Secret.
type MintedValues = BTreeMap<String, Vec<u8>>;

/// Mints with the `pki` crate, from a source of randomness.
pub struct PkiMinter<R> {
    rng: R,
}

impl<R: CryptoRng> PkiMinter<R> {
    /// Creates a minter that uses this source of randomness.
    pub fn new(rng: R) -> Self {
        Self { rng }
    }

    fn data(&mut self, documents: &Documents, wanted: &MintRequest, now: Timestamp) -> Result<MintedValues, MintError> {
        match wanted {
            MintRequest::Authority { common_name, revokes, ttl, .. } => {
                let validity = validity(now, *ttl)?;
                let active = if *revokes {
                    Authority::mint_generation(common_name, validity, &mut self.rng)
                } else {
                    Authority::mint(common_name, validity, &mut self.rng)
                };
                Ok(AuthorityKeyring::first(active.map_err(MintError::Authority)?).to_secret_data())
            }
            MintRequest::ServiceAccountKey { .. } => {
                let active = ServiceAccountKey::mint(&mut self.rng).map_err(MintError::Key)?;
                Ok(ServiceAccountKeyring::first(active).to_secret_data())
            }
            MintRequest::NextServiceAccountKey { secret } => {
                let mut keyring = keyring_of(documents, secret, ServiceAccountKeyring::from_secret_data)?;
                if keyring.next.is_none() {
                    keyring.next = Some(ServiceAccountKey::mint(&mut self.rng).map_err(MintError::Key)?);
                }
                Ok(keyring.to_secret_data())
            }
            MintRequest::NextEncryptionKey { secret } => {
                let mut keyring = keyring_of(documents, secret, EncryptionKeyring::from_secret_data)?;
                keyring.next.get_or_insert_with(|| EncryptionKey::mint(&mut self.rng));
                Ok(keyring.to_secret_data())
            }
            MintRequest::NextAuthority { secret, common_name, ttl } => {
                let mut keyring = authority_of(documents, secret)?;
                if keyring.next.is_none() {
                    let next = Authority::mint_generation(common_name, validity(now, *ttl)?, &mut self.rng);
                    keyring.next = Some(next.map_err(MintError::Authority)?);
                }
                Ok(keyring.to_secret_data())
            }
            MintRequest::EncryptionKey { .. } => {
                Ok(EncryptionKeyring::first(EncryptionKey::mint(&mut self.rng)).to_secret_data())
            }
            MintRequest::WireGuardKey { name, .. } => {
                let mut data = BTreeMap::new();
                WireGuardKey::mint(&mut self.rng).write_to(&mut data, name);
                Ok(data)
            }
            MintRequest::Certificate { .. } => {
                let minted = certificates::mint(&mut self.rng, documents, std::slice::from_ref(wanted), now)?;
                Ok(minted.into_iter().flatten().collect())
            }
            MintRequest::RevocationList { name, authority, serials, ttl, .. } => {
                let serials: Vec<Serial> =
                    serials.iter().map(|serial| serial.parse()).collect::<Result<_, _>>().map_err(MintError::Serial)?;
                // The list only grows, so its length is a number that increases.
                let number = serials.len() as u64 + 1;
                let keyring = authority_of(documents, authority)?;
                let list = keyring.active.revoke_serials(&serials, number, validity(now, *ttl)?);
                Ok([(name.clone(), list.map_err(MintError::Revoke)?.into_bytes())].into())
            }
        }
    }
}

impl<R: CryptoRng + Send> Minter for PkiMinter<R> {
    fn id(&mut self) -> String {
        random_id(&mut self.rng, ID_DIGITS / 2)
    }

    fn mint(&mut self, documents: &mut Documents, wanted: &[MintRequest], now: Timestamp) -> Result<(), MintError> {
        // Authorities come before the certificates that they sign. Certificates sign nothing, so those in a row can be minted together.
        let together = wanted.chunk_by(|one, next| is_certificate(one) && is_certificate(next));
        for together in together.flat_map(|together| together.chunks(AT_ONCE)) {
            let minted = match together {
                [alone] => vec![self.data(documents, alone, now)?],
                several => certificates::mint(&mut self.rng, documents, several, now)?,
            };
            for (request, data) in together.iter().zip(minted) {
                documents
                    .put_secret_values(request.secret(), data.into_iter().map(|(key, value)| (key, ByteString(value))));
            }
        }
        Ok(())
    }
}

fn is_certificate(request: &MintRequest) -> bool {
    matches!(request, MintRequest::Certificate { .. })
}

fn validity(now: Timestamp, ttl: Span) -> Result<Validity, MintError> {
    let seconds = i64::try_from(ttl.seconds()).unwrap_or(i64::MAX);
    Validity::starting(now, SignedDuration::from_secs(seconds)).map_err(MintError::Validity)
}

/// Issues a certificate from an authority of the documents.
pub(crate) fn issue<R: CryptoRng + ?Sized>(
    rng: &mut R,
    documents: &Documents,
    authority: &SecretName,
    subject: &CertificateSubject,
    validity: Validity,
) -> Result<IssuedCertificate, MintError> {
    let keyring = authority_of(documents, authority)?;
    keyring.active.issue(&request(subject, validity), rng).map_err(MintError::Leaf)
}

fn request(subject: &CertificateSubject, validity: Validity) -> LeafRequest {
    let usages = [(subject.server, CertificateUsage::ServerAuth), (subject.client, CertificateUsage::ClientAuth)];
    LeafRequest {
        common_name: subject.common_name.clone(),
        organizations: subject.organizations.clone(),
        dns_names: subject.dns_names.clone(),
        ip_addresses: subject.addresses.clone(),
        usages: usages.into_iter().filter(|(wanted, _)| *wanted).map(|(_, usage)| usage).collect(),
        validity,
    }
}

/// Signs a certificate for a key that its owner keeps. From the signing request it uses only the key.
pub(crate) fn certify(
    documents: &Documents,
    (authority, subject, ttl): (&SecretName, &CertificateSubject, Span),
    signing_request: &str,
    serial: &str,
    now: Timestamp,
) -> Result<String, MintError> {
    let keyring = authority_of(documents, authority)?;
    let serial = serial.parse().map_err(MintError::Serial)?;
    let request = request(subject, validity(now, ttl)?);
    let certified = keyring.active.certify(signing_request, &request, &serial, &mut rand::rng());
    certified.map_err(MintError::Request)
}

fn authority_of(documents: &Documents, name: &SecretName) -> Result<AuthorityKeyring, MintError> {
    keyring_of(documents, name, AuthorityKeyring::from_secret_data)
}

fn keyring_of<T>(
    documents: &Documents,
    name: &SecretName,
    read: impl FnOnce(&SecretData) -> Result<T, KeyringError>,
) -> Result<T, MintError> {
    let secret = documents.secrets.get(name).ok_or_else(|| MintError::NoSecret(name.name.clone()))?;
    let data = secret.data.iter().flatten().map(|(key, value)| (key.clone(), value.0.clone())).collect();
    read(&data).map_err(|cause| MintError::Keyring { name: name.name.clone(), cause: Box::new(cause) })
}

/// Issues the certificate that applies the first bindings: `system:masters`, valid for ten minutes.
pub(crate) fn first_certificate(
    documents: &Documents,
    authority: &SecretName,
    now: Timestamp,
) -> Result<IssuedCertificate, MintError> {
    let validity = Validity::starting(now, FIRST_CERTIFICATE).map_err(MintError::Validity)?;
    issue(&mut rand::rng(), documents, authority, &keelway_planner::first_administrator(), validity)
}

/// A client certificate for a user, with the authorities that the user must trust.
pub struct UserCredentials {
    /// The certificates of the authority.
    pub authority_pem: String,
    /// The client certificate with its key.
    pub certificate: IssuedCertificate,
}

/// Issues a client certificate that is stored nowhere except in the result.
pub fn issue_client(
    documents: &Documents,
    authority: &SecretName,
    subject: &CertificateSubject,
    ttl: Span,
    now: Timestamp,
) -> Result<UserCredentials, MintError> {
    let keyring = authority_of(documents, authority)?;
    let certificate = issue(&mut rand::rng(), documents, authority, subject, validity(now, ttl)?)?;
    Ok(UserCredentials { authority_pem: keyring.bundle_pem(), certificate })
}
