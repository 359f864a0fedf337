//! HTTP over TLS, as the fake programs serve it.

use std::{convert::Infallible, io, net::SocketAddr, sync::Arc};

use anyhow::Context;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::{
    body::{Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use rustls::{RootCertStore, ServerConfig, crypto::ring, server::WebPkiClientVerifier};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject};
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_rustls::TlsAcceptor;

use super::program::{StartedProgram, address_of};

pub(super) type HttpResponse = Response<Full<Bytes>>;

/// Which client certificates a server accepts or requires.
pub(super) enum ClientAuthentication {
    /// The server requests no certificate.
    Any,
    /// A client may present a certificate; these authorities, in PEM, must have signed it.
    Known(Vec<u8>),
    /// A client must present a certificate that these authorities signed.
    OnlyKnown(Vec<u8>),
}

/// The certificate that a client presented, in DER.
pub(super) type ShownCertificate = Option<Arc<[u8]>>;

pub(super) async fn etcd(program: &StartedProgram) -> anyhow::Result<()> {
    let address = address_of(program.flag("listen-client-urls")?)?;
    program.make_directory(&format!("{}/member", program.flag("data-dir")?))?;
    let clients = ClientAuthentication::OnlyKnown(program.read_flag("trusted-ca-file")?);
    let config = config(&program.read_flag("cert-file")?, &program.read_flag("key-file")?, clients)?;
    serve(address, config, |_, request| async move { health(&request, &["/readyz"]) }).await
}

/// kube-controller-manager and kube-scheduler: health needs no credentials.
pub(super) async fn controller(program: &StartedProgram) -> anyhow::Result<()> {
    let pair = (program.read_flag("tls-cert-file")?, program.read_flag("tls-private-key-file")?);
    let config = config(&pair.0, &pair.1, ClientAuthentication::Any)?;
    serve(program.bind_address()?, config, |_, request| async move { health(&request, &["/healthz", "/livez"]) }).await
}

/// A program of Keelway, with its health endpoint only, which has no TLS.
pub(super) async fn own(program: &StartedProgram) -> anyhow::Result<()> {
    let config: serde_json::Value = serde_json::from_slice(&program.read_flag("config")?)?;
    let health = program.flag("health").ok().or_else(|| config["health"].as_str());
    let address: SocketAddr = health.context("no address for health")?.parse()?;
    let listener = TcpListener::bind(address).await.with_context(|| format!("could not listen on {address}"))?;
    let mut connections = JoinSet::new();
    loop {
        let stream = accept(&listener).await?;
        let service = service_fn(|request: Request<Incoming>| async move {
            let known = ["/healthz", "/readyz"].contains(&request.uri().path());
            Ok::<_, Infallible>(text(if known { StatusCode::OK } else { StatusCode::NOT_FOUND }, ""))
        });
        connections.spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
        while connections.try_join_next().is_some() {}
    }
}

fn health(request: &Request<Incoming>, paths: &[&str]) -> HttpResponse {
    if paths.contains(&request.uri().path()) { text(StatusCode::OK, "ok") } else { text(StatusCode::NOT_FOUND, "") }
}

pub(super) fn text(status: StatusCode, text: impl Into<Bytes>) -> HttpResponse {
    let mut answer = Response::new(Full::new(text.into()));
    *answer.status_mut() = status;
    answer
}

pub(super) fn config(certificate: &[u8], key: &[u8], clients: ClientAuthentication) -> anyhow::Result<ServerConfig> {
    let provider = Arc::new(ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider)).with_safe_default_protocol_versions()?;
    let verifier = |pem: &[u8]| {
        anyhow::Ok(WebPkiClientVerifier::builder_with_provider(Arc::new(authorities(pem)?), Arc::clone(&provider)))
    };
    let builder = match clients {
        ClientAuthentication::Any => builder.with_no_client_auth(),
        ClientAuthentication::Known(pem) => {
            builder.with_client_cert_verifier(verifier(&pem)?.allow_unauthenticated().build()?)
        }
        ClientAuthentication::OnlyKnown(pem) => builder.with_client_cert_verifier(verifier(&pem)?.build()?),
    };
    let (chain, key) = pair(certificate, key)?;
    Ok(builder.with_single_cert(chain, key)?)
}

/// Parses a certificate with its chain, and its key, from PEM.
pub(super) fn pair(
    certificate: &[u8],
    key: &[u8],
) -> anyhow::Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
    let chain = CertificateDer::pem_slice_iter(certificate).collect::<Result<_, _>>().context("no certificate")?;
    Ok((chain, PrivateKeyDer::from_pem_slice(key).context("no key")?))
}

pub(super) fn authorities(pem: &[u8]) -> anyhow::Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        roots.add(certificate.context("no authority")?)?;
    }
    Ok(roots)
}

/// Go programs also disable Nagle's algorithm, so that small packets are sent without delay.
async fn accept(listener: &TcpListener) -> io::Result<TcpStream> {
    let (stream, _) = listener.accept().await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// Serves requests until dropped. All connections then end.
pub(super) async fn serve<H, F>(address: SocketAddr, config: ServerConfig, handler: H) -> anyhow::Result<()>
where
    H: Fn(ShownCertificate, Request<Incoming>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = HttpResponse> + Send + 'static,
{
    let listener = TcpListener::bind(address).await.with_context(|| format!("could not listen on {address}"))?;
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let mut connections = JoinSet::new();
    loop {
        let stream = accept(&listener).await?;
        let (acceptor, handler) = (acceptor.clone(), handler.clone());
        connections.spawn(async move {
            // A client without a valid certificate, or one that disconnects, is not an error of the server.
            let Ok(stream) = acceptor.accept(stream).await else { return };
            let shown: ShownCertificate =
                stream.get_ref().1.peer_certificates().and_then(|chain| Some(chain.first()?.as_ref().into()));
            let service = service_fn(move |request| {
                let answer = handler(shown.clone(), request);
                async move { Ok::<_, Infallible>(answer.await) }
            });
            let _ = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
        while connections.try_join_next().is_some() {}
    }
}
