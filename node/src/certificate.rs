//! The certificates of the kubelet: requesting them, and reading the current ones. The kubelet itself requests its first serving certificate, and those that
//! follow when one is about to expire.

use std::{fs, os::unix::fs::symlink, time::Duration};

use jiff::Timestamp;
use k8s_openapi::{
    ByteString,
    api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use keelway_pki::{
    CertificateFacts, KeyError, PrivateKeyPem, SigningRequestError, Validity, client_signing_request,
    key_matches_certificate, server_signing_request,
};
use kube::{Api, Client};
use rand::{SeedableRng, rngs::ChaCha8Rng};
use sha2::{Digest, Sha256};
use zeroize::Zeroizing;

use crate::{
    api::{self, ApiError, CONTROLLER, WaitCondition},
    files::{self, NodeFileError},
    settings::Layout,
};

/// The names of the kubelet's current certificates in its directory.
pub(crate) const CLIENT: &str = "kubelet-client-current.pem";
pub(crate) const SERVING: &str = "kubelet-server-current.pem";
/// The beginning of the names of requests by a join, and by a worker that replaces its certificate.
const JOIN_REQUEST: &str = "keelway-join-";
const REISSUE_REQUEST: &str = "keelway-reissue-";
pub(crate) const GROUP: &str = "system:nodes";
/// How long the cluster may take to approve and sign.
const PATIENCE: Duration = Duration::from_secs(60);

/// The kubelet has no certificate.
#[derive(Debug, thiserror::Error)]
pub enum KubeletCertificateError {
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] NodeFileError),
    /// The key could not be generated.
    #[error("cannot generate a key")]
    Key(#[source] KeyError),
    /// The signing request could not be built.
    #[error("cannot create the certificate signing request")]
    Request(#[source] SigningRequestError),
    /// A request to the API failed.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// The cluster denied the request.
    #[error("the cluster denied a certificate for {name}: {reason}: {message}")]
    Denied {
        /// The name of the Node.
        name: String,
        /// The reason of the denial, one word.
        reason: String,
        /// The message of the denial.
        message: String,
    },
}

/// A certificate of the kubelet, by its purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KubeletPurpose {
    Client,
    Serving,
}

impl KubeletPurpose {
    /// Returns the name of the link to the current certificate.
    fn link(self) -> &'static str {
        match self {
            Self::Client => CLIENT,
            Self::Serving => SERVING,
        }
    }

    /// Returns the beginning of the names of files with certificates.
    fn prefix(self) -> &'static str {
        match self {
            Self::Client => "kubelet-client",
            Self::Serving => "kubelet-server",
        }
    }

    fn signer(self) -> &'static str {
        match self {
            Self::Client => "kubernetes.io/kube-apiserver-client-kubelet",
            Self::Serving => "kubernetes.io/kubelet-serving",
        }
    }

    fn usages(self) -> [&'static str; 2] {
        match self {
            Self::Client => ["digital signature", "client auth"],
            Self::Serving => ["digital signature", "server auth"],
        }
    }
}

/// A certificate and its key, both PEM.
pub(crate) struct KubeletCertificate {
    pub(crate) certificate: String,
    pub(crate) key: PrivateKeyPem,
}

/// The cluster's decision on a signing request.
enum SigningOutcome {
    Signed(String),
    Denied { reason: String, message: String },
}

/// Returns the worker's certificate if it is valid at `now` and matches its key.
pub(crate) fn load_valid(layout: &Layout, now: Timestamp) -> Result<Option<KubeletCertificate>, NodeFileError> {
    load(layout, |validity| validity.not_before() <= now && now < validity.not_after())
}

/// Returns the worker's certificate if it has expired by `now` and matches its key.
pub(crate) fn load_expired(layout: &Layout, now: Timestamp) -> Result<Option<KubeletCertificate>, NodeFileError> {
    load(layout, |validity| validity.not_after() <= now)
}

fn load(layout: &Layout, holds: impl Fn(Validity) -> bool) -> Result<Option<KubeletCertificate>, NodeFileError> {
    let Some(text) = files::read(&layout.identity())?.map(Zeroizing::new) else { return Ok(None) };
    let Some((certificate, key)) = split(&text) else { return Ok(None) };
    let holds = CertificateFacts::from_pem(first(&certificate)).is_ok_and(|facts| holds(facts.validity));
    let fits = key_matches_certificate(first(&certificate), &key).unwrap_or(false);
    Ok((holds && fits).then_some(KubeletCertificate { certificate, key }))
}

/// Returns the validity of a certificate of the kubelet: [`CLIENT`] or [`SERVING`].
pub(crate) fn validity(layout: &Layout, file: &str) -> Option<Validity> {
    current(layout, file).map(|facts| facts.validity)
}

/// Returns the authority key identifier of a certificate of the kubelet, in hexadecimal digits: [`CLIENT`] or [`SERVING`].
pub(crate) fn issuer(layout: &Layout, file: &str) -> Option<String> {
    current(layout, file)?.issuer_digits()
}

/// Returns the authority key identifier of the first of these certificates, in hexadecimal digits.
pub(crate) fn issuer_of(certificates: &str) -> Option<String> {
    CertificateFacts::from_pem(first(certificates)).ok()?.issuer_digits()
}

fn current(layout: &Layout, file: &str) -> Option<CertificateFacts> {
    let text = Zeroizing::new(files::read(&layout.pki().join(file)).ok()??);
    let (certificate, _) = split(&text)?;
    CertificateFacts::from_pem(first(&certificate)).ok()
}

/// Removes the kubelet's current serving certificate, so that the kubelet requests another one when it starts.
pub(crate) fn remove_serving(layout: &Layout) -> Result<(), NodeFileError> {
    let link = layout.pki().join(SERVING);
    let target = fs::read_link(&link).ok().map(|target| layout.pki().join(target));
    files::remove(&link)?;
    target.map_or(Ok(()), |target| files::remove(&target))
}

/// Splits a file into certificates and key. The kubelet stores both in one file.
fn split(text: &str) -> Option<(String, PrivateKeyPem)> {
    const BEGIN: &str = "-----BEGIN ";
    let mut certificates = String::new();
    let mut key = None;
    for (at, _) in text.match_indices(BEGIN) {
        let block = &text[at..];
        let end = block.find("-----END ").map(|end| end + block[end..].find('\n').unwrap_or(block.len() - end))?;
        let block = block.get(..end)?;
        if block.starts_with("-----BEGIN CERTIFICATE-----") {
            certificates.push_str(block.trim_end());
            certificates.push('\n');
        } else if block.lines().next().is_some_and(|line| line.contains("PRIVATE KEY")) {
            key = Some(PrivateKeyPem::new(format!("{}\n", block.trim_end())));
        }
    }
    key.filter(|_| !certificates.is_empty()).map(|key| (certificates, key))
}

pub(crate) fn first(certificates: &str) -> &str {
    const END: &str = "-----END CERTIFICATE-----";
    certificates.find(END).map_or(certificates, |end| &certificates[..end + END.len()])
}

/// Returns a valid certificate: the stored one, or a new one that it requests from the cluster.
pub(crate) async fn ensure(
    layout: &Layout,
    client: Client,
    name: &str,
    now: Timestamp,
) -> Result<KubeletCertificate, KubeletCertificateError> {
    if let Some(held) = load_valid(layout, now)? {
        return Ok(held);
    }
    files::make_dir(&layout.pki(), 0o700)?;
    let key = joining_key(layout)?;
    let request = client_signing_request(&key, &format!("system:node:{name}"), GROUP)
        .map_err(KubeletCertificateError::Request)?;
    tracing::debug!(action = "request for a certificate", "begins");
    let answer = answer(client, JOIN_REQUEST, (KubeletPurpose::Client, &request)).await?;
    tracing::debug!(action = "request for a certificate", "done");
    match answer {
        SigningOutcome::Signed(certificate) => {
            let signed = KubeletCertificate { certificate, key };
            store(layout, KubeletPurpose::Client, &signed, now)?;
            files::remove(&layout.joining_key())?;
            Ok(signed)
        }
        SigningOutcome::Denied { reason, message } => {
            // The next join sends another request.
            files::remove(&layout.joining_key())?;
            Err(KubeletCertificateError::Denied { name: name.to_owned(), reason, message })
        }
    }
}

/// Returns the key of an interrupted join or renewal, or a new one. A join must reuse its key, because the cluster approves one key per name.
pub(crate) fn joining_key(layout: &Layout) -> Result<PrivateKeyPem, KubeletCertificateError> {
    if let Some(text) = files::read(&layout.joining_key())? {
        return Ok(PrivateKeyPem::new(text));
    }
    let key = new_key()?;
    files::write(&layout.joining_key(), key.expose(), 0o600)?;
    Ok(key)
}

fn new_key() -> Result<PrivateKeyPem, KubeletCertificateError> {
    let mut random = ChaCha8Rng::from_rng(&mut rand::rng());
    PrivateKeyPem::mint(&mut random).map_err(KubeletCertificateError::Key)
}

/// Requests another client certificate as the node itself, with a new key. The cluster decides about a request once, so each call is another request.
pub(crate) async fn reissue(client: Client, name: &str) -> Result<KubeletCertificate, KubeletCertificateError> {
    let key = new_key()?;
    let request = client_signing_request(&key, &format!("system:node:{name}"), GROUP)
        .map_err(KubeletCertificateError::Request)?;
    reissued(client, name, key, (KubeletPurpose::Client, &request)).await
}

/// Requests another serving certificate as the node itself, with a new key. It has the names of the current certificate. Returns `None` if the kubelet
/// has no serving certificate.
pub(crate) async fn reissue_serving(
    layout: &Layout,
    client: Client,
    name: &str,
) -> Result<Option<KubeletCertificate>, KubeletCertificateError> {
    let Some(current) = current(layout, SERVING) else { return Ok(None) };
    let key = new_key()?;
    let names = (current.dns_names.as_slice(), current.ip_addresses.as_slice());
    let request = server_signing_request(&key, &format!("system:node:{name}"), GROUP, names)
        .map_err(KubeletCertificateError::Request)?;
    reissued(client, name, key, (KubeletPurpose::Serving, &request)).await.map(Some)
}

async fn reissued(
    client: Client,
    name: &str,
    key: PrivateKeyPem,
    request: (KubeletPurpose, &str),
) -> Result<KubeletCertificate, KubeletCertificateError> {
    match answer(client, REISSUE_REQUEST, request).await? {
        SigningOutcome::Signed(certificate) => Ok(KubeletCertificate { certificate, key }),
        SigningOutcome::Denied { reason, message } => {
            Err(KubeletCertificateError::Denied { name: name.to_owned(), reason, message })
        }
    }
}

async fn answer(
    client: Client,
    prefix: &str,
    (purpose, request): (KubeletPurpose, &str),
) -> Result<SigningOutcome, KubeletCertificateError> {
    let requests: Api<CertificateSigningRequest> = Api::all(client);
    // Signatures are deterministic, so the same key leads to a request with the same name.
    let digest = Sha256::digest(request.as_bytes());
    let name = digest.iter().take(10).fold(prefix.to_owned(), |name, byte| format!("{name}{byte:02x}"));
    let object = CertificateSigningRequest {
        metadata: ObjectMeta { name: Some(name.clone()), ..ObjectMeta::default() },
        spec: CertificateSigningRequestSpec {
            request: ByteString(request.as_bytes().to_vec()),
            signer_name: purpose.signer().to_owned(),
            usages: Some(purpose.usages().map(str::to_owned).to_vec()),
            ..CertificateSigningRequestSpec::default()
        },
        status: None,
    };
    let made = api::create(&requests, &object, ("create the CertificateSigningRequest", PATIENCE)).await?;
    let wait = WaitCondition { what: "the certificate is signed", help: CONTROLLER, deadline: PATIENCE };
    Ok(api::wait_for(&requests, &name, wait, made, |request| signing_outcome(&request)).await?)
}

fn signing_outcome(request: &CertificateSigningRequest) -> Option<SigningOutcome> {
    let status = request.status.as_ref()?;
    let of = |kind: &str| status.conditions.iter().flatten().find(|condition| condition.type_ == kind);
    if let Some(no) = of("Denied").or_else(|| of("Failed")) {
        let reason = no.reason.clone().unwrap_or_default();
        return Some(SigningOutcome::Denied { reason, message: no.message.clone().unwrap_or_default() });
    }
    let certificate = status.certificate.as_ref().filter(|bytes| !bytes.0.is_empty())?;
    String::from_utf8(certificate.0.clone()).ok().map(SigningOutcome::Signed)
}

/// Stores the certificate as the kubelet does: one file for each certificate, and a link to the current one.
pub(crate) fn store(
    layout: &Layout,
    purpose: KubeletPurpose,
    signed: &KubeletCertificate,
    now: Timestamp,
) -> Result<(), NodeFileError> {
    let file = format!("{}-{}.pem", purpose.prefix(), now.strftime("%Y-%m-%d-%H-%M-%S"));
    let text = Zeroizing::new(format!("{}\n{}", signed.certificate.trim_end(), signed.key.expose()));
    let path = layout.pki().join(&file);
    files::write(&path, text.as_bytes(), 0o600)?;
    let link = layout.pki().join(purpose.link());
    let next = link.with_extension("pem.new");
    files::remove(&next)?;
    symlink(&path, &next).and_then(|()| fs::rename(&next, &link)).map_err(NodeFileError::new("link", link))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_serving_certificate_is_removed_with_its_file() {
        let directory = tempfile::tempdir().unwrap();
        let layout = Layout::new(directory.path());
        files::make_dir(&layout.pki(), 0o700).unwrap();
        remove_serving(&layout).unwrap();
        let (old, file) = (layout.pki().join("kubelet-server-1.pem"), layout.pki().join("kubelet-server-2.pem"));
        for target in [file.clone(), "kubelet-server-2.pem".into()] {
            fs::write(&old, "").unwrap();
            fs::write(&file, "").unwrap();
            symlink(&target, layout.pki().join(SERVING)).unwrap();
            remove_serving(&layout).unwrap();
            assert!(old.exists() && !file.exists() && fs::symlink_metadata(layout.pki().join(SERVING)).is_err());
        }
    }

    #[test]
    fn certificates_and_key_are_split_in_any_order() {
        let certificate = "-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n";
        let key = "-----BEGIN EC PRIVATE KEY-----\nBB==\n-----END EC PRIVATE KEY-----\n";
        for text in [
            format!("{certificate}{key}"),
            format!("{key}{certificate}"),
            format!("{certificate}{key}").trim_end().to_owned(),
        ] {
            let (found, secret) = split(&text).unwrap();
            assert_eq!((found.as_str(), secret.expose()), (certificate, key));
        }
        assert!(split(certificate).is_none());
        assert!(split(key).is_none());
        let two = format!("{certificate}{certificate}");
        assert_eq!(first(&two), certificate.trim_end());
    }
}
