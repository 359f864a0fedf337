//! A command in a container, with streams: what CRI's `Exec` hands out an address for.
//!
//! Runtimes serve it as SPDY/3.1 and as WebSocket. SPDY it is: the runtimes' WebSocket has no word for the end of stdin, so a
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

/// The streams' protocol: the fourth one tells exit codes (`k8s.io/cri-streaming/pkg/streaming/remotecommand`).
const PROTOCOL: &str = "v4.channel.k8s.io";
/// The most of a refusal's text that is read, in bytes.
const REFUSAL: usize = 4096;

/// Why a command could not be run, or its end is not known.
#[derive(Debug, thiserror::Error)]
pub enum ExecError {
    /// The runtime gives no address to dial.
    #[error(transparent)]
    Runtime(#[from] CriError),
    /// The address of the runtime's streams is none that can be dialled.
    #[error("the runtime serves its streams at {address}, which is no plain HTTP on an IP address")]
    Address {
        /// What the runtime said.
        address: String,
    },
    /// Its streaming server speaks no HTTP.
    #[error("the runtime's streaming server gives no answer")]
    Http(#[source] hyper::Error),
    /// Its streaming server does not take the command.
    #[error("the runtime's streaming server refuses: {0}")]
    Refused(String),
    /// A stream broke, on either side.
    #[error("a stream broke")]
    Stream(#[source] io::Error),
    /// The session ended without a word about the command.
    #[error("the session with the command was cut off")]
    CutOff,
    /// The command was not started.
    #[error("{0}")]
    NotStarted(String),
}

/// A command that the runtime waits for somebody to be connected to.
#[derive(Debug, Clone)]
pub struct PreparedExec {
    uri: Uri,
    terminal: bool,
    stdin: bool,
}

impl CriRuntime {
    /// Prepares a command in a running container. It starts once [`Prepared::run`] is connected, from the machine's network.
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
            // A terminal has one stream for both.
            stderr: !terminal,
        };
        let url = self.query("Exec", id, self.runtime_service().exec(request)).await?.url;
        let malformed =
            || CriError::Malformed { operation: Operation::new("Exec", id), what: "an address that is none" };
        Ok(PreparedExec { uri: url.parse().map_err(|_| malformed())?, terminal, stdin })
    }
}

impl PreparedExec {
    /// Whom to connect to, from the machine's own network. Where the runtime is at the end of a channel, whoever answers there
    /// may have streams at another place, which this does not tell of.
    pub fn address(&self) -> Result<SocketAddr, ExecError> {
        let address = self.uri.authority().and_then(|authority| authority.as_str().parse().ok());
        // What follows the host is a token that opens the session.
        address.filter(|_| self.uri.scheme_str() == Some("http")).ok_or_else(|| self.unusable())
    }

    /// Where its streams are, as the runtime says.
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

    /// Runs the command on such a connection to its end, and returns its exit code.
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
