//! One `GET`, over verified TLS or on loopback.

use std::{net::SocketAddr, pin::pin, sync::Arc};

use futures::future::{Either, select};
use http::{Request, StatusCode, header::HOST, response::Parts};
use http_body_util::Empty;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;

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
    let name =
        ServerName::try_from(server_name.to_owned()).map_err(|_| GetError::Name { name: server_name.to_owned() })?;
    let stream = TlsConnector::from(config).connect(name, stream).await.map_err(GetError::Connect)?;
    ask(stream, address, path).await
}

/// The same without TLS, for who answers on loopback only.
pub async fn get_plain(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    address: SocketAddr,
    path: &str,
) -> Result<StatusCode, GetError> {
    Ok(ask(stream, address, path).await?.status)
}

async fn ask(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    address: SocketAddr,
    path: &str,
) -> Result<Parts, GetError> {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let request = Request::get(path).header(HOST, address.to_string()).body(Empty::<&[u8]>::new())?;
    // Both in one task: the connection ends with the question.
    let answer = match select(pin!(sender.send_request(request)), pin!(connection)).await {
        Either::Left((answer, _)) => answer?,
        // The answer came just before the end, or never comes.
        Either::Right((ended, answer)) => {
            ended?;
            answer.await?
        }
    };
    Ok(answer.into_parts().0)
}
