//! `GET` requests, over verified TLS or on loopback.

mod kept;

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

pub use self::kept::HttpsConnection;

/// The largest body that is read, in bytes. A longer body is not read at all.
const LONGEST_TEXT: usize = 4096;

/// A request failed.
#[derive(Debug, thiserror::Error)]
pub enum GetError {
    /// The expected name of the server is invalid.
    #[error("{name:?} is not a valid server name")]
    Name {
        /// The name from the caller.
        name: String,
    },
    /// The TLS handshake failed.
    #[error("cannot connect")]
    Connect(#[source] std::io::Error),
    /// The HTTP exchange failed.
    #[error("no response")]
    Http(#[from] hyper::Error),
    /// The path is invalid.
    #[error("the request is not valid")]
    Request(#[from] http::Error),
}

/// Sends a `GET` over an open connection, which ends with the response, and returns the status. The server must prove that its name is `server_name`.
pub async fn get(
    config: Arc<ClientConfig>,
    server_name: &str,
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    address: SocketAddr,
    path: &str,
) -> Result<StatusCode, GetError> {
    head(config, server_name, stream, address, path).await.map(|head| head.status)
}

/// As [`get`], but returns the head of the response.
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

/// As [`get`], but returns the body of the response, if it is not too long.
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

/// As [`get`], without TLS, for servers that listen only on loopback.
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
    // Both run in one task, so that the connection ends with the request.
    let answer = async { Ok(read(sender.send_request(request).await?).await) };
    match select(pin!(answer), pin!(connection)).await {
        Either::Left((answer, _)) => answer,
        // The response arrived just before the connection ended, or never arrives.
        Either::Right((ended, answer)) => {
            ended?;
            answer.await
        }
    }
}
