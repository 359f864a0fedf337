//! A client of a name with several addresses. As clients of Kubernetes do, it connects to the next address if one does not accept a connection. A request
//! that was sent and failed is retried, with back-off.

use std::{
    io,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};
use base64::{Engine, engine::general_purpose::STANDARD};
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::{
    body::{Bytes, Incoming},
    client::conn::http2::{self, SendRequest},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};
use serde_json::Value;
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::TlsConnector;

/// The time limit of one attempt.
const TRY: Duration = Duration::from_secs(5);
/// The time limit for establishing a connection.
const CONNECT: Duration = Duration::from_secs(3);
/// The first pause between two attempts. Each pause is twice the previous one, up to the maximum.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The trusted authority, and the identity of the client, in PEM.
struct LoadCredentials {
    authority: Vec<u8>,
    certificate: Vec<u8>,
    key: Vec<u8>,
}

pub(super) struct LoadClient {
    servers: Vec<SocketAddr>,
    tls: TlsConnector,
}

/// A connection that several requests use, and the index of the next server.
pub(super) struct KeepAliveConnection {
    turn: usize,
    sender: Option<SendRequest<Full<Bytes>>>,
}

/// An attempt without a successful response.
pub(super) struct FailedAttempt {
    why: String,
    /// The server refused the request, so that a client does not send it again.
    is_refused: bool,
}

pub(super) struct RequestResult {
    pub(super) answer: Result<Value, String>,
    /// Why the attempts before the last one failed.
    pub(super) retried: Vec<String>,
}

/// The response of a watch, line by line.
pub(super) struct WatchLines {
    body: Incoming,
    read: Vec<u8>,
    _sender: SendRequest<Full<Bytes>>,
}

impl KeepAliveConnection {
    /// Creates the state without a connection.
    pub(super) fn new(turn: usize) -> Self {
        Self { turn, sender: None }
    }
}

impl LoadClient {
    /// Returns the client of the user of a kubeconfig.
    pub(super) fn of_user(servers: &[SocketAddr], kubeconfig: &Value) -> Self {
        let value = |list: &str, kind: &str, key: &str| {
            STANDARD.decode(kubeconfig[list][0][kind][key].as_str().unwrap()).unwrap()
        };
        let credentials = LoadCredentials {
            authority: value("clusters", "cluster", "certificate-authority-data"),
            certificate: value("users", "user", "client-certificate-data"),
            key: value("users", "user", "client-key-data"),
        };
        Self::new(servers, &credentials)
    }

    fn new(servers: &[SocketAddr], credentials: &LoadCredentials) -> Self {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(&credentials.authority) {
            roots.add(certificate.unwrap()).unwrap();
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let certificates = CertificateDer::pem_slice_iter(&credentials.certificate).map(Result::unwrap).collect();
        let key = PrivateKeyDer::from_pem_slice(&credentials.key).unwrap();
        let mut config = builder.with_root_certificates(roots).with_client_auth_cert(certificates, key).unwrap();
        config.alpn_protocols = vec![b"h2".to_vec()];
        Self { servers: servers.to_vec(), tls: Arc::new(config).into() }
    }

    /// Retries until a response is successful or the window ends.
    pub(super) async fn request(
        &self,
        kept: &mut KeepAliveConnection,
        method: Method,
        path: &str,
        body: &str,
        window: Duration,
    ) -> RequestResult {
        retry(kept, window, async |kept| self.attempt(kept, &method, path, body).await).await
    }

    /// Sends a request once. After an error, the next request uses another server.
    pub(super) async fn attempt(
        &self,
        kept: &mut KeepAliveConnection,
        method: &Method,
        path: &str,
        body: &str,
    ) -> Result<Value, FailedAttempt> {
        let tried = timeout(TRY, self.once(kept, method, path, body)).await;
        let failed = match tried {
            Ok(Ok(Ok(value))) => return Ok(value),
            Ok(Ok(Err(failed))) => failed,
            Ok(Err(error)) => FailedAttempt { why: format!("{error:#}"), is_refused: false },
            Err(_) => FailedAttempt { why: format!("no answer within {TRY:?}"), is_refused: false },
        };
        kept.sender = None;
        kept.turn += 1;
        Err(failed)
    }

    async fn once(
        &self,
        kept: &mut KeepAliveConnection,
        method: &Method,
        path: &str,
        body: &str,
    ) -> anyhow::Result<Result<Value, FailedAttempt>> {
        if kept.sender.as_ref().is_none_or(SendRequest::is_closed) {
            kept.sender = Some(self.connect(&mut kept.turn).await?);
        }
        let sender = kept.sender.as_mut().context("there is no connection")?;
        let answer = sender.send_request(request(method, path, body)?).await?;
        let status = answer.status();
        let text = answer.into_body().collect().await?.to_bytes();
        let is_good = matches!(status, StatusCode::OK | StatusCode::CREATED)
            || (*method == Method::DELETE && status == StatusCode::NOT_FOUND);
        if !is_good {
            let why = format!("{status}: {}", String::from_utf8_lossy(&text));
            return Ok(Err(FailedAttempt { why, is_refused: is_refusal(status) }));
        }
        Ok(Ok(serde_json::from_slice(&text)?))
    }

    pub(super) async fn watch(&self, mut turn: usize, path: &str) -> anyhow::Result<WatchLines> {
        let open = async {
            let mut sender = self.connect(&mut turn).await?;
            let answer = sender.send_request(request(&Method::GET, path, "")?).await?;
            ensure!(answer.status() == StatusCode::OK, "{}", answer.status());
            Ok(WatchLines { body: answer.into_body(), read: Vec::new(), _sender: sender })
        };
        timeout(TRY, open).await?
    }

    /// Connects to the first server that accepts a connection, from `turn` on, which is its index then.
    async fn connect(&self, turn: &mut usize) -> anyhow::Result<SendRequest<Full<Bytes>>> {
        let connect = async {
            let stream = self.dial(turn).await?;
            stream.set_nodelay(true)?;
            let stream = self.tls.connect(ServerName::try_from("kubernetes")?, stream).await?;
            anyhow::Ok(http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?)
        };
        let tried = timeout(CONNECT, connect).await;
        let server = self.servers[*turn % self.servers.len()];
        let (sender, connection) =
            tried.with_context(|| format!("{server}: not within {CONNECT:?}"))?.with_context(|| server.to_string())?;
        // A caller that sends on the connection gets the error, so the result is dropped here.
        tokio::spawn(async move { drop(connection.await) });
        Ok(sender)
    }

    async fn dial(&self, turn: &mut usize) -> io::Result<TcpStream> {
        let mut left = self.servers.len();
        loop {
            let server = self.servers[*turn % self.servers.len()];
            left -= 1;
            match TcpStream::connect(server).await {
                Err(_) if left > 0 => *turn += 1,
                outcome => return outcome,
            }
        }
    }
}

impl WatchLines {
    /// Returns the next object, or `None` if the watch was interrupted.
    pub(super) async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.read.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.read.drain(..=end).collect();
                return serde_json::from_slice(&line).ok();
            }
            let frame = self.body.frame().await?.ok()?;
            self.read.extend_from_slice(&frame.into_data().ok()?);
        }
    }
}

/// Whether a response means that the request is wrong, or not allowed. What is absent, in conflict or too much can be different a moment later.
fn is_refusal(status: StatusCode) -> bool {
    let passes = [StatusCode::NOT_FOUND, StatusCode::CONFLICT, StatusCode::TOO_MANY_REQUESTS];
    status.is_client_error() && !passes.contains(&status)
}

/// Repeats an attempt with back-off until one succeeds, is refused, or the window ends.
pub(super) async fn retry(
    kept: &mut KeepAliveConnection,
    window: Duration,
    mut attempt: impl AsyncFnMut(&mut KeepAliveConnection) -> Result<Value, FailedAttempt>,
) -> RequestResult {
    let started = Instant::now();
    let mut retried = Vec::new();
    let mut pause = PAUSE;
    loop {
        let failed = match attempt(kept).await {
            Ok(value) => return RequestResult { answer: Ok(value), retried },
            Err(failed) => failed,
        };
        if failed.is_refused || started.elapsed() + pause > window {
            return RequestResult { answer: Err(failed.why), retried };
        }
        retried.push(failed.why);
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn request(method: &Method, path: &str, body: &str) -> anyhow::Result<Request<Full<Bytes>>> {
    let builder = Request::builder().method(method).uri(format!("https://kubernetes{path}"));
    let builder = builder.header(header::CONTENT_TYPE, "application/apply-patch+yaml");
    Ok(builder.body(Full::new(Bytes::from(body.to_owned())))?)
}
