//! Calls of CRI that an agent passes on to its runtime: looks, and commands in containers. It is the same as asking the runtime,
//! whose socket is root's just as this one. What changes pods is the keeper's alone, and events go to nobody else: containerd
//! stalls where a subscriber stops reading.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use keelway_cri::Runtime;
use tonic::{Status, body::Body, server::NamedService, transport::Channel};
use tower::{Service, ServiceExt};

const PASSED: [&str; 7] =
    ["Version", "Status", "ListPodSandbox", "PodSandboxStatus", "ListContainers", "ContainerStatus", "Exec"];

/// `runtime.v1.RuntimeService`, as far as it is passed on.
#[derive(Clone)]
pub(super) struct Passed(Channel);

impl Passed {
    pub(super) fn to(runtime: &Runtime) -> Self {
        Self(runtime.channel())
    }
}

impl NamedService for Passed {
    const NAME: &'static str = "runtime.v1.RuntimeService";
}

impl Service<http::Request<Body>> for Passed {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let channel = self.0.clone();
        Box::pin(async move {
            let method = request.uri().path().rsplit('/').next().unwrap_or_default();
            if !PASSED.contains(&method) {
                let refusal = format!("an agent does not pass {method} on to its runtime");
                return Ok(Status::unimplemented(refusal).into_http());
            }
            let answer = channel.oneshot(request).await;
            Ok(answer.unwrap_or_else(|error| Status::unavailable(error.to_string()).into_http()))
        })
    }
}
