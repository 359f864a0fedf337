//! One `GET`, over verified TLS or on loopback.

use std::{net::SocketAddr, pin::pin, sync::Arc};

use futures::future::{Either, select};
use http::{Request, Response, StatusCode, header::HOST, response::Parts};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::{TlsConnector, client::TlsStream};

/// As much of an answer's text as is read, in bytes. Of a longer one nothing is.
const LONGEST_TEXT: usize = 4096;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum GetError {
    /// What the certificate should hold is no name.
    #[error("{name:?} is no name of a server")]
    Name {
        /// What was given.
        name: String,
    },
    /// The handshake failed.
    #[error("no connection")]
    Connect(#[source] std::io::Error),
    /// The connection ended before an answer.
    #[error("no answer")]
    Http(#[from] hyper::Error),
    /// The path is none.
    #[error("the question makes no sense")]
    Request(#[from] http::Error),
}

/// Asks for a path over a connection that stands, which ends with the answer. The server must be the one of `server_name`.
pub async fn get(
    config: Arc<ClientConfig>,
    server_name: &str,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    address: SocketAddr,
    path: &str,
) -> Result<StatusCode, GetError> {
    head(config, server_name, stream, address, path).await.map(|head| head.status)
}

/// The same, with what stands at the head of the answer.
pub async fn head(
    config: Arc<ClientConfig>,
    server_name: &str,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    address: SocketAddr,
    path: &str,
) -> Result<Parts, GetError> {
    let stream = connect(config, server_name, stream).await?;
    ask(stream, address, path, async |answer: Response<Incoming>| answer.into_parts().0).await
}

async fn connect<S: AsyncRead + AsyncWrite + Unpin>(
    config: Arc<ClientConfig>,
    server_name: &str,
    stream: S,
) -> Result<TlsStream<S>, GetError> {
    let name =
        ServerName::try_from(server_name.to_owned()).map_err(|_| GetError::Name { name: server_name.to_owned() })?;
    TlsConnector::from(config).connect(name, stream).await.map_err(GetError::Connect)
}

/// The same, with the beginning of the answer's text.
pub async fn text(
    config: Arc<ClientConfig>,
    server_name: &str,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    address: SocketAddr,
    path: &str,
) -> Result<String, GetError> {
    let stream = connect(config, server_name, stream).await?;
    let read = async |answer: Response<Incoming>| {
        let body = Limited::new(answer.into_body(), LONGEST_TEXT).collect().await;
        body.map(|body| String::from_utf8_lossy(&body.to_bytes()).into_owned()).unwrap_or_default()
    };
    ask(stream, address, path, read).await
}

/// The same without TLS, for who answers on loopback only.
pub async fn get_plain(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    address: SocketAddr,
    path: &str,
) -> Result<StatusCode, GetError> {
    ask(stream, address, path, async |answer: Response<Incoming>| answer.status()).await
}

async fn ask<T>(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    address: SocketAddr,
    path: &str,
    read: impl AsyncFnOnce(Response<Incoming>) -> T,
) -> Result<T, GetError> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let request = Request::get(path).header(HOST, address.to_string()).body(Empty::<&[u8]>::new())?;
    // Both in one task: the connection ends with the question.
    let answer = async { Ok(read(sender.send_request(request).await?).await) };
    match select(pin!(answer), pin!(connection)).await {
        Either::Left((answer, _)) => answer,
        // The answer came just before the end, or never comes.
        Either::Right((ended, answer)) => {
            ended?;
            answer.await
        }
    }
}
