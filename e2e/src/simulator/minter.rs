//! Mints keys and certificates at no cost: certificates can be parsed and name the authority that signed them, but have no valid signature. Keys can be
//! found in any text.

use std::collections::BTreeMap;

use base64::{Engine, engine::general_purpose::STANDARD};
use keelway_api::{ByteString, Documents, documents::SecretName, duration::Span, jiff::Timestamp, machine::sha256_hex};
use keelway_planner::{AuthorityGeneration, CertificateSubject, MintRequest};
use keelway_reconciler::{MintError, Minter};
use rcgen::{
    CertificateParams, CustomExtension, DistinguishedName, DnType, PublicKeyData, SanType, SignatureAlgorithm,
    SigningKey,
};
use sha2::{Digest, Sha256};
use time::OffsetDateTime;

use super::{bug::Bug, fault_steps::Sim, rules::KEY};

/// The length of a key that encrypts Secrets at rest.
const ENCRYPTION_KEY: usize = 32;

pub(super) struct SimulatedMinter(pub(super) Sim);

impl Minter for SimulatedMinter {
    fn id(&mut self) -> String {
        self.0.world().random.id()
    }

    fn mint(&mut self, documents: &mut Documents, wanted: &[MintRequest], now: Timestamp) -> Result<(), MintError> {
        for request in wanted {
            if let MintRequest::NextServiceAccountKey { secret } = request {
                self.mint_next(documents, secret);
                continue;
            }
            if let MintRequest::NextEncryptionKey { secret } = request {
                let has = documents.secrets.get(secret).and_then(|found| found.data.as_ref());
                if !has.is_some_and(|data| data.contains_key("next.key")) {
                    let key = ByteString(self.key().as_bytes()[..ENCRYPTION_KEY].to_vec());
                    documents.put_secret_values(secret, [("next.key".to_owned(), key)]);
                }
                continue;
            }
            if let MintRequest::NextAuthority { secret, common_name, ttl } = request {
                self.mint_next_authority(documents, secret, (common_name, *ttl), now);
                continue;
            }
            let (name, data) = self.data(documents, request, now);
            documents.put_secret_values(&name, data);
        }
        Ok(())
    }
}

impl SimulatedMinter {
    fn mint_next(&mut self, documents: &mut Documents, name: &SecretName) {
        let key = self.key();
        let found = documents.secrets.get(name).and_then(|secret| secret.data.clone()).unwrap_or_default();
        if found.contains_key("next.key") {
            return;
        }
        let public = public_half(&key);
        let part = |part: &str| found.get(part).map(|value| value.0.clone()).unwrap_or_default();
        let bundle = [part("active.pub"), public.clone().into_bytes(), part("previous.pub")].concat();
        let values = [("next.key", key.into_bytes()), ("next.pub", public.into_bytes()), ("bundle.pub", bundle)];
        documents.put_secret_values(name, values.map(|(name, value)| (name.to_owned(), ByteString(value))));
    }

    /// The oldest generation is the first one of the bundle, as everywhere.
    fn mint_next_authority(
        &mut self,
        documents: &mut Documents,
        name: &SecretName,
        (common_name, ttl): (&str, Span),
        now: Timestamp,
    ) {
        let found = documents.secrets.get(name).and_then(|secret| secret.data.clone()).unwrap_or_default();
        if found.contains_key("next.crt") {
            return;
        }
        let key = self.key();
        let subject = authority(&format!("{common_name}-{}", self.0.world().random.id()));
        let next = certificate(&subject, now, ttl, subject_key_id(&key));
        let part = |part: &str| found.get(part).map(|value| value.0.clone()).unwrap_or_default();
        let bundle = [part("previous.crt"), part("active.crt"), next.clone().into_bytes()].concat();
        let values = [("next.crt", next.into_bytes()), ("next.key", key.into_bytes()), ("bundle.crt", bundle)];
        documents.put_secret_values(name, values.map(|(name, value)| (name.to_owned(), ByteString(value))));
    }

    fn data(
        &mut self,
        documents: &Documents,
        request: &MintRequest,
        now: Timestamp,
    ) -> (SecretName, BTreeMap<String, ByteString>) {
        let key = self.key();
        let entries = match request {
            MintRequest::Authority { common_name, ttl, .. } => {
                let pem = certificate(&authority(common_name), now, *ttl, subject_key_id(&key));
                vec![
                    ("active.crt".to_owned(), pem.clone()),
                    ("bundle.crt".to_owned(), pem),
                    ("active.key".to_owned(), key),
                ]
            }
            MintRequest::ServiceAccountKey { .. } => {
                let public = public_half(&key);
                vec![
                    ("active.key".to_owned(), key),
                    ("active.pub".to_owned(), public.clone()),
                    ("bundle.pub".to_owned(), public),
                ]
            }
            // Minted beside the other generations.
            MintRequest::NextServiceAccountKey { .. }
            | MintRequest::NextEncryptionKey { .. }
            | MintRequest::NextAuthority { .. } => Vec::new(),
            MintRequest::EncryptionKey { .. } => vec![("active.key".to_owned(), key[..ENCRYPTION_KEY].to_owned())],
            MintRequest::WireGuardKey { name, .. } => {
                // The text has the length of a key.
                let id = self.0.world().random.id();
                let public = STANDARD.encode(format!("{id}{id}"));
                vec![(format!("{name}.key"), key), (format!("{name}.pub"), public)]
            }
            MintRequest::Certificate { name, subject, ttl, authority, generation, .. } => {
                let ttl = if self.0.world().bug == Some(Bug::MintsForNoTime) { Span::hours(0) } else { *ttl };
                let signer = Signer::of(documents, authority, *generation);
                let pem = certificate(subject, now, ttl, signer.iter().flat_map(Signer::authority_key_id));
                if let Some(signer) = signer {
                    self.0.world().rollouts.issued.insert(pem.clone().into_bytes(), signer.certificate);
                }
                vec![(format!("{name}.crt"), pem), (format!("{name}.key"), key)]
            }
            MintRequest::RevocationList { name, serials, .. } => {
                vec![(name.clone(), format!("{}\n", serials.join("\n")))]
            }
        };
        let entries = entries.into_iter().map(|(name, value)| (name, ByteString(value.into_bytes())));
        (request.secret().clone(), entries.collect())
    }

    /// Returns a key that contains the marker at each offset of base64.
    fn key(&mut self) -> String {
        format!("{}{}", KEY.repeat(3), self.0.world().random.id())
    }
}

/// An authority that signs a certificate.
struct Signer {
    certificate: Vec<u8>,
    key: Vec<u8>,
}

impl Signer {
    fn of(documents: &Documents, authority: &SecretName, generation: AuthorityGeneration) -> Option<Self> {
        let generation = match generation {
            AuthorityGeneration::Active => "active",
            AuthorityGeneration::Previous => "previous",
        };
        let data = documents.secrets.get(authority)?.data.as_ref()?;
        let half = |half: &str| Some(data.get([generation, half].concat().as_str())?.0.clone());
        Some(Self { certificate: half(".crt")?, key: half(".key")? })
    }

    /// RFC 5280, 4.2.1.1.
    fn authority_key_id(&self) -> [CustomExtension; 1] {
        let content = [&[0x30, 22, 0x80, 20], key_id(&self.key).as_slice()].concat();
        [CustomExtension::from_oid_content(&[2, 5, 29, 35], content)]
    }
}

/// RFC 5280, 4.2.1.2.
fn subject_key_id(key: &str) -> [CustomExtension; 1] {
    let content = [&[0x04, 20], key_id(key.as_bytes()).as_slice()].concat();
    [CustomExtension::from_oid_content(&[2, 5, 29, 14], content)]
}

fn key_id(key: &[u8]) -> Vec<u8> {
    Sha256::digest(key).iter().copied().take(20).collect()
}

/// The public half of a key that signs tokens.
pub(super) fn public_half(key: &str) -> String {
    format!("public of {}\n", sha256_hex(key.as_bytes()))
}

fn authority(common_name: &str) -> CertificateSubject {
    CertificateSubject {
        common_name: common_name.to_owned(),
        organizations: Vec::new(),
        dns_names: Vec::new(),
        addresses: Vec::new(),
        server: false,
        client: false,
    }
}

/// A key that cannot sign.
struct Nobody;

impl PublicKeyData for Nobody {
    fn der_bytes(&self) -> &[u8] {
        &[4; 65]
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        &rcgen::PKCS_ECDSA_P256_SHA256
    }
}

impl SigningKey for Nobody {
    fn sign(&self, _message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        Ok(vec![0; 64])
    }
}

fn certificate(
    subject: &CertificateSubject,
    now: Timestamp,
    ttl: Span,
    extensions: impl IntoIterator<Item = CustomExtension>,
) -> String {
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name = DistinguishedName::new();
    parameters.distinguished_name.push(DnType::CommonName, subject.common_name.as_str());
    for organization in &subject.organizations {
        parameters.distinguished_name.push(DnType::OrganizationName, organization.as_str());
    }
    let names = subject.dns_names.iter().map(|name| SanType::DnsName(name.as_str().try_into().unwrap()));
    parameters.subject_alt_names = names.chain(subject.addresses.iter().copied().map(SanType::IpAddress)).collect();
    parameters.not_before = OffsetDateTime::from_unix_timestamp(now.as_second()).unwrap();
    parameters.not_after = parameters.not_before + std::time::Duration::from(ttl);
    parameters.custom_extensions = extensions.into_iter().collect();
    let der = parameters.self_signed(&Nobody).unwrap().der().to_vec();
    let text = STANDARD.encode(der);
    let lines: Vec<&str> = text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", lines.join("\n"))
}
