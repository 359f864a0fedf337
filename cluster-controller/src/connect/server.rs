//! The server of CONNECT.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use http::{Method, Request, Response};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite, copy_bidirectional_with_sizes};

use super::idle::{IDLE, TimedStream};
use super::stall::{STALLED, StallGuard};
use super::{ConnectRefusal, RefusalReason, TunnelGuard, TunnelTarget};
use crate::connects::Connects;

/// How long a request's head may take, and how long a connection may be idle between two requests.
const HEAD_DEADLINE: Duration = Duration::from_secs(5);
/// The largest head of a request, in bytes.
const LARGEST_HEAD: usize = 8192;
/// The most header lines of a request.
const MOST_HEADERS: usize = 32;
/// The size of the copy buffer for each direction, in bytes.
const COPIED: usize = 16 * 1024;

/// Opens the connection behind a tunnel.
pub(crate) trait TunnelOpener: Send + Sync + 'static {
    /// The connection behind the tunnel.
    type Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static;
    /// The key of the tunnel in the registry while it is open.
    type Key: Send + Sync + 'static;

    /// Connects to `target`, or returns why it cannot, in bounded time.
    fn open(
        &self,
        target: &TunnelTarget,
    ) -> impl Future<Output = Result<OpenedTunnel<Self::Stream, Self::Key>, ConnectRefusal>> + Send;

    /// Returns the counters of requests.
    fn connects(&self) -> &Connects;
}

/// The connection behind a tunnel, and the tunnel's registration.
pub(crate) struct OpenedTunnel<S, K> {
    pub(crate) stream: S,
    pub(crate) tunnel: TunnelGuard<K>,
}

/// Serves one connection: CONNECT, and `GET /healthz` for health checks.
pub(crate) async fn serve<O: TunnelOpener>(
    connection: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    opener: Arc<O>,
) -> hyper::Result<()> {
    let answer = service_fn(move |request| {
        let opener = Arc::clone(&opener);
        async move { Ok::<_, Infallible>(answer(request, opener.as_ref()).await) }
    });
    http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_DEADLINE)
        .max_buf_size(LARGEST_HEAD)
        .max_headers(MOST_HEADERS)
        .serve_connection(TokioIo::new(connection), answer)
        .with_upgrades()
        .await
}

async fn answer<O: TunnelOpener>(request: Request<Incoming>, opener: &O) -> Response<Full<Bytes>> {
    if request.method() == Method::GET && request.uri().path() == "/healthz" {
        return Response::new(Full::from("ok\n"));
    }
    let outcome = open(&request, opener).await;
    opener.connects().count(outcome.as_ref().map(|_| ()).map_err(|refusal| refusal.reason));
    match outcome {
        Ok(way) => {
            tokio::spawn(copy_both_ways(request, way));
            Response::new(Full::default())
        }
        Err(refusal) => {
            let target = request.uri().authority().map(http::uri::Authority::as_str);
            if opener.connects().may_log() {
                tracing::info!(target, reason = refusal.reason.label(), "refused: {refusal}");
            }
            let mut response = Response::new(Full::from(format!("{refusal}\n")));
            *response.status_mut() = refusal.reason.status();
            response
        }
    }
}

async fn open<O: TunnelOpener>(
    request: &Request<Incoming>,
    opener: &O,
) -> Result<OpenedTunnel<O::Stream, O::Key>, ConnectRefusal> {
    if request.method() != Method::CONNECT {
        return Err(ConnectRefusal::new(RefusalReason::Invalid, "only the method CONNECT is supported"));
    }
    let authority = request.uri().authority().map_or("", http::uri::Authority::as_str);
    let target: TunnelTarget =
        authority.parse().map_err(|error| ConnectRefusal::new(RefusalReason::Invalid, format!("{error}")))?;
    opener.open(&target).await
}

/// Copies between the client of a request and its tunnel.
async fn copy_both_ways<S, K>(request: Request<Incoming>, way: OpenedTunnel<S, K>)
where
    S: AsyncRead + AsyncWrite + Send + Unpin,
{
    match hyper::upgrade::on(request).await {
        Ok(outside) => carry(TokioIo::new(outside), way).await,
        Err(error) => tracing::debug!(%error, "the client of a tunnel disconnected"),
    }
}

/// Copies in both directions until both sides have finished, one fails, the client does not read for long, the tunnel is reset, or it is idle while the
/// server drains. It drops both ends afterwards: a side that has not finished observes a broken connection.
async fn carry<S, K>(client: impl AsyncRead + AsyncWrite + Unpin, OpenedTunnel { stream, tunnel }: OpenedTunnel<S, K>)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let mut client = StallGuard::new(client, STALLED);
    let mut stream = TimedStream::new(stream);
    let last = stream.last_byte();
    let idle = async {
        tunnel.is_draining().await;
        last.is_older_than(IDLE).await;
    };
    tokio::select! {
        biased; // What arrived is carried before the tunnel counts as idle.
        () = tunnel.is_reset() => {}
        copied = copy_bidirectional_with_sizes(&mut client, &mut stream, COPIED, COPIED) => {
            if let Err(error) = copied {
                tracing::debug!(%error, "a tunnel failed");
            }
        }
        () = idle => {}
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};
    use tokio::time::sleep;

    use super::super::TunnelRegistry;
    use super::*;

    fn tunnel(tunnels: &Arc<TunnelRegistry<()>>) -> (DuplexStream, DuplexStream) {
        let (client, near) = duplex(64);
        let (far, worker) = duplex(64);
        tokio::spawn(carry(near, OpenedTunnel { stream: far, tunnel: tunnels.enter(()).unwrap() }));
        (client, worker)
    }

    #[tokio::test(start_paused = true)]
    async fn a_drain_ends_tunnels_once_they_are_idle() {
        let tunnels = TunnelRegistry::new(2);
        let (mut kept, _worker_of_kept) = tunnel(&tunnels);
        let (mut used, mut worker) = tunnel(&tunnels);
        sleep(IDLE * 10).await;
        assert_eq!(tunnels.len(), 2, "idle tunnels stay while the gateway runs");
        tunnels.end_idle();
        for _ in 0..4 {
            used.write_all(&[1]).await.unwrap();
            worker.read_exact(&mut [0]).await.unwrap();
            sleep(IDLE / 2).await;
        }
        assert_eq!((kept.read(&mut [0]).await.unwrap(), tunnels.len()), (0, 1));
        sleep(IDLE).await;
        assert_eq!((used.read(&mut [0]).await.unwrap(), tunnels.len()), (0, 0));
    }
}
