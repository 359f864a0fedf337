//! An API server of unit tests.

use std::sync::Arc;

use http::{Method, Request, Response};
use kube::client::Body;
use tower::{BoxError, service_fn};

/// Returns a client of an API server that answers with these statuses and contents. `answer` gets the method, the path with its query, and the content
/// of each request.
pub(crate) fn fake_api(answer: impl Fn(&Method, &str, &[u8]) -> (u16, String) + Send + Sync + 'static) -> kube::Client {
    let answer = Arc::new(answer);
    let respond = move |request: Request<Body>| {
        let answer = Arc::clone(&answer);
        async move {
            let (parts, content) = request.into_parts();
            let content = content.collect_bytes().await?;
            let path = parts.uri.path_and_query().map(ToString::to_string).unwrap_or_default();
            let (status, text) = answer(&parts.method, &path, &content);
            Ok::<_, BoxError>(Response::builder().status(status).body(Body::from(text.into_bytes()))?)
        }
    };
    kube::Client::new(service_fn(respond), "default")
}
