//! Serves a fake over gRPC, on a Unix socket or on a pipe in memory.

use std::{convert::Infallible, io};

use futures::{Stream, StreamExt, channel::mpsc};
use http_body_util::BodyExt;
use k8s_cri::v1::{image_service_server::ImageServiceServer, runtime_service_server::RuntimeServiceServer};
use tokio::{
    io::{AsyncRead, AsyncWrite, DuplexStream, duplex},
    net::UnixListener,
};
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{
    body::Body,
    transport::{Error, Server, server::Connected},
};
use tower::util::MapResponseLayer;

use super::{Fake, faults::PendingSignal};
use crate::{CriRuntime, Deadlines};

/// The capacity of the pipe between client and server, in bytes.
const PIPE: usize = 64 << 10;

/// Serves a fake on a Unix socket until the future is dropped.
pub async fn serve(listener: UnixListener, fake: Fake) -> Result<(), Error> {
    serve_connections(fake, UnixListenerStream::new(listener)).await
}

pub(super) fn in_process(fake: Fake, deadlines: Deadlines) -> CriRuntime {
    let (accept, connections) = mpsc::unbounded::<DuplexStream>();
    // Ends when the client is dropped, because only the client can open connections.
    tokio::spawn(serve_connections(fake, connections.map(Ok::<_, Infallible>)));
    let dial = move || {
        let (ours, theirs) = duplex(PIPE);
        let accepted = accept.unbounded_send(theirs);
        async move { accepted.map(|()| ours).map_err(io::Error::other) }
    };
    CriRuntime::dialled_by(dial, deadlines)
}

async fn serve_connections<C, E>(fake: Fake, connections: impl Stream<Item = Result<C, E>>) -> Result<(), Error>
where
    C: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    E: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    Server::builder()
        .layer(MapResponseLayer::new(signal_after_answer))
        .add_service(RuntimeServiceServer::new(fake.clone()))
        .add_service(ImageServiceServer::new(fake))
        .serve_with_incoming(connections)
        .await
}

/// Holds a pending signal until the response's body is sent.
fn signal_after_answer(mut response: http::Response<Body>) -> http::Response<Body> {
    let Some(signal) = response.extensions_mut().remove::<PendingSignal>() else {
        return response;
    };
    response.map(|body| {
        Body::new(body.map_frame(move |frame| {
            let _held = &signal;
            frame
        }))
    })
}
