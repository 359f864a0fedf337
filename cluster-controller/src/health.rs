//! Health and metrics, for whoever is on the machine.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::encoding::text::encode;
use prometheus_client::registry::Registry;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// How long a request's head may take.
const HEAD_DEADLINE: Duration = Duration::from_secs(5);
/// Connections at a time; more are closed.
const MOST_CONNECTIONS: usize = 32;
/// The largest head of a request, in bytes.
const LARGEST_HEAD: usize = 8192;

/// What is told about this process.
pub(crate) struct Health {
    /// All metrics.
    pub(crate) registry: Registry,
    /// Whether it does its work, or why not.
    pub(crate) readiness: Box<dyn Fn() -> Result<(), String> + Send + Sync>,
}

/// Listens where health is asked for.
pub(crate) async fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    TcpListener::bind(address).await
}

/// Answers until the process ends.
pub(crate) async fn serve(listener: TcpListener, health: Health) {
    let health = Arc::new(health);
    let room = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            // Only a shortage of descriptors or memory comes here, and that takes a moment to pass.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let Ok(place) = Arc::clone(&room).try_acquire_owned() else { continue };
        let health = Arc::clone(&health);
        tokio::spawn(async move {
            let _place = place;
            if let Err(error) = converse(stream, health).await {
                tracing::debug!(%error, "a question about health broke off");
            }
        });
    }
}

async fn converse(stream: TcpStream, health: Arc<Health>) -> hyper::Result<()> {
    let service = service_fn(move |request| {
        let health = Arc::clone(&health);
        async move { Ok::<_, Infallible>(answer(&request, &health)) }
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_DEADLINE)
        .max_buf_size(LARGEST_HEAD)
        .serve_connection(TokioIo::new(stream), service)
        .await
}

fn answer(request: &Request<Incoming>, health: &Health) -> Response<Full<Bytes>> {
    match (request.method(), request.uri().path()) {
        (&Method::GET, "/healthz") => text(StatusCode::OK, "ok\n".to_owned()),
        (&Method::GET, "/readyz") => match (health.readiness)() {
            Ok(()) => text(StatusCode::OK, "ok\n".to_owned()),
            Err(why) => text(StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
        },
        (&Method::GET, "/metrics") => metrics(&health.registry),
        _ => text(StatusCode::NOT_FOUND, "there are /healthz, /readyz and /metrics\n".to_owned()),
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
