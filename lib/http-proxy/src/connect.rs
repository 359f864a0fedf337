//! `CONNECT` (RFC 9110): a proxy opens a connection to a host, and then forwards bytes.

use std::{fmt, io};

use http::{
    HeaderValue, Request, StatusCode, Uri,
    header::{HOST, PROXY_AUTHORIZATION},
};
use http_body_util::Empty;
use hyper::{body::Bytes, client::conn::http1, upgrade};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio_util::task::AbortOnDropHandle;

/// The port of a proxy whose URL has none, as in Kubernetes' own programs.
const DEFAULT_PORT: u16 = 80;

/// A proxy, or what is behind it, cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum HttpProxyError {
    /// There is no connection to the proxy.
    #[error("cannot connect to the HTTP proxy {proxy}; check its address in HTTPS_PROXY, and that it runs")]
    Unreachable {
        /// The proxy.
        proxy: String,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The proxy requires other credentials (407).
    #[error(
        "the HTTP proxy {proxy} requires credentials or refuses those that are set; set them in its URL: HTTPS_PROXY=http://USER:PASSWORD@HOST:PORT"
    )]
    Credentials {
        /// The proxy.
        proxy: String,
    },
    /// The proxy has a rule against the connection.
    #[error(
        "the HTTP proxy {proxy} refuses a connection to {target} (status {status}); allow CONNECT to this address and port there, or add the address to NO_PROXY"
    )]
    Refused {
        /// The proxy.
        proxy: String,
        /// The host and port.
        target: String,
        /// The response of the proxy.
        status: StatusCode,
    },
    /// The proxy does not reach the host.
    #[error(
        "the HTTP proxy {proxy} cannot reach {target} (status {status}); if this machine can reach it directly, add the address to NO_PROXY"
    )]
    BadGateway {
        /// The proxy.
        proxy: String,
        /// The host and port.
        target: String,
        /// The response of the proxy.
        status: StatusCode,
    },
    /// The response is not one to `CONNECT`.
    #[error("the HTTP proxy {proxy} sends no valid response to CONNECT; check its port in HTTPS_PROXY")]
    Protocol {
        /// The proxy.
        proxy: String,
        /// The error of the HTTP client.
        #[source]
        source: hyper::Error,
    },
    /// The host is not valid in a request.
    #[error("cannot request a connection to {target} from the HTTP proxy {proxy}")]
    Target {
        /// The proxy.
        proxy: String,
        /// The host and port.
        target: String,
        /// Why it is not valid.
        #[source]
        source: http::Error,
    },
    /// The proxy sent bytes before the other side could.
    #[error("the HTTP proxy {proxy} sends data of its own on a connection to {target}")]
    Intrusion {
        /// The proxy.
        proxy: String,
        /// The host and port.
        target: String,
    },
}

/// An HTTP proxy. Its text has no credentials.
#[derive(Clone, PartialEq, Eq)]
pub struct HttpProxy {
    host: String,
    port: u16,
    authorization: Option<HeaderValue>,
}

impl HttpProxy {
    pub(crate) fn new(url: &Uri, authorization: Option<HeaderValue>) -> Option<Self> {
        let host = url.host().filter(|host| !host.is_empty())?.to_owned();
        Some(Self { host, port: url.port_u16().unwrap_or(DEFAULT_PORT), authorization })
    }

    /// Connects to `target` (`HOST:PORT`) through the proxy. The caller limits the time.
    pub async fn connect(&self, target: &str) -> Result<TcpStream, HttpProxyError> {
        let proxy = self.to_string();
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        let stream = TcpStream::connect((host, self.port)).await;
        let stream = stream.map_err(|source| HttpProxyError::Unreachable { proxy: proxy.clone(), source })?;
        let request = self.request(target);
        let request = request.map_err(|source| HttpProxyError::Target {
            proxy: proxy.clone(),
            target: target.to_owned(),
            source,
        })?;
        let protocol = |source| HttpProxyError::Protocol { proxy: proxy.clone(), source };
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(protocol)?;
        let _connection = AbortOnDropHandle::new(tokio::spawn(connection.with_upgrades()));
        let response = sender.send_request(request).await.map_err(protocol)?;
        if !response.status().is_success() {
            return Err(self.refusal(target, response.status()));
        }
        let upgraded = upgrade::on(response).await.map_err(protocol)?;
        let intrusion = || HttpProxyError::Intrusion { proxy: proxy.clone(), target: target.to_owned() };
        let parts = upgraded.downcast::<TokioIo<TcpStream>>().map_err(|_| intrusion())?;
        if parts.read_buf.is_empty() { Ok(parts.io.into_inner()) } else { Err(intrusion()) }
    }

    fn request(&self, target: &str) -> Result<Request<Empty<Bytes>>, http::Error> {
        let mut request = Request::connect(target).header(HOST, target);
        if let Some(authorization) = &self.authorization {
            request = request.header(PROXY_AUTHORIZATION, authorization);
        }
        request.body(Empty::new())
    }

    fn refusal(&self, target: &str, status: StatusCode) -> HttpProxyError {
        let (proxy, target) = (self.to_string(), target.to_owned());
        match status {
            StatusCode::PROXY_AUTHENTICATION_REQUIRED => HttpProxyError::Credentials { proxy },
            status if status.is_server_error() => HttpProxyError::BadGateway { proxy, target, status },
            status => HttpProxyError::Refused { proxy, target, status },
        }
    }
}

impl fmt::Display for HttpProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}:{}", self.host, self.port)
    }
}

impl fmt::Debug for HttpProxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use keelway_base::error_chain::chain_text;
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::TcpListener,
        task::JoinHandle,
    };

    use super::*;
    use crate::{HttpProxies, ProxySettings};

    const TARGET: &str = "203.0.113.7:6443";

    fn proxy(userinfo: &str, at: SocketAddr) -> HttpProxy {
        let settings = ProxySettings { https_proxy: format!("http://{userinfo}{at}"), ..ProxySettings::default() };
        HttpProxies::parse(&settings).unwrap().of_address(TARGET.parse().unwrap()).unwrap().clone()
    }

    /// A server that sends `response` to the first client. Returns the request.
    async fn server(response: &'static str) -> (SocketAddr, JoinHandle<String>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        let served = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = Vec::new();
            while !request.ends_with(b"\r\n\r\n") {
                request.push(stream.read_u8().await.unwrap());
            }
            stream.write_all(response.as_bytes()).await.unwrap();
            let mut rest = Vec::new();
            let _ = stream.read_to_end(&mut rest).await;
            String::from_utf8([request, rest].concat()).unwrap()
        });
        (at, served)
    }

    #[tokio::test]
    async fn a_connection_is_requested_with_credentials_and_then_carries_bytes() {
        for response in ["HTTP/1.1 200 OK\r\n\r\n", "HTTP/1.0 200 Connection established\r\nVia: x\r\n\r\n"] {
            let (at, served) = server(response).await;
            let mut stream = proxy("user:p%40ss@", at).connect(TARGET).await.unwrap();
            stream.write_all(b"hello").await.unwrap();
            drop(stream);
            let request = served.await.unwrap();
            assert!(request.starts_with(&format!("CONNECT {TARGET} HTTP/1.1\r\n")), "{request}");
            let basic = "Basic dXNlcjpwQHNz";
            assert!(
                request.to_ascii_lowercase().contains(&format!("proxy-authorization: {basic}").to_ascii_lowercase())
            );
            assert!(request.ends_with("\r\n\r\nhello"), "{request}");
        }
    }

    #[tokio::test]
    async fn an_error_names_the_proxy_and_a_remedy_without_credentials() {
        let table = [
            ("HTTP/1.1 407 Proxy Authentication Required\r\ncontent-length: 0\r\n\r\n", "USER:PASSWORD@"),
            ("HTTP/1.1 403 Forbidden\r\ncontent-length: 4\r\n\r\nnope", "allow CONNECT"),
            ("HTTP/1.1 502 Bad Gateway\r\nconnection: close\r\n\r\n", "cannot reach 203.0.113.7:6443"),
            ("SSH-2.0-OpenSSH_9.2\r\n", "check its port"),
            ("HTTP/1.1 200 OK\r\n\r\nhello", "data of its own"),
        ];
        for (response, expected) in table {
            let (at, served) = server(response).await;
            let error = proxy("user:hidden@", at).connect(TARGET).await.unwrap_err();
            let (text, debug) = (chain_text(&error), format!("{error:?}"));
            assert!(text.contains(&format!("http://{at}")) && text.contains(expected), "{text}");
            assert!(!text.contains("hidden") && !debug.contains("hidden"), "{text} {debug}");
            served.abort();
        }
    }

    #[tokio::test]
    async fn a_proxy_that_is_gone_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = listener.local_addr().unwrap();
        drop(listener);
        let text = chain_text(&proxy("user:hidden@", at).connect(TARGET).await.unwrap_err());
        assert!(text.contains(&format!("cannot connect to the HTTP proxy http://{at}")), "{text}");
        assert!(text.contains("Connection refused") && !text.contains("hidden"), "{text}");
    }
}
