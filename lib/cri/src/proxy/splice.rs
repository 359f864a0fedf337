//! Joins two connections.

use std::{io, pin::pin, time::Duration};

use futures::future::{Either, select};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf, split},
    time::timeout,
};

/// How long one direction stays open after the other has ended, so that a peer receives the response to its last message.
const LINGER: Duration = Duration::from_secs(10);
/// How many bytes are read at once: twice as many as containerd reads from a command, and as many as TLS accepts at once.
const PIECE: usize = 1 << 16;

/// Copies bytes both ways until both directions have ended, or until [`LINGER`] after the first one has.
pub(crate) async fn splice(one: impl AsyncRead + AsyncWrite, other: impl AsyncRead + AsyncWrite) {
    let ((from_one, to_one), (from_other, to_other)) = (split(one), split(other));
    let there = pin!(carry(from_one, to_other));
    let back = pin!(carry(from_other, to_one));
    // Returning drops a direction that is still open after that time. If a stream broke, both directions end at once.
    let _ = match select(there, back).await {
        Either::Left((Ok(()), back)) => timeout(LINGER, back).await,
        Either::Right((Ok(()), there)) => timeout(LINGER, there).await,
        Either::Left((Err(_), _)) | Either::Right((Err(_), _)) => return,
    };
}

async fn carry<R: AsyncRead, W: AsyncWrite>(mut from: ReadHalf<R>, mut to: WriteHalf<W>) -> io::Result<()> {
    let mut piece = vec![0; PIECE];
    loop {
        match from.read(&mut piece).await? {
            0 => return to.shutdown().await,
            read => to.write_all(piece.get(..read).unwrap_or_default()).await?,
        }
        // TLS may hold back data that its connection had no room for.
        to.flush().await?;
    }
}
