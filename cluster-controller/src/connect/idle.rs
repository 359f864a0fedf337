//! Notices that a tunnel is idle. API servers keep connections to kubelets for later requests, and a gateway that stops ends these before another request
//! is on its way.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, sleep_until};

/// How long a tunnel carries nothing until it counts as idle. A kubelet begins most responses sooner.
pub(super) const IDLE: Duration = Duration::from_secs(1);

/// The time of the last byte in either direction.
#[derive(Clone)]
pub(super) struct LastByte {
    began: Instant,
    millis: Arc<AtomicU64>,
}

impl LastByte {
    /// Waits until nothing was carried for this long.
    pub(super) async fn is_older_than(&self, pause: Duration) {
        loop {
            let end = self.began + Duration::from_millis(self.millis.load(Ordering::Relaxed)) + pause;
            if end <= Instant::now() {
                return;
            }
            sleep_until(end).await;
        }
    }

    fn is_now(&self) {
        let millis = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.millis.store(millis, Ordering::Relaxed);
    }
}

/// A stream with the time of its last byte.
pub(super) struct TimedStream<S> {
    stream: S,
    last: LastByte,
}

impl<S> TimedStream<S> {
    pub(super) fn new(stream: S) -> Self {
        Self { stream, last: LastByte { began: Instant::now(), millis: Arc::default() } }
    }

    pub(super) fn last_byte(&self) -> LastByte {
        self.last.clone()
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedStream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if read.is_ready() {
            self.last.is_now();
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        if written.is_ready() {
            self.last.is_now();
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, duplex};
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_byte_in_either_direction_counts() {
        let (mut client, near) = duplex(16);
        let mut stream = TimedStream::new(near);
        let (began, last) = (Instant::now(), stream.last_byte());
        let idle = tokio::spawn(async move { last.is_older_than(IDLE).await });
        sleep(IDLE * 3 / 4).await;
        client.write_all(&[1]).await.unwrap();
        stream.read_exact(&mut [0]).await.unwrap();
        sleep(IDLE * 3 / 4).await;
        stream.write_all(&[1]).await.unwrap();
        assert!(!idle.is_finished());
        idle.await.unwrap();
        let took = began.elapsed();
        assert!(took >= IDLE * 5 / 2 && took < IDLE * 3, "{took:?}");
    }
}
