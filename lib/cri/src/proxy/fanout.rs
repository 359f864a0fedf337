//! Distributes the events of one subscription to many subscribers. containerd blocks its own calls if a subscriber stops reading.

use std::{
    convert::Infallible,
    sync::{Mutex, MutexGuard, PoisonError},
};

use futures::{Stream, StreamExt, stream};
use http::{HeaderMap, header::CONTENT_TYPE, uri::PathAndQuery};
use http_body_util::StreamBody;
use hyper::body::Frame;
use keelway_base::error_chain::chain_text;
use prost::bytes::{Buf, BufMut, Bytes};
use tokio::sync::broadcast::{self, error::RecvError};
use tonic::{
    Request, Status, Streaming,
    body::Body,
    client,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    metadata::GRPC_CONTENT_TYPE,
    transport::Channel,
};

/// The method that subscribers call.
const ASKED: &str = "/runtime.v1.RuntimeService/GetContainerEvents";
/// How many events are queued for slow subscribers, for all of them together.
const WAITING: usize = 256;

/// The subscribers of this process. None of them blocks the subscription to the runtime. A subscriber that reads too slowly gets an error and is
/// dropped.
#[derive(Debug, Default)]
pub struct Fanout(Mutex<Option<broadcast::Sender<Bytes>>>);

/// A subscription to the runtime. When it ends, its subscribers end too, after they received the events before.
pub(crate) struct RuntimeSubscription<'a> {
    fanout: &'a Fanout,
    sender: broadcast::Sender<Bytes>,
}

impl Drop for RuntimeSubscription<'_> {
    fn drop(&mut self) {
        *self.fanout.current() = None;
    }
}

impl RuntimeSubscription<'_> {
    /// Sends an event to all subscribers without waiting for them.
    pub(crate) fn publish(&self, event: Bytes) {
        // Fails if there is no subscriber.
        let _ = self.sender.send(event);
    }
}

impl Fanout {
    fn current(&self) -> MutexGuard<'_, Option<broadcast::Sender<Bytes>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accepts subscribers from now on.
    pub(crate) fn begin(&self) -> RuntimeSubscription<'_> {
        let sender = broadcast::Sender::new(WAITING);
        *self.current() = Some(sender.clone());
        RuntimeSubscription { fanout: self, sender }
    }

    /// Answers the call of a subscriber, whose request has no fields. Queued events are shared: an event is in memory once, for any number of slow
    /// subscribers.
    pub(crate) fn answer(&self) -> Result<http::Response<Body>, Status> {
        let body = self.subscribe()?.flat_map(|event| stream::iter(frames(event).into_iter().map(Ok::<_, Infallible>)));
        let mut answer = http::Response::new(Body::new(StreamBody::new(body)));
        answer.headers_mut().insert(CONTENT_TYPE, GRPC_CONTENT_TYPE);
        Ok(answer)
    }

    fn subscribe(&self) -> Result<impl Stream<Item = Result<Bytes, Status>> + Send + use<>, Status> {
        let sender = self.current().clone();
        let receiver = sender.ok_or_else(subscription_lost)?.subscribe();
        Ok(stream::unfold(Some(receiver), async |receiver| {
            let mut receiver = receiver?;
            Some(match receiver.recv().await {
                Ok(event) => (Ok(event), Some(receiver)),
                Err(RecvError::Lagged(lost)) => (Err(too_slow(lost)), None),
                Err(RecvError::Closed) => (Err(subscription_lost()), None),
            })
        }))
    }
}

/// Returns a gRPC message, or the end of the response.
fn frames(event: Result<Bytes, Status>) -> Vec<Frame<Bytes>> {
    match event {
        Ok(event) => {
            let length = u32::try_from(event.len()).unwrap_or(u32::MAX);
            let head = [&[0], &length.to_be_bytes()[..]].concat();
            vec![Frame::data(head.into()), Frame::data(event)]
        }
        Err(why) => {
            let mut end = HeaderMap::new();
            // The message is Keelway's own, and is valid in a header.
            let _ = why.add_header(&mut end);
            vec![Frame::trailers(end)]
        }
    }
}

fn too_slow(lost: u64) -> Status {
    Status::aborted(format!(
        "{lost} events were lost because the subscriber was too slow: list again, and subscribe again"
    ))
}

fn subscription_lost() -> Status {
    Status::unavailable("the runtime's event stream ended: list again, and subscribe again")
}

/// Subscribes to the runtime's events.
pub(crate) async fn subscribe(runtime: Channel) -> Result<Streaming<Bytes>, Status> {
    let mut runtime = client::Grpc::new(runtime);
    runtime.ready().await.map_err(|error| Status::unavailable(chain_text(&error)))?;
    let path = PathAndQuery::from_static(ASKED);
    // The request has no fields.
    Ok(runtime.server_streaming(Request::new(Bytes::new()), path, AsTheyAre).await?.into_inner())
}

/// A codec that passes messages without decoding them.
#[derive(Debug, Clone, Copy)]
struct AsTheyAre;

impl Codec for AsTheyAre {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for AsTheyAre {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, into: &mut EncodeBuf<'_>) -> Result<(), Status> {
        into.put(message);
        Ok(())
    }
}

impl Decoder for AsTheyAre {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        // Copied, so that a queued message does not keep the whole receive buffer in memory.
        let mut message = vec![0; from.remaining()];
        from.copy_to_slice(&mut message);
        Ok(Some(message.into()))
    }
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;
    use tonic::Code;

    use super::*;

    fn event(number: usize) -> Bytes {
        number.to_string().into()
    }

    #[tokio::test]
    async fn every_subscriber_receives_every_event_and_a_slow_one_an_error() {
        let fanout = Fanout::default();
        let telling = fanout.begin();
        let mut slow = Box::pin(fanout.subscribe().unwrap());
        let mut quick = Box::pin(fanout.subscribe().unwrap());
        for number in 0..=WAITING {
            telling.publish(event(number));
            assert_eq!(quick.next().await.unwrap().unwrap(), event(number));
        }
        let why = slow.next().await.unwrap().unwrap_err();
        assert_eq!(why.code(), Code::Aborted);
        assert!(why.message().starts_with("1 events were lost"), "{why}");
        assert!(slow.next().await.is_none());
        let mut again = Box::pin(fanout.subscribe().unwrap());
        telling.publish(event(1));
        for subscriber in [&mut quick, &mut again] {
            assert_eq!(subscriber.next().await.unwrap().unwrap(), event(1));
        }
    }

    #[tokio::test]
    async fn it_ends_with_the_subscription_to_the_runtime() {
        let fanout = Fanout::default();
        assert_eq!(fanout.subscribe().map(drop).unwrap_err().code(), Code::Unavailable);
        let telling = fanout.begin();
        let mut subscriber = Box::pin(fanout.subscribe().unwrap());
        telling.publish(event(1));
        drop(telling);
        assert_eq!(subscriber.next().await.unwrap().unwrap(), event(1));
        assert_eq!(subscriber.next().await.unwrap().unwrap_err().code(), Code::Unavailable);
        assert!(subscriber.next().await.is_none());
        assert!(fanout.subscribe().is_err());
    }
}
