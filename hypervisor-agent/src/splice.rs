//! Two connections as one.

use std::{io, pin::pin, time::Duration};

use futures::future::{Either, select};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf, split},
    time::timeout,
};

/// How long one direction goes on after the other has ended. Whoever waits for an answer to its last word gets it.
const LINGER: Duration = Duration::from_secs(10);
/// What is read at a time, in bytes: twice as much as containerd reads of a command at a time, and as much as TLS takes at a time.
const PIECE: usize = 1 << 16;

/// Carries bytes both ways until both directions have ended, or one of them a while ago.
pub(crate) async fn splice(one: impl AsyncRead + AsyncWrite, other: impl AsyncRead + AsyncWrite) {
    let ((from_one, to_one), (from_other, to_other)) = (split(one), split(other));
    let there = pin!(carry(from_one, to_other));
    let back = pin!(carry(from_other, to_one));
    // What lingers for too long is cut off by the end of this. A stream that broke has nobody left to be told.
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
        // TLS may hold back what its connection had no room for.
        to.flush().await?;
    }
}
