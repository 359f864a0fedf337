//! A connection for several `GET` requests.

use std::{
    net::SocketAddr,
    pin::{Pin, pin},
    sync::Arc,
};

use futures::future::{Either, select};
use http::{Request, StatusCode, header::HOST};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::client::TlsStream;

use super::{GetError, LONGEST_TEXT, connect};

type NoBody = Empty<&'static [u8]>;

/// An open connection over verified TLS. It makes progress only while a request is sent.
#[derive(Debug)]
pub struct HttpsConnection<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> {
    sender: http1::SendRequest<NoBody>,
    connection: http1::Connection<TokioIo<TlsStream<S>>, NoBody>,
    host: String,
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> HttpsConnection<S> {
    /// Opens a connection. The server must prove that its name is `server_name`.
    pub async fn open(
        config: Arc<ClientConfig>,
        server_name: &str,
        stream: S,
        address: SocketAddr,
    ) -> Result<Self, GetError> {
        let stream = connect(config, server_name, stream).await?;
        let (sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
        Ok(Self { sender, connection, host: address.to_string() })
    }

    /// Sends a `GET`. Returns the status, and the connection unless it ended.
    pub async fn get(self, path: &str) -> Result<(StatusCode, Option<Self>), GetError> {
        let Self { mut sender, mut connection, host } = self;
        let request = Request::get(path).header(HOST, &host).body(NoBody::new())?;
        let asked = async {
            let response = sender.send_request(request).await?;
            let status = response.status();
            // The next response begins after this body. A body that is too long ends the connection.
            let is_read = Limited::new(response.into_body(), LONGEST_TEXT).collect().await.is_ok();
            Ok::<_, GetError>((status, is_read))
        };
        let (status, is_read) = match select(pin!(asked), Pin::new(&mut connection)).await {
            Either::Left((answer, _)) => answer?,
            Either::Right((ended, answer)) => {
                ended?;
                (answer.await?.0, false)
            }
        };
        Ok((status, is_read.then_some(Self { sender, connection, host })))
    }
}
