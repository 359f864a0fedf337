//! TCP connections inside the VPN, for asynchronous code of any runtime.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use smoltcp::iface::SocketHandle;
use smoltcp::socket::tcp;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::end::SharedStack;
use super::stack::OpenError;
use crate::io::SystemClock;

/// How a dialer detects connections whose other side is dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamKeepalive {
    /// The interval of keepalive probes.
    pub interval: Duration,
    /// How long the other side may stay silent. Then the connection ends with an error. Writing to a connection that was silent restarts this
    /// time.
    pub dead_after: Duration,
}

impl Default for StreamKeepalive {
    fn default() -> Self {
        Self { interval: Duration::from_secs(10), dead_after: Duration::from_secs(30) }
    }
}

/// Opens and accepts connections.
#[derive(Clone)]
pub struct Dialer {
    stack: Arc<SharedStack>,
    liveness: StreamKeepalive,
}

impl Dialer {
    pub(super) fn new(stack: Arc<SharedStack>) -> Self {
        Self { stack, liveness: StreamKeepalive::default() }
    }

    /// Changes the keepalive of connections that this dialer opens.
    #[must_use]
    pub fn with_liveness(self, liveness: StreamKeepalive) -> Self {
        Self { liveness, ..self }
    }

    /// Connects to an address inside the VPN. It fails with `TimedOut` if the other side stays silent for `patience`.
    pub async fn dial(&self, to: SocketAddr, patience: Duration) -> io::Result<RelayStream> {
        // The stack counts its time from the first SYN on, which it may send before this thread runs again.
        let started = SystemClock.now();
        let handle = self.stack.lock().connect(to, patience, self.liveness.interval).map_err(open_error)?;
        self.stack.wake();
        let stream = RelayStream { stack: Arc::clone(&self.stack), handle };
        let outcome = poll_fn(|context| stream.poll_connected(context)).await;
        if outcome.is_err() && SystemClock.now().elapsed.saturating_sub(started.elapsed) >= patience {
            return Err(io::ErrorKind::TimedOut.into());
        }
        outcome?;
        stream.stack.lock().settle(stream.handle, self.liveness.dead_after);
        Ok(stream)
    }

    /// Listens on a port of this end.
    pub fn listen(&self, port: u16) -> io::Result<RelayListener> {
        self.stack.lock().listen(port).map_err(open_error)?;
        Ok(RelayListener { stack: Arc::clone(&self.stack), port })
    }
}

/// Accepts connections on one port, until it is dropped.
pub struct RelayListener {
    stack: Arc<SharedStack>,
    port: u16,
}

impl RelayListener {
    /// Waits for the next connection.
    pub async fn accept(&mut self) -> io::Result<(RelayStream, SocketAddr)> {
        poll_fn(|context| {
            let mut stack = self.stack.lock();
            let Some(handle) = stack.accept(self.port, context.waker()).map_err(open_error)? else {
                return Poll::Pending;
            };
            let remote = stack.socket(handle).remote_endpoint();
            drop(stack);
            let stream = RelayStream { stack: Arc::clone(&self.stack), handle };
            let remote = remote.ok_or(io::ErrorKind::ConnectionReset)?;
            Poll::Ready(Ok((stream, SocketAddr::new(remote.addr.into(), remote.port))))
        })
        .await
    }
}

impl Drop for RelayListener {
    fn drop(&mut self) {
        self.stack.lock().unlisten(self.port);
        self.stack.wake();
    }
}

/// A TCP connection inside the VPN.
pub struct RelayStream {
    stack: Arc<SharedStack>,
    handle: SocketHandle,
}

impl RelayStream {
    fn poll_connected(&self, context: &Context<'_>) -> Poll<io::Result<()>> {
        let mut stack = self.stack.lock();
        let socket = stack.socket(self.handle);
        if matches!(socket.state(), tcp::State::SynSent | tcp::State::SynReceived) {
            socket.register_send_waker(context.waker());
            return Poll::Pending;
        }
        if socket.state() == tcp::State::Closed {
            return Poll::Ready(Err(io::ErrorKind::ConnectionRefused.into()));
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for RelayStream {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut stack = self.stack.lock();
        let socket = stack.socket(self.handle);
        let before = socket.recv_queue();
        match socket.recv_slice(buffer.initialize_unfilled()) {
            Ok(0) if buffer.remaining() > 0 => {
                socket.register_recv_waker(context.waker());
                Poll::Pending
            }
            Ok(read) => {
                // The other side may have run out of window, so the stack must announce the free space.
                let half = socket.recv_capacity() / 2;
                let opens_window = before >= half && socket.recv_queue() < half;
                drop(stack);
                buffer.advance(read);
                if opens_window {
                    self.stack.wake();
                }
                Poll::Ready(Ok(()))
            }
            Err(tcp::RecvError::Finished) => Poll::Ready(Ok(())),
            Err(tcp::RecvError::InvalidState) => Poll::Ready(Err(io::ErrorKind::ConnectionReset.into())),
        }
    }
}

impl AsyncWrite for RelayStream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let mut stack = self.stack.lock();
        let socket = stack.socket(self.handle);
        match socket.send_slice(bytes) {
            Ok(0) if !bytes.is_empty() => {
                socket.register_send_waker(context.waker());
                Poll::Pending
            }
            Ok(written) => {
                drop(stack);
                self.stack.wake();
                Poll::Ready(Ok(written))
            }
            Err(tcp::SendError::InvalidState) => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stack.lock().socket(self.handle).close();
        self.stack.wake();
        Poll::Ready(Ok(()))
    }
}

impl Drop for RelayStream {
    fn drop(&mut self) {
        self.stack.lock().close_detached(self.handle);
        self.stack.wake();
    }
}

fn open_error(error: OpenError) -> io::Error {
    let kind = match error {
        OpenError::Closed => io::ErrorKind::NotConnected,
        OpenError::NoAddress => io::ErrorKind::AddrNotAvailable,
        OpenError::NoPort | OpenError::PortTaken => io::ErrorKind::AddrInUse,
    };
    io::Error::new(kind, error)
}
