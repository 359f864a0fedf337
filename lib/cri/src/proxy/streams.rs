//! Streams of a runtime (commands, attached terminals, forwarded ports) for clients that are not on its machine. A stream is an HTTP/1.1 request for
//! a path that the runtime issued. After the upgrade to WebSocket or SPDY, bytes are relayed unchanged.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    future::Future,
    io,
    net::SocketAddr,
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use http::{
    Request, Response, StatusCode, Uri,
    header::{CONTENT_LENGTH, HOST, TRANSFER_ENCODING},
};
use http_body_util::{BodyExt, Empty, Full, Limited};
use hyper::{
    body::{Bytes, Incoming},
    client::conn::http1,
    server,
    service::service_fn,
    upgrade,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use keelway_base::error_chain::chain_text;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{Instant, timeout},
};
use tonic::Status;

use crate::proxy::{connection::MachineConnection, splice::splice};

/// How long the runtime keeps a path that it issued.
const KEPT: Duration = Duration::from_secs(60);
/// The largest number of pending paths: as many as containerd itself keeps.
const MOST: usize = 1000;
/// How long the runtime may take to start a stream.
const ANSWER: Duration = Duration::from_secs(30);
/// How long a client may take to send the head of a request.
const HEAD: Duration = Duration::from_secs(5);
/// The largest error response, and the largest request, in bytes.
const REFUSAL: usize = 1 << 14;

type Dialling = Pin<Box<dyn Future<Output = io::Result<MachineConnection>> + Send>>;
type Dial = dyn Fn(&Uri) -> Dialling + Send + Sync;

/// Streams that a runtime issued and that no client has opened yet.
pub struct PendingStreams {
    dial: Box<Dial>,
    given: Mutex<BTreeMap<String, PendingStream>>,
}

struct PendingStream {
    url: Uri,
    until: Instant,
}

/// A stream could not be opened.
#[derive(Debug, thiserror::Error)]
enum StreamError {
    #[error("no stream waits at this path")]
    Unknown,
    #[error("cannot connect to the runtime's streaming server")]
    Dial(#[source] io::Error),
    #[error("the runtime's streaming server does not respond")]
    Http(#[from] hyper::Error),
    #[error("the runtime's streaming server did not respond within {} s", ANSWER.as_secs())]
    TimedOut,
    #[error("the request is not valid")]
    Request(#[from] http::Error),
}

impl PendingStreams {
    /// Returns an empty set. `dial` opens a connection for a URL that the runtime issued.
    pub fn new<D>(dial: impl Fn(&Uri) -> D + Send + Sync + 'static) -> Self
    where
        D: Future<Output = io::Result<MachineConnection>> + Send + 'static,
    {
        Self { dial: Box::new(move |url| Box::pin(dial(url))), given: Mutex::default() }
    }

    /// Stores a URL of the runtime, and returns the URL below `at` under which the stream is relayed.
    pub(crate) fn register(&self, url: &str, at: &str) -> Result<String, Status> {
        let parsed: Uri = url.parse().map_err(|_| Status::internal("the runtime's address is not a URL"))?;
        let path = parsed.path().to_owned();
        let now = Instant::now();
        let mut given = self.pending();
        given.retain(|_, given| given.until > now);
        if given.len() >= MOST {
            return Err(Status::resource_exhausted("too many streams wait for a client"));
        }
        let there = format!("{at}{path}");
        given.insert(path, PendingStream { url: parsed, until: now + KEPT });
        Ok(there)
    }

    /// Removes a path and returns its URL. A path can be used once.
    fn take(&self, path: &str) -> Option<Uri> {
        let given = self.pending().remove(path)?;
        (given.until > Instant::now()).then_some(given.url)
    }

    fn pending(&self) -> MutexGuard<'_, BTreeMap<String, PendingStream>> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Answers a request as the runtime does, and then relays the stream.
    pub(crate) async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        self.relay(request).await.unwrap_or_else(|error| {
            let status = if let StreamError::Unknown = error { StatusCode::NOT_FOUND } else { StatusCode::BAD_GATEWAY };
            let mut response = Response::new(Full::from(format!("{}\n", chain_text(&error))));
            *response.status_mut() = status;
            response
        })
    }

    async fn relay(&self, mut request: Request<Incoming>) -> Result<Response<Full<Bytes>>, StreamError> {
        let url = self.take(request.uri().path()).ok_or(StreamError::Unknown)?;
        let connection = (self.dial)(&url).await.map_err(StreamError::Dial)?;
        let (mut runtime, speaking) = http1::handshake(TokioIo::new(connection)).await?;
        tokio::spawn(speaking.with_upgrades());
        let ours = upgrade::on(&mut request);
        let asking = runtime.send_request(same(&request, &url)?);
        let mut answer = timeout(ANSWER, asking).await.map_err(|_| StreamError::TimedOut)??;
        if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
            let (head, body) = answer.into_parts();
            // The first line of an error response contains the cause. A response above the limit is not read.
            let body = Limited::new(body, REFUSAL).collect().await.map(http_body_util::Collected::to_bytes);
            let mut refusal = Response::new(Full::new(body.unwrap_or_default()));
            *refusal.status_mut() = head.status;
            return Ok(refusal);
        }
        let theirs = upgrade::on(&mut answer);
        let (head, _) = answer.into_parts();
        tokio::spawn(async move {
            match futures::future::try_join(ours, theirs).await {
                Ok((ours, theirs)) => splice(TokioIo::new(ours), TokioIo::new(theirs)).await,
                Err(error) => tracing::debug!(%error, "a stream ended before it began"),
            }
        });
        Ok(Response::from_parts(head, Full::default()))
    }
}

/// Serves the requests of a connection. If `may_ask` is false, refuses all of them.
pub async fn serve<S>(connection: S, streams: Arc<PendingStreams>, may_ask: bool)
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let service = service_fn(move |request| {
        let streams = Arc::clone(&streams);
        async move { Ok::<_, Infallible>(if may_ask { streams.answer(request).await } else { forbidden() }) }
    });
    let mut http = server::conn::http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD).max_buf_size(REFUSAL);
    if let Err(error) = http.serve_connection(TokioIo::new(connection), service).with_upgrades().await {
        tracing::debug!(%error, "a request for a stream failed");
    }
}

fn forbidden() -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from("an agent may not request streams\n"));
    *response.status_mut() = StatusCode::FORBIDDEN;
    response
}

/// Returns the address at which a runtime serves its streams. Only plain HTTP on an IP address is possible: the agent resolves no names, and has no
/// authority to verify another certificate.
pub fn address_of(url: &Uri) -> io::Result<SocketAddr> {
    let address = url.authority().and_then(|authority| authority.as_str().parse().ok());
    let unusable = || io::Error::other("the runtime does not serve its streams over plain HTTP on an IP address");
    address.filter(|_| url.scheme_str() == Some("http")).ok_or_else(unusable)
}

/// Returns the same request without a body. Requests that open a stream have none.
fn same(request: &Request<Incoming>, url: &Uri) -> Result<Request<Empty<Bytes>>, http::Error> {
    let path = url.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
    let mut same = Request::builder().method(request.method()).uri(path).body(Empty::new())?;
    same.headers_mut().clone_from(request.headers());
    for header in [HOST, CONTENT_LENGTH, TRANSFER_ENCODING] {
        same.headers_mut().remove(header);
    }
    let authority = url.authority().map_or("localhost", http::uri::Authority::as_str);
    same.headers_mut().insert(HOST, authority.parse()?);
    Ok(same)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_path_is_good_once_and_for_a_minute() {
        let streams = PendingStreams::new(|_| std::future::ready(Err(io::ErrorKind::Other.into())));
        let give =
            |token: &str| streams.register(&format!("http://127.0.0.1:1234/exec/{token}"), "https://10.0.0.5:7443");
        assert_eq!(give("a").unwrap(), "https://10.0.0.5:7443/exec/a");
        assert_eq!(streams.take("/exec/b"), None);
        assert_eq!(streams.take("/exec/a").unwrap(), "http://127.0.0.1:1234/exec/a");
        assert_eq!(streams.take("/exec/a"), None);
        give("a").unwrap();
        tokio::time::advance(KEPT).await;
        assert_eq!(streams.take("/exec/a"), None);
        for token in 0..MOST {
            give(&token.to_string()).unwrap();
        }
        assert!(give("more").is_err());
        tokio::time::advance(KEPT).await;
        assert!(give("more").is_ok());
        assert!(give("no address").is_err());
    }
}
