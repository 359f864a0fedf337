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
    ingress_names::{IngressResolver, MachineResolver, addresses_of_names},
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
    let signed = ask_gateways(&asked, known, proxies, &MachineResolver).await;
    if let Err(RenewalError::Denied { .. }) = &signed {
        // The cluster decides about a request once. The next attempt is another request.
        files::remove(&layout.joining_key())?;
    }
    let signed = KubeletCertificate { certificate: signed?, key };
    certificate::store(layout, KubeletPurpose::Client, &signed, now)?;
    files::remove(&layout.joining_key())?;
    Ok(true)
}

/// Asks the gateways that the worker knows. If none of them decides, resolves the cluster's names, and asks the gateways at the addresses that it did
/// not know: all of them may have moved while the worker was away.
async fn ask_gateways(
    request: &RenewalRequest,
    known: &TrustedInformation,
    proxies: &HttpProxies,
    resolver: &impl IngressResolver,
) -> Result<String, RenewalError> {
    let mut config = client_from_pem(known.authorities.as_bytes(), None).map_err(RenewalError::Authorities)?;
    config.alpn_protocols = vec![RENEWAL_PROTOCOL.as_bytes().to_vec()];
    let client = RenewalClient { request, config: Arc::new(config), proxies };
    let gateways = known.cluster.endpoints.iter().filter(|endpoint| endpoint.gateway.is_some());
    let gateways: Vec<SocketAddr> = gateways.map(|endpoint| endpoint.address).collect();
    match client.ask_each(gateways.iter().copied(), RenewalError::NoGateway).await {
        decided @ (Ok(_) | Err(RenewalError::Denied { .. })) => decided,
        Err(last) => {
            let mut found = addresses_of_names(resolver, &known.cluster).await;
            found.retain(|address| !gateways.contains(address));
            match client.ask_each(found, RenewalError::NoGateway).await {
                Err(RenewalError::NoGateway) => Err(last),
                // A gateway that responded says more than an address that does not.
                Err(other)
                    if matches!(last, RenewalError::Failed { .. }) && !matches!(other, RenewalError::Denied { .. }) =>
                {
                    Err(last)
                }
                other => other,
            }
        }
    }
}

/// Requests the same certificate of several gateways.
struct RenewalClient<'a> {
    request: &'a RenewalRequest,
    config: Arc<ClientConfig>,
    proxies: &'a HttpProxies,
}

impl RenewalClient<'_> {
    /// Asks one gateway after the other. Returns the certificate, or the decision of the cluster, or the last error.
    async fn ask_each(
        &self,
        gateways: impl IntoIterator<Item = SocketAddr>,
        mut last: RenewalError,
    ) -> Result<String, RenewalError> {
        for gateway in gateways {
            match ask(self.request, gateway, &self.config, self.proxies).await {
                Ok(RenewalResponse::Signed(certificate)) => return Ok(certificate),
                Ok(RenewalResponse::Denied { reason, message }) => {
                    return Err(RenewalError::Denied { reason, message });
                }
                Ok(RenewalResponse::Failed(why)) => last = RenewalError::Failed { gateway, why },
                Err(error) => last = error,
            }
            tracing::debug!(%gateway, "did not renew the certificate: {}", ErrorChain(&last));
        }
        Err(last)
    }
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        loopback_server::{LoopbackAuthority, LoopbackServer},
        samples::{self, LocalResolver},
    };

    const NAME: &str = "api.example.com";

    /// A cluster with a name, whose only gateway was at this address.
    fn known(authority: &LoopbackAuthority, gateway: SocketAddr) -> TrustedInformation {
        let mut cluster = samples::cluster();
        cluster.names = vec![NAME.to_owned()];
        let gateway = json!([{ "address": gateway, "gateway": { "publicKey": "", "addresses": [] } }]);
        cluster.endpoints = serde_json::from_value(gateway).unwrap();
        TrustedInformation { cluster, authorities: authority.pem() }
    }

    fn request() -> RenewalRequest {
        let text = |what: &str| format!("the {what}");
        RenewalRequest { certificate: text("certificate"), request: text("request"), signature: text("signature") }
    }

    async fn asked(known: &TrustedInformation, resolver: &LocalResolver) -> Result<String, RenewalError> {
        ask_gateways(&request(), known, &HttpProxies::default(), resolver).await
    }

    fn signed() -> RenewalResponse {
        RenewalResponse::Signed("the new certificate".to_owned())
    }

    /// Of the addresses of the name, one belongs to another cluster.
    #[tokio::test]
    async fn a_gateway_that_moved_is_found_by_name() {
        let (cluster, stranger) = (LoopbackAuthority::new(1), LoopbackAuthority::new(2));
        let moved = LoopbackServer::gateway("127.0.0.3:0", &cluster, &signed()).await;
        let other = LoopbackServer::gateway(moved.beside("127.0.0.2"), &stranger, &signed()).await;
        let known = known(&cluster, moved.beside("127.0.0.9"));
        let resolver = LocalResolver::default();
        assert!(matches!(asked(&known, &resolver).await, Err(RenewalError::Connect { .. })));

        resolver.set(NAME, &["127.0.0.2", "127.0.0.3"]);
        assert_eq!(asked(&known, &resolver).await.unwrap(), "the new certificate");
        let received: Vec<RenewalRequest> =
            moved.received().iter().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(received, [request()]);
        assert_eq!((other.connections(), other.received()), (1, vec![]), "it is asked, and gets no request");
    }

    #[tokio::test]
    async fn a_name_that_leads_to_another_cluster_renews_nothing() {
        let (cluster, stranger) = (LoopbackAuthority::new(1), LoopbackAuthority::new(2));
        let other = LoopbackServer::gateway("127.0.0.4:0", &stranger, &signed()).await;
        let resolver = LocalResolver::default();
        resolver.set(NAME, &["127.0.0.4"]);
        let refused = asked(&known(&cluster, other.beside("127.0.0.9")), &resolver).await.unwrap_err();
        let RenewalError::Connect { gateway, source } = &refused else { panic!("{refused:?}") };
        assert_eq!(*gateway, other.address);
        let reason = source.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        assert!(matches!(reason, Some(rustls::Error::InvalidCertificate(_))), "{source}");
        assert_eq!((other.connections(), other.received()), (1, vec![]));
    }

    #[tokio::test]
    async fn no_name_is_resolved_once_the_cluster_has_decided() {
        let cluster = LoopbackAuthority::new(1);
        let denial = RenewalResponse::Denied { reason: "Unproven".to_owned(), message: "join again".to_owned() };
        for response in [signed(), denial] {
            let gateway = LoopbackServer::gateway("127.0.0.5:0", &cluster, &response).await;
            let resolver = LocalResolver::default();
            resolver.set(NAME, &["127.0.0.3"]);
            let answer = asked(&known(&cluster, gateway.address), &resolver).await;
            assert_eq!(answer.is_ok(), response == signed(), "{answer:?}");
            assert_eq!(resolver.queries(), 0);
        }
    }
}
