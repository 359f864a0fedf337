//! Passes CRI calls on to the runtime, with messages unchanged. Only the addresses of streams are replaced, by addresses that a caller on a network
//! can reach.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use http::header::CONTENT_LENGTH;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use prost::Message;
use tonic::{Status, body::Body, server::NamedService, transport::Channel};
use tower::{Service, ServiceExt};

use crate::proxy::{fanout::Fanout, streams::PendingStreams};

/// Methods whose responses are addresses.
const STREAMED: [&str; 3] = ["Exec", "Attach", "PortForward"];
/// containerd blocks its own calls if a subscriber stops reading, so callers get no subscription of their own.
const EVENTS: &str = "GetContainerEvents";
/// The longest response that contains an address, in bytes.
const LONGEST: usize = 1 << 16;
/// The length of the prefix of a gRPC message: a compression flag and the message's length.
const HEAD: usize = 5;

/// The URL, without a path, at which the sender of a request can reach streams: an extension of the request.
#[derive(Debug, Clone)]
pub struct StreamsUrl(pub String);

/// `runtime.v1.ImageService`, or `runtime.v1.RuntimeService`.
#[derive(Clone)]
pub struct CriPassthrough<const IMAGES: bool> {
    runtime: Channel,
    streams: Arc<PendingStreams>,
    events: Option<Arc<Fanout>>,
}

impl<const IMAGES: bool> CriPassthrough<IMAGES> {
    /// Subscribers get the events that this process receives. With `None`, subscribing is refused.
    #[must_use]
    pub fn new(runtime: Channel, streams: Arc<PendingStreams>, events: Option<Arc<Fanout>>) -> Self {
        Self { runtime, streams, events }
    }
}

impl NamedService for CriPassthrough<true> {
    const NAME: &'static str = "runtime.v1.ImageService";
}

impl NamedService for CriPassthrough<false> {
    const NAME: &'static str = "runtime.v1.RuntimeService";
}

impl<const IMAGES: bool> Service<http::Request<Body>> for CriPassthrough<IMAGES> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let Self { runtime, streams, events } = self.clone();
        Box::pin(async move {
            let answered = pass(runtime, &streams, events.as_deref(), request).await;
            Ok(answered.unwrap_or_else(Status::into_http))
        })
    }
}

async fn pass(
    runtime: Channel,
    streams: &PendingStreams,
    events: Option<&Fanout>,
    request: http::Request<Body>,
) -> Result<http::Response<Body>, Status> {
    let method = request.uri().path().rsplit('/').next().unwrap_or_default();
    if method == EVENTS {
        let stalls = "the runtime stalls if a subscriber stops reading: keelway-hypervisor-agent on the machine serves its events";
        return events.ok_or_else(|| Status::unimplemented(stalls))?.answer();
    }
    // A caller on the Unix socket is on the machine, where the runtime's own addresses work.
    let at = request.extensions().get::<StreamsUrl>().filter(|_| STREAMED.contains(&method)).cloned();
    let answer = runtime.oneshot(request).await.map_err(|error| Status::unavailable(error.to_string()))?;
    match at {
        Some(at) => readdressed(answer, |url| streams.register(url, &at.0)).await,
        None => Ok(answer),
    }
}

/// The response of all three methods.
#[derive(Clone, PartialEq, prost::Message)]
struct Address {
    #[prost(string, tag = "1")]
    url: String,
}

async fn readdressed(
    answer: http::Response<Body>,
    give: impl FnOnce(&str) -> Result<String, Status>,
) -> Result<http::Response<Body>, Status> {
    let (mut head, body) = answer.into_parts();
    let whole = Limited::new(body, LONGEST).collect().await;
    let whole = whole.map_err(|error| Status::unavailable(format!("the runtime's response ended early: {error}")))?;
    let trailers = whole.trailers().cloned().map(Ok);
    let mut bytes = whole.to_bytes();
    // An error response has no message.
    if !bytes.is_empty() {
        let url = address(&bytes).ok_or_else(|| Status::internal("the runtime's response is not an address"))?.url;
        bytes = framed(&Address { url: give(&url)? });
    }
    head.headers.remove(CONTENT_LENGTH);
    let body = Full::new(bytes).with_trailers(std::future::ready(trailers));
    Ok(http::Response::from_parts(head, Body::new(body)))
}

fn address(bytes: &[u8]) -> Option<Address> {
    let (head, message) = bytes.split_first_chunk::<HEAD>()?;
    let [compressed, length @ ..] = head;
    let whole = usize::try_from(u32::from_be_bytes(*length)) == Ok(message.len());
    Address::decode(message).ok().filter(|_| whole && *compressed == 0)
}

fn framed(address: &Address) -> Bytes {
    let message = address.encode_to_vec();
    let length = u32::try_from(message.len()).unwrap_or(u32::MAX);
    [&[0], &length.to_be_bytes()[..], &message].concat().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_read_as_it_is_written() {
        let written = Address { url: "http://127.0.0.1:1/exec/a".to_owned() };
        let bytes = framed(&written);
        assert_eq!(address(&bytes), Some(written));
        assert_eq!(address(&bytes[..bytes.len() - 1]), None);
        assert_eq!(address(&bytes[..HEAD - 1]), None);
        let compressed = [&[1], &bytes[1..]].concat();
        assert_eq!(address(&compressed), None);
    }
}
