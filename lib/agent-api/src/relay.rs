//! Relays a connection over the messages of a gRPC call, through an agent that connects from its machine's network. Both ends of the call work alike.

use std::{pin::pin, time::Duration};

use futures::{
    Stream, StreamExt,
    future::{Either, select},
};
use keelway_cri::proxy::connection::MachineConnection;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadHalf, WriteHalf, duplex, split},
    sync::mpsc::{self, Sender},
    time::timeout,
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Response, Status, Streaming};

/// The largest message, in bytes: half of what a call buffers before it is read.
pub(crate) const LONGEST: usize = 1 << 14;
/// How many messages to the call can be in flight.
pub const ON_THE_WAY: usize = 4;
/// How long one direction stays open after the other has ended, so that a peer receives the response to its last message.
const LINGER: Duration = Duration::from_secs(10);

/// Starts a call that carries a connection, and returns the local end of the connection.
pub async fn open<Q, A, F>(
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
    // Cannot fail: the channel has room for the first message.
    let _ = to_call.try_send(first);
    let answers = call(ReceiverStream::new(requests)).await?.into_inner();
    let (ours, theirs) = duplex(LONGEST);
    let from_call = answers.map(move |answer| answer.ok().map(&data));
    tokio::spawn(relay(theirs, to_call, message, from_call));
    Ok(MachineConnection::new(ours))
}

/// Relays bytes between a stream and a call until both directions have ended, or until [`LINGER`] after the first one has.
pub async fn relay<S, M>(
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
    // Returning drops a direction that is still open after that time.
    let _ = match select(sending, receiving).await {
        Either::Left(((), receiving)) => timeout(linger, receiving).await,
        Either::Right(((), sending)) => timeout(linger, sending).await,
    };
}

/// Ends with the stream, or when the call is closed.
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

/// Ends with the call, and then shuts the stream's direction down.
async fn receive<S: AsyncWrite>(mut writer: WriteHalf<S>, from: impl Stream<Item = Option<Vec<u8>>>) {
    let mut from = pin!(from);
    while let Some(Some(bytes)) = from.next().await {
        if writer.write_all(&bytes).await.is_err() {
            return;
        }
    }
    // Fails if the peer has disconnected.
    let _ = writer.shutdown().await;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns both ends of a connection with both relays between them.
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
        // The other direction stays open.
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
        // The peer reads no more.
        let written = async { while there.write_all(&[0; 64]).await.is_ok() {} };
        timeout(LINGER, written).await.unwrap();
    }
}
