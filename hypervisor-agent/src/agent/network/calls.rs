//! gRPC calls over HTTP/2.

use std::{convert::Infallible, time::Duration};

use hyper::{server::conn::http2, service::service_fn};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use keelway_cri::proxy::passthrough::StreamsUrl;
use tokio::time::timeout;
use tonic::{Status, body::Body, service::Routes};
use tower::ServiceExt;

use super::{Conversation, gate::Gate};

/// How long it may take until a response begins. It is longer than anything that the agent waits for itself, such as a disk (120 s), and longer than
/// the runtime takes to pull an image over a slow network.
const ANSWER: Duration = Duration::from_secs(900);
/// How many requests of one connection can be in progress.
const QUESTIONS: u32 = 64;
/// Flow control windows of a request and of a connection, in bytes.
const WINDOWS: [u32; 2] = [1 << 18, 1 << 20];
/// How many bytes of a response can be buffered before the agent produces no more. A message of a log is as long.
const UNREAD: usize = 1 << 14;
/// The largest HTTP/2 frame, and the largest header list, in bytes.
const FRAME: u32 = 1 << 14;

/// Serves gRPC calls on authenticated connections.
#[derive(Debug, Clone)]
pub(super) struct Calls {
    http: http2::Builder<TokioExecutor>,
    routes: Gate<Routes>,
}

impl Calls {
    /// A connection whose peer is gone ends after twice `silence`.
    pub(super) fn new(routes: Routes, silence: Duration) -> Self {
        let [question, conversation] = WINDOWS;
        let mut http = http2::Builder::new(TokioExecutor::new());
        http.timer(TokioTimer::new())
            .max_concurrent_streams(QUESTIONS)
            .initial_stream_window_size(question)
            .initial_connection_window_size(conversation)
            .max_send_buf_size(UNREAD)
            .max_frame_size(FRAME)
            .max_header_list_size(FRAME)
            .keep_alive_interval(silence)
            .keep_alive_timeout(silence);
        Self { http, routes: Gate::new(routes.prepare()) }
    }

    /// Serves requests until the connection ends.
    pub(super) async fn answer(self, conversation: Conversation) {
        let (caller, routes) = (conversation.caller().clone(), self.routes);
        let service = service_fn(move |mut request: http::Request<hyper::body::Incoming>| {
            request.extensions_mut().insert(StreamsUrl(caller.at.clone()));
            request.extensions_mut().insert(caller.clone());
            let answering = routes.clone().oneshot(request.map(Body::new));
            async move {
                let late = |_| Ok::<_, Infallible>(Status::deadline_exceeded("no response in time").into_http());
                timeout(ANSWER, answering).await.unwrap_or_else(late)
            }
        });
        if let Err(error) = self.http.serve_connection(TokioIo::new(conversation), service).await {
            tracing::debug!(%error, "a connection failed");
        }
    }
}
