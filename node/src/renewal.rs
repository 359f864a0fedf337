//! Renews the kubelet's client certificate after it has expired: a worker that was away proves to a gateway that it has the key of the certificate.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use base64::{Engine, engine::general_purpose::STANDARD};
use jiff::Timestamp;
use keelway_api::worker::{LONGEST_RENEWAL, RENEWAL_PROTOCOL, RenewalRequest, RenewalResponse};
use keelway_base::error_chain::ErrorChain;
use keelway_http_proxy::HttpProxies;
use keelway_pki::{KeyError, client_signing_request, sign_renewal};
use keelway_tls::component::{AgentTlsError, client_from_pem};
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    time::timeout,
};
use tokio_rustls::TlsConnector;

use crate::{
    certificate::{self, GROUP, KubeletCertificate, KubeletCertificateError, KubeletPurpose},
    files::{self, NodeFileError},
    information::TrustedInformation,
    settings::Layout,
    tunnels::GATEWAY_NAME,
};

/// How long a connection may take, with its handshake.
const CONNECT: Duration = Duration::from_secs(5);
/// How long the response may take. A gateway waits 30 s for the cluster.
const ANSWER: Duration = Duration::from_secs(45);

/// A certificate was not renewed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RenewalError {
    #[error(transparent)]
    File(#[from] NodeFileError),
    #[error(transparent)]
    Request(#[from] KubeletCertificateError),
    #[error("cannot sign with the key of the expired certificate")]
    Key(#[source] KeyError),
    #[error("cannot use the cluster's authorities")]
    Authorities(#[source] AgentTlsError),
    #[error("cannot reach the gateway at {gateway}")]
    Connect {
        gateway: SocketAddr,
        #[source]
        source: io::Error,
    },
    #[error("the gateway at {0} renews no certificates: it is of an earlier release")]
    Protocol(SocketAddr),
    #[error("the gateway at {gateway} cannot renew the certificate: {why}")]
    Failed { gateway: SocketAddr, why: String },
    #[error("the cluster denied another certificate: {reason}: {message}")]
    Denied { reason: String, message: String },
    #[error("the cluster has no gateway")]
    NoGateway,
}

/// Renews the certificate if it has expired and this worker has its key. Returns whether there is a new one.
pub(crate) async fn renew(
    layout: &Layout,
    name: &str,
    known: &TrustedInformation,
    proxies: &HttpProxies,
    now: Timestamp,
) -> Result<bool, RenewalError> {
    let Some(expired) = certificate::load_expired(layout, now)? else { return Ok(false) };
    let key = certificate::joining_key(layout)?;
    let request = client_signing_request(&key, &format!("system:node:{name}"), GROUP)
        .map_err(KubeletCertificateError::Request)?;
    let signature = sign_renewal(&expired.key, request.as_bytes()).map_err(RenewalError::Key)?;
    let asked = RenewalRequest {
        certificate: certificate::first(&expired.certificate).to_owned() + "\n",
        request,
        signature: STANDARD.encode(signature),
    };
    let signed = ask_gateways(&asked, known, proxies).await;
    if let Err(RenewalError::Denied { .. }) = &signed {
        // The cluster decides about a request once. The next attempt is another request.
        files::remove(&layout.joining_key())?;
    }
    let signed = KubeletCertificate { certificate: signed?, key };
    certificate::store(layout, KubeletPurpose::Client, &signed, now)?;
    files::remove(&layout.joining_key())?;
    Ok(true)
}

/// Asks one gateway after the other. Returns the certificate, or the decision of the cluster, or the last error.
async fn ask_gateways(
    request: &RenewalRequest,
    known: &TrustedInformation,
    proxies: &HttpProxies,
) -> Result<String, RenewalError> {
    let mut config = client_from_pem(known.authorities.as_bytes(), None).map_err(RenewalError::Authorities)?;
    config.alpn_protocols = vec![RENEWAL_PROTOCOL.as_bytes().to_vec()];
    let config = Arc::new(config);
    let mut last = RenewalError::NoGateway;
    for endpoint in known.cluster.endpoints.iter().filter(|endpoint| endpoint.gateway.is_some()) {
        let gateway = endpoint.address;
        match ask(request, gateway, &config, proxies).await {
            Ok(RenewalResponse::Signed(certificate)) => return Ok(certificate),
            Ok(RenewalResponse::Denied { reason, message }) => return Err(RenewalError::Denied { reason, message }),
            Ok(RenewalResponse::Failed(why)) => last = RenewalError::Failed { gateway, why },
            Err(error) => last = error,
        }
        tracing::debug!(%gateway, "did not renew the certificate: {}", ErrorChain(&last));
    }
    Err(last)
}

async fn ask(
    request: &RenewalRequest,
    gateway: SocketAddr,
    config: &Arc<ClientConfig>,
    proxies: &HttpProxies,
) -> Result<RenewalResponse, RenewalError> {
    let failed = |source| RenewalError::Connect { gateway, source };
    let connected = async {
        let stream = proxies.connect(gateway).await?;
        let name = ServerName::try_from(GATEWAY_NAME).map_err(io::Error::other)?;
        TlsConnector::from(Arc::clone(config)).connect(name, stream).await
    };
    let late = |_| failed(io::ErrorKind::TimedOut.into());
    let mut stream = timeout(CONNECT, connected).await.map_err(late)?.map_err(failed)?;
    if stream.get_ref().1.alpn_protocol() != Some(RENEWAL_PROTOCOL.as_bytes()) {
        return Err(RenewalError::Protocol(gateway));
    }
    let exchanged = async {
        let mut line = serde_json::to_vec(request)?;
        line.push(b'\n');
        stream.write_all(&line).await?;
        stream.flush().await?;
        let mut response = Vec::new();
        BufReader::new(stream).take(LONGEST_RENEWAL).read_until(b'\n', &mut response).await?;
        Ok(serde_json::from_slice(&response)?)
    };
    timeout(ANSWER, exchanged).await.map_err(late)?.map_err(failed)
}
