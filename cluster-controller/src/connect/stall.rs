//! Ends tunnels whose client does not read. A client that stalls holds buffers and a place among the open tunnels.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};

/// How long a client may not read while data waits for it.
pub(super) const STALLED: Duration = Duration::from_secs(15 * 60);

/// A stream whose writes fail with `TimedOut` once the other side has not read for this long.
pub(super) struct StallGuard<S> {
    stream: S,
    patience: Duration,
    /// Runs while a write waits.
    deadline: Option<Pin<Box<Sleep>>>,
}

impl<S> StallGuard<S> {
    pub(super) fn new(stream: S, patience: Duration) -> Self {
        Self { stream, patience, deadline: None }
    }

    /// Returns the result of a write, or the error of the deadline while it waits.
    fn bounded<T>(&mut self, context: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.deadline = None;
            return written;
        }
        let patience = self.patience;
        let deadline = self.deadline.get_or_insert_with(|| Box::pin(sleep(patience)));
        match deadline.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for StallGuard<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for StallGuard<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.bounded(context, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.bounded(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = Pin::new(&mut self.stream).poll_shutdown(context);
        self.bounded(context, ended)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional, duplex};
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_is_ended_and_one_that_reads_slowly_is_not() {
        let (client, near) = duplex(16);
        let (far, mut worker) = duplex(16);
        let began = Instant::now();
        let copied = tokio::spawn(async move {
            let (mut near, mut far) = (StallGuard::new(near, STALLED), far);
            copy_bidirectional(&mut near, &mut far).await
        });
        let writes = tokio::spawn(async move { while worker.write_all(&[0; 64]).await.is_ok() {} });
        let mut client = client;
        // Each read makes room for a write, before the deadline.
        for _ in 0..4 {
            sleep(STALLED * 9 / 10).await;
            client.read_exact(&mut [0; 16]).await.unwrap();
        }
        let error = copied.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        let took = began.elapsed();
        assert!(took >= STALLED * 4 && took < STALLED * 6, "{took:?}");
        writes.await.unwrap();
        drop(client);
    }
}
