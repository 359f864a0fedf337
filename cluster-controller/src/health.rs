//! The health server, on loopback for all users of the machine, and metrics, on a socket for the component's own user.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use keelway_base::unix_listener;
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};

/// How long a request's head may take, and how long a connection may be idle between two requests.
const HEAD_DEADLINE: Duration = Duration::from_secs(2);
/// The most concurrent connections. One more ends the oldest.
const MOST_CONNECTIONS: usize = 32;
/// The largest head of a request, in bytes.
const LARGEST_HEAD: usize = 8192;
/// Only the component's own user may read metrics.
const METRICS_MODE: u32 = 0o600;

/// The health and metrics of this process.
pub(crate) struct ProcessHealth {
    pub(crate) registry: Registry,
    /// Returns an error while the process is not ready.
    pub(crate) readiness: Box<dyn Fn() -> Result<(), String> + Send + Sync>,
}

/// The health server cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum HealthServerError {
    /// The address cannot be opened.
    #[error("cannot listen on {address}")]
    Address {
        /// The address to listen on.
        address: SocketAddr,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The socket cannot be opened.
    #[error("cannot listen on {}", path.display())]
    Socket {
        /// The path of the socket.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
}

/// The listeners for health and metrics.
pub(crate) struct HealthListeners {
    health: TcpListener,
    metrics: Option<UnixListener>,
}

impl HealthListeners {
    /// Listens on an address of loopback for health, and on a socket for metrics.
    pub(crate) async fn open(address: SocketAddr, metrics: Option<&Path>) -> Result<Self, HealthServerError> {
        let health =
            TcpListener::bind(address).await.map_err(|source| HealthServerError::Address { address, source })?;
        let open = |path: &Path| {
            let failed = |source| HealthServerError::Socket { path: path.to_owned(), source };
            unix_listener::listen(path, METRICS_MODE).map_err(failed)
        };
        Ok(Self { health, metrics: metrics.map(open).transpose()? })
    }
}

/// Serves requests until the process ends.
pub(crate) async fn serve(entrances: HealthListeners, health: ProcessHealth) {
    let health = Arc::new(health);
    let metrics = async {
        match entrances.metrics {
            Some(listener) => accept_connections(LocalListener::Socket(listener), &health, on_socket).await,
            None => std::future::pending().await,
        }
    };
    tokio::join!(accept_connections(LocalListener::Loopback(entrances.health), &health, on_loopback), metrics);
}

enum LocalListener {
    Loopback(TcpListener),
    Socket(UnixListener),
}

trait HealthStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> HealthStream for T {}

impl LocalListener {
    async fn accept(&self) -> io::Result<Box<dyn HealthStream>> {
        Ok(match self {
            Self::Loopback(listener) => Box::new(listener.accept().await?.0),
            Self::Socket(listener) => Box::new(listener.accept().await?.0),
        })
    }
}

type HealthHandler = fn(&str, &ProcessHealth) -> Response<Full<Bytes>>;

async fn accept_connections(listener: LocalListener, health: &Arc<ProcessHealth>, answer: HealthHandler) {
    let mut open = VecDeque::new();
    loop {
        let Ok(stream) = listener.accept().await else {
            // This error only means a shortage of file descriptors or memory. It takes a moment to end.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        open.retain(|conversation: &tokio::task::AbortHandle| !conversation.is_finished());
        // All programs of the machine share loopback. Idle connections must not exclude other clients.
        if open.len() >= MOST_CONNECTIONS
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
        }
        let health = Arc::clone(health);
        let conversation = tokio::spawn(async move {
            if let Err(error) = serve_connection(stream, health, answer).await {
                tracing::debug!(%error, "a connection of the health server failed");
            }
        });
        open.push_back(conversation.abort_handle());
    }
}

async fn serve_connection(
    stream: Box<dyn HealthStream>,
    health: Arc<ProcessHealth>,
    answer: HealthHandler,
) -> hyper::Result<()> {
    let service = service_fn(move |request: Request<Incoming>| {
        let path = if request.method() == Method::GET { request.uri().path() } else { "" };
        let answer = answer(path, &health);
        async move { Ok::<_, Infallible>(answer) }
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_DEADLINE)
        .max_buf_size(LARGEST_HEAD)
        .serve_connection(TokioIo::new(stream), service)
        .await
}

fn on_loopback(path: &str, health: &ProcessHealth) -> Response<Full<Bytes>> {
    match path {
        "/healthz" => text(StatusCode::OK, "ok\n".to_owned()),
        "/readyz" => match (health.readiness)() {
            Ok(()) => text(StatusCode::OK, "ok\n".to_owned()),
            Err(why) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
        },
        _ => text(StatusCode::NOT_FOUND, "not found; the paths are /healthz and /readyz\n".to_owned()),
    }
}

fn on_socket(path: &str, health: &ProcessHealth) -> Response<Full<Bytes>> {
    match path {
        "/metrics" => metrics(&health.registry),
        _ => text(StatusCode::NOT_FOUND, "not found; the path is /metrics\n".to_owned()),
    }
}

fn metrics(registry: &Registry) -> Response<Full<Bytes>> {
    let mut body = String::new();
    if let Err(error) = encode(&mut body, registry) {
        return text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n"));
    }
    let mut response = text(StatusCode::OK, body);
    let kind = header::HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

fn text(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpStream, UnixStream};

    use super::*;

    async fn ask(mut stream: impl HealthStream, path: &str) -> String {
        let question = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(question.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn health_is_for_all_and_metrics_are_for_its_own_user() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("metrics.sock");
        let entrances = HealthListeners::open("127.0.0.1:0".parse().unwrap(), Some(&socket)).await.unwrap();
        let address = entrances.health.local_addr().unwrap();
        let readiness = Box::new(|| Err("not yet".to_owned()));
        let serving =
            tokio::spawn(serve(entrances, ProcessHealth { registry: Registry::with_prefix("keelway"), readiness }));
        let health = async |path: &str| ask(TcpStream::connect(address).await.unwrap(), path).await;
        let metrics = async |path: &str| ask(UnixStream::connect(&socket).await.unwrap(), path).await;

        assert!(health("/healthz").await.starts_with("HTTP/1.1 200"));
        let unready = health("/readyz").await;
        assert!(unready.starts_with("HTTP/1.1 503") && unready.contains("not yet"), "{unready}");
        assert!(health("/metrics").await.starts_with("HTTP/1.1 404"));
        assert!(metrics("/metrics").await.starts_with("HTTP/1.1 200"));
        assert!(metrics("/healthz").await.starts_with("HTTP/1.1 404"));
        assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, METRICS_MODE);

        // Idle connections exclude no client, however many there are.
        let mut silent = Vec::new();
        for _ in 0..MOST_CONNECTIONS * 2 {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        assert!(health("/healthz").await.starts_with("HTTP/1.1 200"));
        serving.abort();
    }
}
