//! Health and metrics over HTTP, for every client that can reach the address.

use std::{collections::VecDeque, convert::Infallible, io, net::SocketAddr, sync::Arc, time::Duration};

use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{
    body::{Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    task::{AbortHandle, spawn_blocking},
};

use crate::metrics::{ExpositionFormat, ManagerMetrics};

/// The default address.
pub const DEFAULT_ADDRESS: &str = "127.0.0.1:9743";

/// The time limit for the head of a request, and for an idle connection between two requests.
const HEAD_DEADLINE: Duration = Duration::from_secs(2);
/// The most connections at one time. One more closes the oldest, so that idle clients cannot block others.
const MOST_CONNECTIONS: usize = 32;
/// The largest head of a request, in bytes.
const LARGEST_HEAD: usize = 8192;
/// The pause after a connection could not be accepted, for lack of file descriptors or memory.
const SHORTAGE: Duration = Duration::from_millis(100);

/// The address for health and metrics cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("could not listen on {}", addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(" or "))]
pub struct HealthListenError {
    addresses: Vec<SocketAddr>,
    #[source]
    source: io::Error,
}

/// A listener for health and metrics.
#[derive(Debug)]
pub struct HealthListener(TcpListener);

impl HealthListener {
    /// Listens on the first of these addresses that is available.
    ///
    /// # Errors
    /// No address is available.
    pub async fn open(addresses: &[SocketAddr]) -> Result<Self, HealthListenError> {
        let failed = |source| HealthListenError { addresses: addresses.to_vec(), source };
        TcpListener::bind(addresses).await.map(Self).map_err(failed)
    }

    /// Returns the address on which it listens.
    ///
    /// # Errors
    /// The kernel does not report it.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Serves requests until the process ends.
    pub async fn serve(self, metrics: Arc<ManagerMetrics>) {
        let mut open: VecDeque<AbortHandle> = VecDeque::new();
        loop {
            let Ok((stream, _)) = self.0.accept().await else {
                tokio::time::sleep(SHORTAGE).await;
                continue;
            };
            open.retain(|conversation| !conversation.is_finished());
            if open.len() >= MOST_CONNECTIONS
                && let Some(oldest) = open.pop_front()
            {
                oldest.abort();
            }
            let metrics = metrics.clone();
            let conversation = tokio::spawn(async move {
                if let Err(error) = serve_connection(stream, metrics).await {
                    tracing::debug!(%error, "a health request was interrupted");
                }
            });
            open.push_back(conversation.abort_handle());
        }
    }
}

async fn serve_connection(stream: TcpStream, metrics: Arc<ManagerMetrics>) -> hyper::Result<()> {
    let service = service_fn(move |request: Request<Incoming>| {
        let metrics = metrics.clone();
        async move { Ok::<_, Infallible>(answer(&request, metrics).await) }
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_DEADLINE)
        .max_buf_size(LARGEST_HEAD)
        .serve_connection(TokioIo::new(stream), service)
        .await
}

async fn answer(request: &Request<Incoming>, metrics: Arc<ManagerMetrics>) -> Response<Full<Bytes>> {
    let path = if request.method() == Method::GET { request.uri().path() } else { "" };
    match path {
        "/healthz" => text(StatusCode::OK, "ok\n"),
        "/readyz" if metrics.is_ready() => text(StatusCode::OK, "ok\n"),
        "/readyz" => {
            text(StatusCode::SERVICE_UNAVAILABLE, "no pass has completed yet, and the manager is not standing by\n")
        }
        "/metrics" => {
            let accept = request.headers().get(header::ACCEPT).and_then(|accept| accept.to_str().ok());
            metrics_response(metrics, ExpositionFormat::negotiate(accept)).await
        }
        _ => text(StatusCode::NOT_FOUND, "not found; the paths are /healthz, /readyz and /metrics\n"),
    }
}

/// Writes metrics on a blocking thread: the first response for many documents takes long, because it reads every certificate.
async fn metrics_response(metrics: Arc<ManagerMetrics>, format: ExpositionFormat) -> Response<Full<Bytes>> {
    let Ok(Ok(body)) = spawn_blocking(move || metrics.text(format)).await else {
        return text(StatusCode::INTERNAL_SERVER_ERROR, "the metrics could not be written\n");
    };
    let mut response = Response::new(Full::from(body));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(format.content_type()));
    response
}

fn text(status: StatusCode, body: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    response
}

#[cfg(test)]
mod tests {
    use keelway_api::{Documents, jiff::Timestamp};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;
    use keelway_stores::DocumentSource;

    struct Nothing;

    impl DocumentSource for Nothing {
        fn documents(&self) -> Arc<Documents> {
            Arc::default()
        }

        fn refused(&self) -> usize {
            0
        }
    }

    async fn ask(address: SocketAddr, path: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        let question = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        stream.write_all(question.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    async fn served() -> SocketAddr {
        let entrance = HealthListener::open(&["127.0.0.1:0".parse().unwrap()]).await.unwrap();
        let address = entrance.address().unwrap();
        tokio::spawn(entrance.serve(Arc::new(ManagerMetrics::new(Arc::new(Nothing), Timestamp::now()))));
        address
    }

    #[tokio::test]
    async fn an_address_in_use_is_reported() {
        let address = served().await;
        let taken = HealthListener::open(&[address]).await.unwrap_err();
        assert_eq!(taken.to_string(), format!("could not listen on {address}"));
    }

    #[tokio::test]
    async fn healthz_succeeds_before_readyz() {
        let address = served().await;

        assert!(ask(address, "/healthz").await.starts_with("HTTP/1.1 200"));
        assert!(ask(address, "/readyz").await.starts_with("HTTP/1.1 503"));
        let response = ask(address, "/metrics").await;
        assert!(response.starts_with("HTTP/1.1 200") && response.contains("text/plain; version=0.0.4"), "{response}");
        assert!(response.contains("\nkeelway_clusters{state=\"Available\"} 0.0\n"), "{response}");
        assert!(ask(address, "/secrets").await.starts_with("HTTP/1.1 404"));
    }

    #[tokio::test]
    async fn silent_clients_do_not_block_others() {
        let address = served().await;
        let mut silent = Vec::new();
        for _ in 0..MOST_CONNECTIONS * 2 {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        assert!(ask(address, "/healthz").await.starts_with("HTTP/1.1 200"));
        let ended = silent[0].read(&mut [0]).await;
        assert!(matches!(ended, Ok(0) | Err(_)), "the oldest has ended");
    }
}
