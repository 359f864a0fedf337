//! A connection as messages of a call, which an agent makes from its machine's network. Both ends of the call are the same.

use std::{pin::pin, time::Duration};

use futures::{
    Stream, StreamExt,
    future::{Either, select},
};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf, duplex, split},
    sync::mpsc::{self, Sender},
    time::timeout,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Response, Status, Streaming};

use crate::connection::MachineConnection;

/// The most bytes of one message: half of what a call takes before it is read.
pub(crate) const LONGEST: usize = 1 << 14;
/// Messages on their way to the call.
pub(crate) const ON_THE_WAY: usize = 4;
/// How long one direction goes on after the other has ended. Whoever waits for an answer to its last word gets it.
const LINGER: Duration = Duration::from_secs(10);

/// Makes a call that carries a connection, of which this is one end.
pub(crate) async fn open<Q, A, F>(
    first: Q,
    message: impl Fn(Vec<u8>) -> Q + Send + 'static,
    call: impl FnOnce(ReceiverStream<Q>) -> F,
    data: impl Fn(A) -> Vec<u8> + Send + 'static,
) -> Result<MachineConnection, Status>
where
    Q: Send + 'static,
    A: Send + 'static,
    F: Future<Output = Result<Response<Streaming<A>>, Status>>,
{
    let (to_call, requests) = mpsc::channel(ON_THE_WAY);
    // There is room for the first.
    let _ = to_call.try_send(first);
    let answers = call(ReceiverStream::new(requests)).await?.into_inner();
    let (ours, theirs) = duplex(LONGEST);
    let from_call = answers.map(move |answer| answer.ok().map(&data));
    tokio::spawn(relay(theirs, to_call, message, from_call));
    Ok(MachineConnection::new(ours))
}

/// Carries bytes between a stream and a call until both directions have ended, or one of them a while ago.
pub(crate) async fn relay<S, M>(
    stream: S,
    to_call: Sender<M>,
    message: impl Fn(Vec<u8>) -> M,
    from_call: impl Stream<Item = Option<Vec<u8>>>,
) where
    S: AsyncRead + AsyncWrite,
{
    carry(stream, (to_call, message), from_call, LINGER).await;
}

async fn carry<S, M>(
    stream: S,
    (to_call, message): (Sender<M>, impl Fn(Vec<u8>) -> M),
    from_call: impl Stream<Item = Option<Vec<u8>>>,
    linger: Duration,
) where
    S: AsyncRead + AsyncWrite,
{
    let (reader, writer) = split(stream);
    let sending = pin!(send(reader, to_call, message));
    let receiving = pin!(receive(writer, from_call));
    // What lingers for too long is cut off by the end of this.
    let _ = match select(sending, receiving).await {
        Either::Left(((), receiving)) => timeout(linger, receiving).await,
        Either::Right(((), sending)) => timeout(linger, sending).await,
    };
}

/// Ends with the stream, or when nobody takes what it says.
async fn send<S: AsyncRead, M>(mut reader: ReadHalf<S>, to: Sender<M>, message: impl Fn(Vec<u8>) -> M) {
    loop {
        let mut bytes = Vec::with_capacity(LONGEST);
        let read = tokio::select! {
            read = reader.read_buf(&mut bytes) => read,
            () = to.closed() => return,
        };
        if !read.is_ok_and(|read| read > 0) || to.send(message(bytes)).await.is_err() {
            return;
        }
    }
}

/// Ends with the call, and has the stream say so.
async fn receive<S: AsyncWrite>(mut writer: WriteHalf<S>, from: impl Stream<Item = Option<Vec<u8>>>) {
    let mut from = pin!(from);
    while let Some(Some(bytes)) = from.next().await {
        if writer.write_all(&bytes).await.is_err() {
            return;
        }
    }
    // Whoever is gone needs no word of it.
    let _ = writer.shutdown().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both ends of a connection with both relays between them.
    fn connected(linger: Duration) -> (tokio::io::DuplexStream, tokio::io::DuplexStream) {
        let ((here, near), (far, there)) = (duplex(64), duplex(64));
        let ((to_far, at_far), (to_near, at_near)) = (mpsc::channel(ON_THE_WAY), mpsc::channel(ON_THE_WAY));
        tokio::spawn(carry(near, (to_far, Some), ReceiverStream::new(at_near), linger));
        tokio::spawn(carry(far, (to_near, Some), ReceiverStream::new(at_far), linger));
        (here, there)
    }

    #[tokio::test]
    async fn bytes_arrive_in_order_and_so_does_the_end() {
        let (mut here, mut there) = connected(LINGER);
        let sent: Vec<u8> = (0..100_000_u32).map(|byte| byte.to_le_bytes()[0]).collect();
        let (sending, expected) = (sent.clone(), sent.len());
        let writing = tokio::spawn(async move {
            here.write_all(&sending).await.unwrap();
            here.shutdown().await.unwrap();
            let mut answer = String::new();
            here.read_to_string(&mut answer).await.unwrap();
            answer
        });
        let mut received = Vec::with_capacity(expected);
        there.read_to_end(&mut received).await.unwrap();
        assert!(received == sent, "{} of {expected} bytes", received.len());
        // The other direction goes on.
        there.write_all(b"thanks").await.unwrap();
        drop(there);
        assert_eq!(writing.await.unwrap(), "thanks");
    }

    #[tokio::test]
    async fn one_that_is_left_by_one_side_ends_for_the_other() {
        let (here, mut there) = connected(Duration::from_millis(10));
        drop(here);
        let mut nothing = Vec::new();
        there.read_to_end(&mut nothing).await.unwrap();
        assert_eq!(nothing, b"");
        // Nobody reads any more.
        let written = async { while there.write_all(&[0; 64]).await.is_ok() {} };
        timeout(LINGER, written).await.unwrap();
    }
}
