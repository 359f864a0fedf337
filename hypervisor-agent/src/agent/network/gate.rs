//! Authorizes calls: agents of other machines may only wait for calls and accept them.

use std::{
    future::{Ready, ready},
    task::{Context, Poll},
};

use futures::future::Either;
use tonic::{Status, body::Body};
use tower::Service;

use crate::caller::{Caller, CallerRole};

const OPEN_TO_AGENTS: [&str; 2] = ["/keelway.agent.v1.Exchange/Wait", "/keelway.agent.v1.Exchange/Answer"];

/// Passes all calls of a driver, and of an agent only those to wait for calls and to accept them.
#[derive(Debug, Clone)]
pub(super) struct Gate<S>(S);

impl<S> Gate<S> {
    pub(super) fn new(inner: S) -> Self {
        Self(inner)
    }
}

impl<S> Service<http::Request<Body>> for Gate<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Either<S::Future, Ready<Result<Self::Response, Self::Error>>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let is_driver = matches!(request.extensions().get(), Some(Caller { role: CallerRole::Driver, .. }));
        if is_driver || OPEN_TO_AGENTS.contains(&request.uri().path()) {
            Either::Left(self.0.call(request))
        } else {
            let refusal = Status::permission_denied("an agent may only wait for calls here");
            Either::Right(ready(Ok(refusal.into_http())))
        }
    }
}
