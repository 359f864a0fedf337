//! The client of CONNECT.

use http::{Method, Request, Response, StatusCode, Uri};
use http_body_util::{BodyExt as _, Empty, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1;
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::task::AbortOnDropHandle;

use super::{ConnectRefusal, RefusalReason, TunnelTarget};

/// The largest head of a response, in bytes.
const LARGEST_HEAD: usize = 8192;
/// The longest part of a refusal's text that is read, in bytes.
const LONGEST_LINE: usize = 1024;

/// The tunnel could not be opened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AskError {
    /// The server refused the request.
    #[error("{0}")]
    Refused(ConnectRefusal),
    /// The server responded with an unexpected status.
    #[error("unexpected response with status {0}")]
    Unexpected(StatusCode),
    /// The connection or the response is invalid.
    #[error("the HTTP exchange failed")]
    Exchange(#[source] hyper::Error),
    /// The target cannot be part of a request.
    #[error("cannot build a request for the target")]
    Request(#[source] http::Error),
}

/// An HTTP connection to a gateway.
pub(crate) struct GatewayConnection {
    sender: http1::SendRequest<Empty<Bytes>>,
    _driver: AbortOnDropHandle<()>,
}

impl GatewayConnection {
    async fn open(stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static) -> Result<Self, AskError> {
        let mut builder = http1::Builder::new();
        let (sender, driver) =
            builder.max_buf_size(LARGEST_HEAD).handshake(TokioIo::new(stream)).await.map_err(AskError::Exchange)?;
        let driver = tokio::spawn(async move {
            // The caller that waits for a response receives the error.
            let _ = driver.with_upgrades().await;
        });
        Ok(Self { sender, _driver: AbortOnDropHandle::new(driver) })
    }

    async fn send(&mut self, request: http::request::Builder) -> Result<Response<Incoming>, AskError> {
        self.sender.ready().await.map_err(AskError::Exchange)?;
        let request = request.body(Empty::new()).map_err(AskError::Request)?;
        self.sender.send_request(request).await.map_err(AskError::Exchange)
    }

    /// Sends a health check.
    pub(crate) async fn check(&mut self) -> Result<(), AskError> {
        let response = self.send(Request::get("/healthz").header("host", "gateway")).await?;
        let status = response.status();
        // The connection can be reused only after the body was read.
        let _ = Limited::new(response.into_body(), LONGEST_LINE).collect().await;
        if status == StatusCode::OK { Ok(()) } else { Err(AskError::Unexpected(status)) }
    }
}

/// Opens a connection for repeated health checks, and sends the first one.
pub(crate) async fn probe(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
) -> Result<GatewayConnection, AskError> {
    let mut connection = GatewayConnection::open(stream).await?;
    connection.check().await?;
    Ok(connection)
}

/// Requests a tunnel over a connection of its own.
pub(crate) async fn ask(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    target: &TunnelTarget,
) -> Result<TokioIo<Upgraded>, AskError> {
    let authority = target.to_string();
    let uri = Uri::builder().authority(authority.as_str()).build().map_err(AskError::Request)?;
    let mut connection = GatewayConnection::open(stream).await?;
    let request = Request::builder().method(Method::CONNECT).uri(uri).header("host", authority);
    let response = connection.send(request).await?;
    let status = response.status();
    if status == StatusCode::OK {
        return hyper::upgrade::on(response).await.map(TokioIo::new).map_err(AskError::Exchange);
    }
    let Some(reason) = RefusalReason::of_status(status) else { return Err(AskError::Unexpected(status)) };
    let line = Limited::new(response.into_body(), LONGEST_LINE).collect().await;
    let line = line.map(|line| String::from_utf8_lossy(&line.to_bytes()).trim().to_owned()).unwrap_or_default();
    Err(AskError::Refused(ConnectRefusal::new(reason, line)))
}
