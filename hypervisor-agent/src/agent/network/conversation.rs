//! A connection of somebody who may speak, for as long as that is so.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use keelway_tls::Server;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::OwnedSemaphorePermit,
};
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::server::Connected;

use crate::report::chain_text;

/// Ends, with all that is asked over it, when the other side's certificate would not be taken any more or the agent stops.
pub(in crate::agent) struct Conversation {
    stream: TlsStream<TcpStream>,
    /// None once it is over.
    going_on: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    _place: OwnedSemaphorePermit,
}

impl Conversation {
    pub(super) fn new(
        stream: TlsStream<TcpStream>,
        from: SocketAddr,
        server: Arc<Server>,
        stop: CancellationToken,
        place: OwnedSemaphorePermit,
    ) -> Self {
        let shown = stream.get_ref().1.peer_certificates().unwrap_or_default().to_vec();
        let going_on = async move {
            tokio::select! {
                why = server.refuses(&shown) => {
                    tracing::warn!(%from, why = chain_text(&why), "ended a conversation");
                }
                () = stop.cancelled() => {}
            }
        };
        Self { stream, going_on: Some(Box::pin(going_on)), _place: place }
    }

    /// The stream while it goes on. Whoever reads or writes is woken when it is over.
    fn stream(&mut self, context: &mut Context<'_>) -> io::Result<Pin<&mut TlsStream<TcpStream>>> {
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
        self.stream(context)?.poll_read(context, buffer)
    }
}

impl AsyncWrite for Conversation {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.stream(context)?.poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream(context)?.poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream(context)?.poll_shutdown(context)
    }
}

impl Connected for Conversation {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}
