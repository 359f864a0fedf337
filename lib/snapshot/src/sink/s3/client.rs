//! Sends signed requests.

use std::time::Duration;

use http::{Request, Response, header::ETAG};
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::{Bytes, Incoming};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use rustls::ClientConfig;
use rusty_s3::{Method, S3Action};

use crate::SinkError;

/// The time limit for one request. A part of an upload needs 35 KB/s.
const REQUEST: Duration = Duration::from_secs(240);
/// How long a signed URL is valid. It is used at once.
const SIGNED: Duration = Duration::from_secs(300);
/// The largest response. A list has at most a thousand keys.
const RESPONSE: usize = 4 * 1024 * 1024;

/// An HTTPS client.
pub(super) struct S3Client {
    client: Client<HttpsConnector<HttpConnector>, Full<Bytes>>,
}

/// A successful response.
pub(super) struct S3Response {
    operation: &'static str,
    pub(super) entity_tag: Option<String>,
    pub(super) body: Bytes,
}

impl S3Response {
    pub(super) fn text(&self) -> Result<String, SinkError> {
        String::from_utf8(self.body.to_vec()).map_err(|_| SinkError::Response { operation: self.operation })
    }
}

impl S3Client {
    pub(super) fn new(tls: ClientConfig) -> Self {
        let connector = HttpsConnectorBuilder::new().with_tls_config(tls).https_only().enable_http1().build();
        Self { client: Client::builder(TokioExecutor::new()).build(connector) }
    }

    /// Sends one request.
    pub(super) async fn send<'a, A: S3Action<'a>>(
        &self,
        operation: &'static str,
        action: &A,
        content: Bytes,
    ) -> Result<S3Response, SinkError> {
        let url = action.sign(SIGNED);
        let request = Request::builder().method(method(A::METHOD)).uri(url.as_str()).body(Full::new(content));
        let request = request.map_err(|_| SinkError::Settings("the endpoint is not the URL of a server"))?;
        let late = |_| SinkError::TimedOut { operation, seconds: REQUEST.as_secs() };
        tokio::time::timeout(REQUEST, self.response(operation, request)).await.map_err(late)?
    }

    /// Sends one request without content, and passes the body of the response to `each`, part by part.
    pub(super) async fn download<'a, A: S3Action<'a>>(
        &self,
        operation: &'static str,
        action: &A,
        mut each: impl FnMut(&[u8]) -> Result<(), SinkError> + Send,
    ) -> Result<(), SinkError> {
        let url = action.sign(SIGNED);
        let request = Request::builder().method(method(A::METHOD)).uri(url.as_str()).body(Full::new(Bytes::new()));
        let request = request.map_err(|_| SinkError::Settings("the endpoint is not the URL of a server"))?;
        let late = |_| SinkError::TimedOut { operation, seconds: REQUEST.as_secs() };
        let response = tokio::time::timeout(REQUEST, self.client.request(request)).await.map_err(late)?;
        let response = response.map_err(|cause| SinkError::Connect { operation, cause: cause.into() })?;
        if !response.status().is_success() {
            return Err(complete(operation, response).await.err().unwrap_or(SinkError::Response { operation }));
        }
        let mut body = response.into_body();
        // The limit is for each part: a database of 8 GiB can take an hour.
        while let Some(frame) = tokio::time::timeout(REQUEST, body.frame()).await.map_err(late)? {
            let frame = frame.map_err(|cause| SinkError::Connect { operation, cause: cause.into() })?;
            if let Some(part) = frame.data_ref() {
                each(part)?;
            }
        }
        Ok(())
    }

    async fn response(&self, operation: &'static str, request: Request<Full<Bytes>>) -> Result<S3Response, SinkError> {
        let response = self.client.request(request).await;
        let response = response.map_err(|cause| SinkError::Connect { operation, cause: cause.into() })?;
        complete(operation, response).await
    }
}

/// Reads a response of limited size.
async fn complete(operation: &'static str, response: Response<Incoming>) -> Result<S3Response, SinkError> {
    let (head, body) = response.into_parts();
    let body = Limited::new(body, RESPONSE).collect().await;
    let body = body.map_err(|cause| SinkError::Connect { operation, cause })?.to_bytes();
    if !head.status.is_success() {
        let code = error_code(&body).unwrap_or_default();
        return Err(SinkError::Refused { operation, status: head.status.as_u16(), code });
    }
    let entity_tag = head.headers.get(ETAG).and_then(|tag| tag.to_str().ok()).map(str::to_owned);
    Ok(S3Response { operation, entity_tag, body })
}

fn method(method: Method) -> http::Method {
    match method {
        Method::Head => http::Method::HEAD,
        Method::Get => http::Method::GET,
        Method::Post => http::Method::POST,
        Method::Put => http::Method::PUT,
        Method::Delete => http::Method::DELETE,
    }
}

/// Returns the code of an error's XML document. The message beside it can quote the request, so it is left out.
fn error_code(body: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(body).ok()?;
    let (_, code) = text.split_once("<Code>")?;
    let code = code.split_once("</Code>")?.0;
    let is_code = code.len() < 64 && code.bytes().all(|byte| byte.is_ascii_alphanumeric());
    is_code.then(|| code.to_owned())
}
