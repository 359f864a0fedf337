//! The health server, on loopback for all users of the machine, and metrics, on a socket for the component's own user.

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use http::StatusCode;
use keelway_base::unix_listener;
use keelway_local_http::{LocalListener, LocalResponse, metrics, text};
use prometheus_client::registry::Registry;
use tokio::net::{TcpListener, UnixListener};

/// Only the component's own user may read metrics.
const METRICS_MODE: u32 = 0o600;

/// The health and metrics of this process.
pub struct ProcessHealth {
    /// The metrics.
    pub registry: Registry,
    /// Returns an error if the process must be restarted.
    pub liveness: Box<dyn Fn() -> Result<(), String> + Send + Sync>,
    /// Returns an error while the process is not ready.
    pub readiness: Box<dyn Fn() -> Result<(), String> + Send + Sync>,
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
pub struct HealthListeners {
    health: TcpListener,
    metrics: Option<UnixListener>,
}

impl HealthListeners {
    /// Listens on an address of loopback for health, and on a socket for metrics.
    pub async fn open(address: SocketAddr, metrics: Option<&Path>) -> Result<Self, HealthServerError> {
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
pub async fn serve(entrances: HealthListeners, health: ProcessHealth) {
    let metrics = async {
        match entrances.metrics {
            Some(listener) => {
                keelway_local_http::serve(LocalListener::Socket(listener), |path| on_socket(path, &health)).await;
            }
            None => std::future::pending().await,
        }
    };
    let loopback = LocalListener::Tcp(entrances.health);
    tokio::join!(keelway_local_http::serve(loopback, |path| on_loopback(path, &health)), metrics);
}

fn on_loopback(path: &str, health: &ProcessHealth) -> LocalResponse {
    match path {
        "/healthz" => outcome((health.liveness)()),
        "/readyz" => outcome((health.liveness)().and_then(|()| (health.readiness)())),
        _ => text(StatusCode::NOT_FOUND, "not found; the paths are /healthz and /readyz\n".to_owned()),
    }
}

fn outcome(outcome: Result<(), String>) -> LocalResponse {
    match outcome {
        Ok(()) => text(StatusCode::OK, "ok\n".to_owned()),
        Err(why) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
    }
}

fn on_socket(path: &str, health: &ProcessHealth) -> LocalResponse {
    match path {
        "/metrics" => metrics(&health.registry),
        _ => text(StatusCode::NOT_FOUND, "not found; the path is /metrics\n".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use keelway_local_http::MOST_CONNECTIONS;
    use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
    use tokio::net::{TcpStream, UnixStream};

    use super::*;

    async fn ask(mut stream: impl AsyncRead + AsyncWrite + Unpin, path: &str) -> String {
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
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let liveness = move || if over.load(Ordering::Relaxed) { Err("it has ended".to_owned()) } else { Ok(()) };
        let health = ProcessHealth {
            registry: Registry::with_prefix("keelway"),
            liveness: Box::new(liveness),
            readiness: Box::new(|| Err("not yet".to_owned())),
        };
        let serving = tokio::spawn(serve(entrances, health));
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

        is_over.store(true, Ordering::Relaxed);
        for path in ["/healthz", "/readyz"] {
            let dead = health(path).await;
            assert!(dead.starts_with("HTTP/1.1 503") && dead.contains("it has ended"), "{dead}");
        }
        serving.abort();
    }
}
