//! A small HTTP server for health and metrics, on a TCP address or a Unix socket.

use std::{collections::VecDeque, convert::Infallible, io, time::Duration};

use futures::{FutureExt, StreamExt, future::abortable, stream::FuturesUnordered};
use http::{Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{
    body::{Bytes, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use prometheus_client::{encoding::text::encode, registry::Registry};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, UnixListener},
};

/// How long a request's head may take, and how long a connection may be idle between two requests.
const HEAD_DEADLINE: Duration = Duration::from_secs(2);
/// The most concurrent connections. One more ends the oldest.
pub const MOST_CONNECTIONS: usize = 32;
/// The largest head of a request, in bytes.
const LARGEST_HEAD: usize = 8192;

/// A response with a complete body.
pub type LocalResponse = Response<Full<Bytes>>;

/// The listener of a [`serve`]d address.
#[derive(Debug)]
pub enum LocalListener {
    /// An address of loopback, or of a pod.
    Tcp(TcpListener),
    /// A Unix socket.
    Socket(UnixListener),
}

trait LocalStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> LocalStream for T {}

impl LocalListener {
    async fn accept(&self) -> io::Result<Box<dyn LocalStream>> {
        Ok(match self {
            Self::Tcp(listener) => Box::new(listener.accept().await?.0),
            Self::Socket(listener) => Box::new(listener.accept().await?.0),
        })
    }
}

/// Serves GET requests while it is polled. `answer` receives the path, which is empty for another method.
pub async fn serve(listener: LocalListener, answer: impl Fn(&str) -> LocalResponse) {
    let answer = &answer;
    let (mut conversations, mut open, mut count) = (FuturesUnordered::new(), VecDeque::new(), 0_u64);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(ended) = conversations.next() => {
                open.retain(|(id, _)| *id != ended);
                continue;
            }
        };
        let Ok(stream) = accepted else {
            // This error only means a shortage of file descriptors or memory. It takes a moment to end.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        count += 1;
        let (id, (conversation, handle)) = (count, abortable(serve_connection(stream, answer)));
        open.push_back((id, handle));
        // All programs of the machine share loopback, and all pods may connect to a pod. Idle connections must not exclude other clients.
        if open.len() > MOST_CONNECTIONS
            && let Some((_, oldest)) = open.pop_front()
        {
            oldest.abort();
        }
        conversations.push(conversation.map(move |_| id));
    }
}

async fn serve_connection(stream: Box<dyn LocalStream>, answer: &impl Fn(&str) -> LocalResponse) {
    let service = service_fn(|request: Request<Incoming>| {
        let path = if request.method() == Method::GET { request.uri().path() } else { "" };
        let answer = answer(path);
        async move { Ok::<_, Infallible>(answer) }
    });
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_DEADLINE)
        .max_buf_size(LARGEST_HEAD)
        .serve_connection(TokioIo::new(stream), service)
        .await;
    if let Err(error) = served {
        tracing::debug!(%error, "a connection of the local server failed");
    }
}

/// Returns the response of `/metrics`, in `OpenMetrics`.
#[must_use]
pub fn metrics(registry: &Registry) -> LocalResponse {
    let mut body = String::new();
    if let Err(error) = encode(&mut body, registry) {
        return text(StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n"));
    }
    let mut response = text(StatusCode::OK, body);
    let kind = header::HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// Returns a response with this text.
#[must_use]
pub fn text(status: StatusCode, body: String) -> LocalResponse {
    let mut response = Response::new(Full::from(body));
    *response.status_mut() = status;
    response
}
