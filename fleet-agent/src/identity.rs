//! The agent's identity in the fleet: a key that it makes itself, and a client certificate for `keelway:fleet-agent:NAME`.

use std::{collections::BTreeMap, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    ByteString,
    api::{
        certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec},
        core::v1::Secret,
    },
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use keelway_api::machine::sha256_hex;
use keelway_fleet::{
    FleetToken,
    names::{AGENT_FIELD_MANAGER, AGENT_SECRET, AGENT_SIGNER, AGENTS_GROUP, agent_user},
};
use keelway_pki::{
    CertificateFacts, KeyError, PrivateKeyPem, SigningRequestError, client_signing_request, key_matches_certificate,
};
use kube::{
    Api, Client, Error,
    api::{Patch, PatchParams, PostParams},
    runtime::wait::await_condition,
};
use rand::{SeedableRng, rngs::ChaCha8Rng};
use sha2::{Digest, Sha256};

const USAGES: [&str; 2] = ["digital signature", "client auth"];
/// How long a certificate is requested for: 30 days, so that it is renewed after 20. The name of a removed cluster rests until the last certificate has
/// expired, and an agent that is away for longer than the rest needs another token.
const LIFE_SECONDS: i32 = 30 * 24 * 3600;
/// How long the fleet may take to approve and sign.
const PATIENCE: Duration = Duration::from_secs(60);
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
/// The key of a request that has no certificate yet. A restarted agent continues the same request.
const NEXT_KEY: &str = "next.key";
/// The authorities that the fleet published since the token was created, and the digest of the token. They belong to no other token.
const AUTHORITIES: &str = "ca.crt";
const TOKEN_DIGEST: &str = "token.sha256";

/// The agent has no identity.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The Secret of the agent cannot be read.
    #[error("cannot read the Secret {AGENT_SECRET}")]
    Read(#[source] Box<Error>),
    /// The Secret of the agent cannot be written.
    #[error("cannot write the Secret {AGENT_SECRET}")]
    Write(#[source] Box<Error>),
    /// The key could not be made.
    #[error("cannot make a key")]
    Key(#[source] KeyError),
    /// The request could not be built.
    #[error("cannot build the certificate signing request")]
    Request(#[source] SigningRequestError),
    /// The fleet did not accept the request.
    #[error(
        "cannot create the CertificateSigningRequest; if the token has expired or was used, create one with `keelway fleet token create`"
    )]
    Create(#[source] Box<Error>),
    /// The request cannot be watched.
    #[error("cannot watch the CertificateSigningRequest")]
    Watch(#[source] kube::runtime::wait::Error),
    /// The fleet did not decide in time.
    #[error("the fleet has not signed the certificate within {} s; check that its fleet controller runs", PATIENCE.as_secs())]
    TimedOut,
    /// The fleet signs with another authority still.
    #[error("the fleet signed the certificate with its previous authority; the agent requests another one later")]
    PreviousAuthority,
    /// The fleet refused the request.
    #[error("the fleet denied the certificate: {0}")]
    Denied(String),
}

/// A certificate and its key.
#[derive(Debug, Clone)]
pub(crate) struct FleetIdentity {
    pub(crate) certificate: String,
    /// The key identifier of the authority that issued it, in hexadecimal digits.
    pub(crate) issuer: Option<String>,
    pub(crate) key: PrivateKeyPem,
    /// When the certificate has to be renewed.
    pub(crate) renew_at: Timestamp,
    /// When the certificate expires.
    pub(crate) expires: Timestamp,
}

/// The identity of the agent, and the authorities that it trusts, in a Secret of its own cluster.
pub(crate) struct IdentityStore {
    api: Api<Secret>,
    cluster: String,
    /// The authorities of the token, and its digest.
    authorities: String,
    token_digest: String,
}

impl IdentityStore {
    /// Returns the store of an agent with this token, which is also given as text.
    pub(crate) fn new(client: Client, namespace: &str, (token, text): (&FleetToken, &str)) -> Self {
        let FleetToken { cluster, authorities, .. } = token;
        let (cluster, authorities) = (cluster.clone(), authorities.clone());
        let token_digest = sha256_hex(text.trim().as_bytes());
        Self { api: Api::namespaced(client, namespace), cluster, authorities, token_digest }
    }

    /// Returns the authorities of the fleet that the agent trusts: those of its token, or those that the fleet published since.
    pub(crate) async fn authorities(&self) -> Result<String, IdentityError> {
        let data = self.read().await?;
        let text = |key| data.get(key).and_then(|value| String::from_utf8(value.0.clone()).ok());
        let is_of_token = text(TOKEN_DIGEST).as_ref() == Some(&self.token_digest);
        Ok(text(AUTHORITIES).filter(|_| is_of_token).unwrap_or_else(|| self.authorities.clone()))
    }

    /// Stores the authorities that the fleet publishes.
    pub(crate) async fn trust(&self, authorities: &str) -> Result<(), IdentityError> {
        let mut data = self.read().await?;
        let values = [(AUTHORITIES, authorities), (TOKEN_DIGEST, self.token_digest.as_str())];
        data.extend(values.map(|(key, value)| (key.to_owned(), ByteString(value.as_bytes().to_vec()))));
        self.write(&data).await
    }

    /// Returns the stored identity if it is for this cluster and valid.
    pub(crate) async fn load(&self, now: Timestamp) -> Result<Option<FleetIdentity>, IdentityError> {
        Ok(self.usable(&self.read().await?, now))
    }

    /// Requests a certificate as `client`, and stores it.
    pub(crate) async fn request(&self, client: &Client, now: Timestamp) -> Result<FleetIdentity, IdentityError> {
        self.request_of(client, None, now).await
    }

    /// Requests a certificate of the authority with this key identifier, if there is one. A certificate of another authority is not stored.
    pub(crate) async fn request_of(
        &self,
        client: &Client,
        issuer: Option<&str>,
        now: Timestamp,
    ) -> Result<FleetIdentity, IdentityError> {
        let mut data = self.read().await?;
        let key = if let Some(Ok(key)) = data.get(NEXT_KEY).map(|key| PrivateKeyPem::from_bytes(&key.0)) {
            key
        } else {
            let key = PrivateKeyPem::mint(&mut ChaCha8Rng::from_rng(&mut rand::rng())).map_err(IdentityError::Key)?;
            data.insert(NEXT_KEY.to_owned(), ByteString(key.expose().as_bytes().to_vec()));
            self.write(&data).await?;
            key
        };
        let signed = sign(client, &self.cluster, &key).await;
        let signed = signed.and_then(|certificate| {
            let is_wanted = issuer.is_none_or(|issuer| issuer_of(&certificate).as_deref() == Some(issuer));
            if is_wanted { Ok(certificate) } else { Err(IdentityError::PreviousAuthority) }
        });
        if matches!(signed, Err(IdentityError::Denied(_) | IdentityError::PreviousAuthority)) {
            // The fleet decides about a request once. The next attempt is another request.
            data.remove(NEXT_KEY);
            self.write(&data).await?;
        }
        let certificate = signed?;
        data.remove(NEXT_KEY);
        data.insert(CERTIFICATE.to_owned(), ByteString(certificate.into_bytes()));
        data.insert(KEY.to_owned(), ByteString(key.expose().as_bytes().to_vec()));
        self.write(&data).await?;
        self.usable(&data, now).ok_or_else(|| IdentityError::Denied("the certificate is not for this agent".to_owned()))
    }

    fn usable(&self, data: &BTreeMap<String, ByteString>, now: Timestamp) -> Option<FleetIdentity> {
        let certificate = String::from_utf8(data.get(CERTIFICATE)?.0.clone()).ok()?;
        let key = PrivateKeyPem::from_bytes(&data.get(KEY)?.0).ok()?;
        let leaf = first(&certificate);
        let facts = CertificateFacts::from_pem(leaf).ok()?;
        let is_own = facts.common_name.as_deref() == Some(&agent_user(&self.cluster));
        let is_valid = facts.validity.contains(now) && key_matches_certificate(leaf, &key).unwrap_or(false);
        (is_own && is_valid).then(|| FleetIdentity {
            renew_at: facts.validity.renew_at(),
            expires: facts.validity.not_after(),
            issuer: facts.issuer_digits(),
            certificate,
            key,
        })
    }

    async fn read(&self) -> Result<BTreeMap<String, ByteString>, IdentityError> {
        let secret = self.api.get_opt(AGENT_SECRET).await.map_err(|error| IdentityError::Read(Box::new(error)))?;
        Ok(secret.and_then(|secret| secret.data).unwrap_or_default())
    }

    async fn write(&self, data: &BTreeMap<String, ByteString>) -> Result<(), IdentityError> {
        let secret = Secret {
            metadata: ObjectMeta { name: Some(AGENT_SECRET.to_owned()), ..ObjectMeta::default() },
            data: Some(data.clone()),
            ..Secret::default()
        };
        let parameters = PatchParams::apply(AGENT_FIELD_MANAGER).force();
        let written = self.api.patch(AGENT_SECRET, &parameters, &Patch::Apply(&secret)).await;
        written.map(|_| ()).map_err(|error| IdentityError::Write(Box::new(error)))
    }
}

fn issuer_of(certificates: &str) -> Option<String> {
    CertificateFacts::from_pem(first(certificates)).ok()?.issuer_digits()
}

/// Returns the first certificate of a PEM text.
fn first(certificates: &str) -> &str {
    const END: &str = "-----END CERTIFICATE-----";
    certificates.find(END).map_or(certificates, |end| &certificates[..end + END.len()])
}

async fn sign(client: &Client, cluster: &str, key: &PrivateKeyPem) -> Result<String, IdentityError> {
    let request = client_signing_request(key, &agent_user(cluster), AGENTS_GROUP).map_err(IdentityError::Request)?;
    let api: Api<CertificateSigningRequest> = Api::all(client.clone());
    // Signatures are deterministic, so the same key leads to a request with the same name.
    let digest = Sha256::digest(request.as_bytes());
    let name = digest
        .iter()
        .take(10)
        .fold(format!("keelway-fleet-agent-{cluster}-"), |name, byte| format!("{name}{byte:02x}"));
    let object = CertificateSigningRequest {
        metadata: ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() },
        spec: CertificateSigningRequestSpec {
            request: ByteString(request.into_bytes()),
            signer_name: AGENT_SIGNER.to_owned(),
            usages: Some(USAGES.map(str::to_owned).to_vec()),
            expiration_seconds: Some(LIFE_SECONDS),
            ..CertificateSigningRequestSpec::default()
        },
        status: None,
    };
    match api.create(&PostParams::default(), &object).await {
        Err(Error::Api(status)) if status.code == 409 => {}
        created => drop(created.map_err(|error| IdentityError::Create(Box::new(error)))?),
    }
    let decided = await_condition(api, &name, |request: Option<&CertificateSigningRequest>| {
        request.is_some_and(|request| decision(request).is_some())
    });
    let decided = tokio::time::timeout(PATIENCE, decided).await.map_err(|_| IdentityError::TimedOut)?;
    let decided = decided.map_err(IdentityError::Watch)?;
    decided.as_ref().and_then(decision).unwrap_or(Err(IdentityError::TimedOut))
}

/// Returns the certificate, or why there will be none.
fn decision(request: &CertificateSigningRequest) -> Option<Result<String, IdentityError>> {
    let status = request.status.as_ref()?;
    let is_no = |kind: &str| kind == "Denied" || kind == "Failed";
    if let Some(no) = status.conditions.iter().flatten().find(|condition| is_no(&condition.type_)) {
        return Some(Err(IdentityError::Denied(no.message.clone().unwrap_or_default())));
    }
    let certificate = status.certificate.as_ref().filter(|certificate| !certificate.0.is_empty())?;
    String::from_utf8(certificate.0.clone()).ok().map(Ok)
}
