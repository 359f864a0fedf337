//! Commands in a container with streams, at the address that CRI's `Exec` returns.
//!
//! Runtimes serve the streams as SPDY/3.1 and as WebSocket. This module uses SPDY: the runtimes' WebSocket cannot signal the end of stdin, so a
//! command that reads to the end would wait for ever.

mod session;
mod spdy;

use std::{io, net::SocketAddr};

use http::{Request, StatusCode, Uri, header};
use http_body_util::{BodyExt, Empty};
use hyper::body::Bytes;
use hyper_util::rt::TokioIo;
use k8s_cri::v1;
use tokio::io::{AsyncRead, AsyncWrite};

pub use session::{ExecStreams, Size};

use crate::{CriError, CriRuntime, Operation};

/// Version 4 of the stream protocol is the first that reports exit codes (`k8s.io/cri-streaming/pkg/streaming/remotecommand`).
const PROTOCOL: &str = "v4.channel.k8s.io";
/// The largest part of the text of a refusal that an error contains, in bytes.
const REFUSAL: usize = 4096;

/// The command could not be run, or its exit code is unknown.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// The call `Exec` failed, or it returned a URL that cannot be parsed.
    #[error(transparent)]
    Runtime(#[from] CriError),
    /// The URL of the runtime's streams is not plain HTTP on an IP address.
    #[error("the runtime serves its streams at {address}, which is not plain HTTP on an IP address")]
    Address {
        /// The authority of the URL that the runtime returned.
        address: String,
    },
    /// The HTTP exchange with the runtime's streaming server failed.
    #[error("the runtime's streaming server does not respond")]
    Http(#[source] hyper::Error),
    /// The streaming server refused the command. Contains the HTTP status and the body.
    #[error("the runtime's streaming server refused: {0}")]
    Refused(String),
    /// Reading or writing a stream failed, on the runtime's side or the caller's.
    #[error("a stream failed")]
    Stream(#[source] io::Error),
    /// The session ended before the runtime reported the end of the command.
    #[error("the session with the command ended early")]
    CutOff,
    /// The runtime could not start the command. Contains the runtime's message.
    #[error("{0}")]
    NotStarted(String),
}

/// A command that the runtime starts once a client connects to its streams.
#[derive(Debug, Clone)]
pub struct PreparedExec {
    uri: Uri,
    terminal: bool,
    stdin: bool,
}

impl CriRuntime {
    /// Prepares a command in a running container. The command starts once [`PreparedExec::run`] has a connection to [`PreparedExec::address`], which
    /// must be opened in the machine's network.
    pub async fn exec(
        &self,
        id: &str,
        command: &[String],
        (stdin, terminal): (bool, bool),
    ) -> Result<PreparedExec, ExecError> {
        let request = v1::ExecRequest {
            container_id: id.to_owned(),
            cmd: command.to_vec(),
            tty: terminal,
            stdin,
            stdout: true,
            // A terminal has one stream for stdout and stderr.
            stderr: !terminal,
        };
        let url = self.query("Exec", id, self.runtime_service().exec(request)).await?.url;
        let malformed = || CriError::Malformed { operation: Operation::new("Exec", id), what: "an invalid address" };
        Ok(PreparedExec { uri: url.parse().map_err(|_| malformed())?, terminal, stdin })
    }
}

impl PreparedExec {
    /// Returns the address to connect to from the machine's own network. If the runtime is behind a channel ([`CriRuntime::on_channel`]), the server
    /// at its end may serve the streams elsewhere, which this address does not show.
    pub fn address(&self) -> Result<SocketAddr, ExecError> {
        let address = self.uri.authority().and_then(|authority| authority.as_str().parse().ok());
        // The path contains a token that opens the session, so the error does not print it.
        address.filter(|_| self.uri.scheme_str() == Some("http")).ok_or_else(|| self.unusable())
    }

    /// Returns the URL of the streams, as the runtime reported it.
    #[must_use]
    pub fn uri(&self) -> &Uri {
        &self.uri
    }

    fn authority(&self) -> &str {
        self.uri.authority().map(http::uri::Authority::as_str).unwrap_or_default()
    }

    fn unusable(&self) -> ExecError {
        ExecError::Address { address: self.authority().to_owned() }
    }

    /// Runs the command over a connection to [`PreparedExec::address`] until it ends, and returns its exit code.
    pub async fn run<S, I, O, E>(self, connection: S, streams: ExecStreams<I, O, E>) -> Result<i32, ExecError>
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
        I: AsyncRead + Unpin,
        O: AsyncWrite + Unpin,
        E: AsyncWrite + Unpin,
    {
        let (mut sender, serving) =
            hyper::client::conn::http1::handshake(TokioIo::new(connection)).await.map_err(ExecError::Http)?;
        tokio::spawn(serving.with_upgrades());
        let path = self.uri.path_and_query().map_or("/", http::uri::PathAndQuery::as_str);
        let request = Request::post(path)
            .header(header::HOST, self.authority())
            .header(header::CONNECTION, "Upgrade")
            .header(header::UPGRADE, "SPDY/3.1")
            .header("X-Stream-Protocol-Version", PROTOCOL)
            .body(Empty::<Bytes>::new())
            .map_err(|_| self.unusable())?;
        let response = sender.send_request(request).await.map_err(ExecError::Http)?;
        if response.status() != StatusCode::SWITCHING_PROTOCOLS {
            let status = response.status();
            let body = response.into_body().collect().await.map(http_body_util::Collected::to_bytes);
            let body = body.unwrap_or_default();
            let text = String::from_utf8_lossy(body.get(..REFUSAL.min(body.len())).unwrap_or_default()).into_owned();
            return Err(ExecError::Refused(format!("{status} {}", text.trim())));
        }
        let upgraded = hyper::upgrade::on(response).await.map_err(ExecError::Http)?;
        session::run(TokioIo::new(upgraded), streams, (self.stdin, self.terminal)).await
    }
}
