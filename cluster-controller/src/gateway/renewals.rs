//! Renews expired certificates of workers: a worker without a valid certificate cannot use the API, but it can prove its key to a gateway.
//!
//! The gateway only creates the request, with the proof. The cluster-controller decides. The gateway checks the proof before that, so that strangers
//! create no objects in the cluster.

use std::{fs, io, path::PathBuf, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use k8s_openapi::{
    ByteString,
    api::certificates::v1::{CertificateSigningRequest, CertificateSigningRequestSpec},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use keelway_api::{
    machine::sha256_hex,
    worker::{EXPIRED_CERTIFICATE, LONGEST_RENEWAL, RENEWAL_SIGNATURE, RenewalRequest, RenewalResponse},
};
use keelway_base::error_chain::ErrorChain;
use keelway_pki::{RenewalProofError, verify_once_issued, verify_renewal};
use kube::{Api, Client, api::PostParams};
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader},
    sync::Semaphore,
    time::{sleep, timeout},
};

use super::watch::{ClusterClientError, client};

/// How long a worker may take to send its request, or to read the response.
const EXCHANGE: Duration = Duration::from_secs(10);
/// How long the cluster may take to decide and sign.
const SIGNED: Duration = Duration::from_secs(30);
/// The pause between two reads of a request. A gateway may not watch requests.
const LOOK: Duration = Duration::from_secs(1);
/// The most renewals at a time. Others are refused, and the workers retry.
const MOST: usize = 8;
/// The longest signature, in base64.
const LONGEST_SIGNATURE: usize = 128;
const SIGNER: &str = "kubernetes.io/kube-apiserver-client-kubelet";
const USAGES: [&str; 2] = ["digital signature", "client auth"];

/// A certificate was not renewed.
#[derive(Debug, thiserror::Error)]
enum GatewayRenewalError {
    #[error("this gateway has no kubeconfig")]
    NoCluster,
    #[error("cannot read the cluster's authorities")]
    Authorities(#[source] io::Error),
    #[error("too many certificates are renewed at the moment")]
    Busy,
    #[error("the request is not valid")]
    Form,
    #[error("the proof is not valid")]
    Proof(#[from] RenewalProofError),
    #[error(transparent)]
    Client(#[from] ClusterClientError),
    #[error("cannot {0} the CertificateSigningRequest")]
    Api(&'static str, #[source] Box<kube::Error>),
    #[error("the cluster did not sign the certificate within {} s", SIGNED.as_secs())]
    Unsigned,
}

/// Renews certificates through the cluster's API.
pub(super) struct RenewalServer {
    kubeconfig: Option<PathBuf>,
    /// The authorities that issue workers' certificates.
    authorities: PathBuf,
    places: Semaphore,
}

impl RenewalServer {
    pub(super) fn new(kubeconfig: Option<PathBuf>, authorities: PathBuf) -> Self {
        Self { kubeconfig, authorities, places: Semaphore::new(MOST) }
    }

    /// Serves one worker.
    pub(super) async fn serve(&self, stream: impl AsyncRead + AsyncWrite + Unpin) -> io::Result<()> {
        let mut stream = BufReader::new(stream);
        let mut line = Vec::new();
        timeout(EXCHANGE, (&mut stream).take(LONGEST_RENEWAL).read_until(b'\n', &mut line)).await??;
        let response = self.renew(&line).await.unwrap_or_else(|error| {
            tracing::info!("did not renew a worker's certificate: {}", ErrorChain(&error));
            RenewalResponse::Failed(ErrorChain(&error).to_string())
        });
        let mut text = serde_json::to_vec(&response)?;
        text.push(b'\n');
        timeout(EXCHANGE, async {
            stream.write_all(&text).await?;
            stream.shutdown().await
        })
        .await?
    }

    async fn renew(&self, line: &[u8]) -> Result<RenewalResponse, GatewayRenewalError> {
        let request: RenewalRequest = serde_json::from_slice(line).map_err(|_| GatewayRenewalError::Form)?;
        let _place = self.places.try_acquire().map_err(|_| GatewayRenewalError::Busy)?;
        self.check(&request)?;
        let kubeconfig = self.kubeconfig.as_deref().ok_or(GatewayRenewalError::NoCluster)?;
        let client = client(kubeconfig).await?;
        timeout(SIGNED, submit(client, &request)).await.map_err(|_| GatewayRenewalError::Unsigned)?
    }

    /// Checks that the cluster issued the certificate, and that its key signed the request.
    fn check(&self, request: &RenewalRequest) -> Result<(), GatewayRenewalError> {
        if request.signature.len() > LONGEST_SIGNATURE {
            return Err(GatewayRenewalError::Form);
        }
        let signature = STANDARD.decode(&request.signature).map_err(|_| GatewayRenewalError::Form)?;
        let proven = verify_renewal(&request.certificate, request.request.as_bytes(), &signature)?;
        let bundle = fs::read_to_string(&self.authorities).map_err(GatewayRenewalError::Authorities)?;
        Ok(verify_once_issued(&request.certificate, &bundle, proven.facts.validity.not_before())?)
    }
}

/// Creates the request in the cluster, and waits for the decision. The same request has the same name, so that a worker can ask again.
async fn submit(client: Client, request: &RenewalRequest) -> Result<RenewalResponse, GatewayRenewalError> {
    let requests: Api<CertificateSigningRequest> = Api::all(client);
    let object = object(request);
    let name = object.metadata.name.clone().unwrap_or_default();
    match requests.create(&PostParams::default(), &object).await {
        Ok(_) => {}
        Err(kube::Error::Api(status)) if status.code == 409 => {}
        Err(error) => return Err(GatewayRenewalError::Api("create", Box::new(error))),
    }
    loop {
        let found = requests.get(&name).await.map_err(|error| GatewayRenewalError::Api("get", Box::new(error)))?;
        if let Some(response) = response(&found) {
            return Ok(response);
        }
        sleep(LOOK).await;
    }
}

fn object(request: &RenewalRequest) -> CertificateSigningRequest {
    let digest = sha256_hex(request.request.as_bytes());
    let annotations = [
        (EXPIRED_CERTIFICATE.to_owned(), request.certificate.clone()),
        (RENEWAL_SIGNATURE.to_owned(), request.signature.clone()),
    ];
    CertificateSigningRequest {
        metadata: ObjectMeta {
            name: Some(format!("keelway-renewal-{}", &digest[..20])),
            annotations: Some(annotations.into()),
            ..ObjectMeta::default()
        },
        spec: CertificateSigningRequestSpec {
            request: ByteString(request.request.as_bytes().to_vec()),
            signer_name: SIGNER.to_owned(),
            usages: Some(USAGES.map(str::to_owned).to_vec()),
            ..CertificateSigningRequestSpec::default()
        },
        status: None,
    }
}

fn response(request: &CertificateSigningRequest) -> Option<RenewalResponse> {
    let status = request.status.as_ref()?;
    let of = |kind: &str| status.conditions.iter().flatten().find(|condition| condition.type_ == kind);
    if let Some(no) = of("Denied").or_else(|| of("Failed")) {
        let reason = no.reason.clone().unwrap_or_default();
        return Some(RenewalResponse::Denied { reason, message: no.message.clone().unwrap_or_default() });
    }
    let certificate = status.certificate.as_ref().filter(|bytes| !bytes.0.is_empty())?;
    String::from_utf8(certificate.0.clone()).ok().map(RenewalResponse::Signed)
}
