//! A connection of an authenticated peer.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use keelway_base::error_chain::chain_text;
use keelway_cri::proxy::connection::MachineConnection;
use keelway_tls::TlsServer;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf},
    sync::OwnedSemaphorePermit,
    time::{Sleep, sleep},
};
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

use crate::caller::Caller;

/// The first bytes of HTTP/2 (RFC 9113, 3.4). No HTTP/1.1 request begins with them.
const HTTP2: [u8; 3] = *b"PRI";

/// A connection that ends, with all its requests, when the peer's certificate is no longer accepted or the agent stops.
pub(super) struct Conversation {
    stream: TlsStream<MachineConnection>,
    caller: Caller,
    /// The first bytes, which were read to detect the protocol, and how many of them are still to be returned to a reader.
    begin: ([u8; HTTP2.len()], usize),
    /// False for a relayed stream, which a person may stop reading.
    is_http2: bool,
    /// How long the peer may leave data over HTTP/2 unread.
    patience: Duration,
    /// The deadline for the peer to read. `None` while the peer reads.
    unread: Option<Pin<Box<Sleep>>>,
    /// Completes when the connection must end. `None` after that.
    going_on: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    _place: Option<OwnedSemaphorePermit>,
}

impl Conversation {
    pub(super) fn new(
        stream: TlsStream<MachineConnection>,
        (caller, from): (Caller, SocketAddr),
        server: Arc<TlsServer>,
        stop: CancellationToken,
        patience: Duration,
        place: Option<OwnedSemaphorePermit>,
    ) -> Self {
        let shown = stream.get_ref().1.peer_certificates().unwrap_or_default().to_vec();
        let going_on = async move {
            tokio::select! {
                why = server.refuses(&shown) => {
                    tracing::warn!(%from, why = chain_text(&why), "closed a connection");
                }
                () = stop.cancelled() => {}
            }
        };
        let begin = (HTTP2, 0);
        let going_on: Option<Pin<Box<dyn Future<Output = ()> + Send>>> = Some(Box::pin(going_on));
        Self { stream, caller, begin, is_http2: false, patience, unread: None, going_on, _place: place }
    }

    pub(super) fn caller(&self) -> &Caller {
        &self.caller
    }

    /// Waits for the first bytes, and returns whether the protocol is HTTP/2.
    pub(super) async fn is_http2(&mut self) -> io::Result<bool> {
        let mut begin = [0; HTTP2.len()];
        self.read_exact(&mut begin).await?;
        self.begin = (begin, begin.len());
        self.is_http2 = begin == HTTP2;
        Ok(self.is_http2)
    }

    /// HTTP/2 buffers what it sends even if single responses are not read. Its writes block only if the peer does not read the connection at all, and
    /// then HTTP/2 would wait for ever, even to close it.
    fn within_patience<T>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() || !self.is_http2 {
            self.unread = None;
            return written;
        }
        let patience = self.patience;
        let end = self.unread.get_or_insert_with(|| Box::pin(sleep(patience)));
        end.as_mut().poll(context).map(|()| {
            tracing::warn!("closed a connection whose peer does not read");
            Err(io::ErrorKind::TimedOut.into())
        })
    }

    /// Returns the stream while the connection may be used. The end of that wakes the reader and the writer.
    fn stream(&mut self, context: &mut Context<'_>) -> io::Result<Pin<&mut TlsStream<MachineConnection>>> {
        if self.going_on.as_mut().is_some_and(|going_on| going_on.as_mut().poll(context).is_ready()) {
            self.going_on = None;
        }
        if self.going_on.is_some() {
            Ok(Pin::new(&mut self.stream))
        } else {
            Err(io::ErrorKind::ConnectionAborted.into())
        }
    }
}

impl AsyncRead for Conversation {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let (begin, left) = self.begin;
        if left > 0 {
            let (_, rest) = begin.split_at(begin.len() - left);
            let (given, _) = rest.split_at(left.min(buffer.remaining()));
            buffer.put_slice(given);
            self.begin.1 -= given.len();
            return Poll::Ready(Ok(()));
        }
        self.stream(context)?.poll_read(context, buffer)
    }
}

impl AsyncWrite for Conversation {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = self.stream(context)?.poll_write(context, bytes);
        self.within_patience(context, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = self.stream(context)?.poll_flush(context);
        self.within_patience(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = self.stream(context)?.poll_shutdown(context);
        self.within_patience(context, shut)
    }
}
