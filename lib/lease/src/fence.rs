//! Restricts actions to the time in which the Lease is held.

use std::{
    future::poll_fn,
    pin::pin,
    sync::{Arc, Mutex, PoisonError},
    task::Poll,
};

use http::{Method, Request, Response};
use kube::{Client, client::Body};
use tokio::time::timeout_at;
use tower::{BoxError, service_fn};

use crate::moment::LeaseTime;

/// Another replica holds the Lease, or may hold it by now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the Lease is no longer held")]
pub struct NotHeld;

/// Whether this replica may act now. Check it before every effect.
#[derive(Debug, Clone, Default)]
pub struct LeaseFence(Arc<Mutex<Option<LeaseTime>>>);

impl LeaseFence {
    /// Checks that this replica may act.
    ///
    /// # Errors
    /// Another replica may act.
    pub fn check(&self) -> Result<(), NotHeld> {
        if self.is_held() { Ok(()) } else { Err(NotHeld) }
    }

    /// Returns whether this replica may act.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.until().is_some_and(|until| !until.has_passed())
    }

    /// Runs `work` while the Lease is held. Work that is not done when the Lease ends is abandoned. The clock is checked before each step, so a
    /// process that was stopped takes no further step.
    ///
    /// # Errors
    /// The Lease is not held, or was lost during the work.
    pub async fn while_held<T>(&self, work: impl Future<Output = T>) -> Result<T, NotHeld> {
        let mut work = pin!(work);
        while let Some(until) = self.until() {
            let steps = poll_fn(
                |context| {
                    if self.is_held() { work.as_mut().poll(context).map(Some) } else { Poll::Ready(None) }
                },
            );
            match timeout_at(until.timer.into(), steps).await {
                Ok(Some(done)) => return Ok(done),
                // The Lease was renewed in the meantime.
                Err(_) if self.is_held() => {}
                Ok(None) | Err(_) => break,
            }
        }
        Err(NotHeld)
    }

    /// Returns a client that sends writes only while the Lease is held. A write without a response when the Lease ends is abandoned. Reads are not
    /// restricted.
    #[must_use]
    pub fn guard(&self, client: Client) -> Client {
        let namespace = client.default_namespace().to_owned();
        let fence = self.clone();
        let guarded = service_fn(move |request| fence.clone().send(client.clone(), request));
        Client::new(guarded, namespace)
    }

    async fn send(self, client: Client, request: Request<Body>) -> Result<Response<Body>, BoxError> {
        let writes = request.method() != Method::GET;
        let answer = async { Ok::<_, BoxError>(client.send(request).await?) };
        if writes { self.while_held(answer).await? } else { answer.await }
    }

    pub(crate) fn until(&self) -> Option<LeaseTime> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set(&self, until: Option<LeaseTime>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = until;
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, time::Duration};

    use k8s_openapi::api::coordination::v1::Lease;
    use kube::{Api, api::PostParams};

    use super::*;

    const SOON: Duration = Duration::from_millis(500);

    #[test]
    fn a_fence_holds_until_its_moment() {
        let fence = LeaseFence::default();
        assert!(!fence.is_held());
        fence.set(Some(LeaseTime::now() + SOON * 60));
        assert_eq!(fence.check(), Ok(()));
        fence.set(Some(LeaseTime::now()));
        assert_eq!(fence.check(), Err(NotHeld));
    }

    #[tokio::test]
    async fn work_continues_with_each_renewal_and_ends_without() {
        let fence = LeaseFence::default();
        assert_eq!(fence.while_held(async {}).await, Err(NotHeld));
        let began = LeaseTime::now();
        fence.set(Some(began + SOON));
        let renewed = began + SOON * 2;
        let work = async {
            fence.set(Some(renewed));
            std::future::pending::<()>().await;
        };
        assert_eq!(fence.while_held(work).await, Err(NotHeld));
        assert!(renewed.has_passed());
    }

    /// A process that was stopped for too long notices it before its next step.
    #[tokio::test]
    async fn no_step_begins_after_the_lease_has_ended() {
        let fence = LeaseFence::default();
        fence.set(Some(LeaseTime::now() + SOON));
        let late = Cell::new(false);
        let work = async {
            tokio::task::yield_now().await;
            late.set(true);
        };
        let mut held = pin!(fence.while_held(work));
        let mut first = true;
        let ended = poll_fn(|context| {
            let polled = held.as_mut().poll(context);
            if std::mem::take(&mut first) {
                while fence.is_held() {
                    std::hint::spin_loop();
                }
            }
            polled
        });
        assert_eq!(ended.await, Err(NotHeld));
        assert!(!late.get());
    }

    /// An API server that responds to reads at once, and never to writes.
    fn slow_to_write() -> Client {
        let answer = async |request: Request<Body>| {
            if request.method() != Method::GET {
                std::future::pending::<()>().await;
            }
            Ok::<_, BoxError>(Response::new(Body::from(serde_json::to_vec(&Lease::default()).unwrap())))
        };
        Client::new(service_fn(answer), "default")
    }

    fn is_fenced(written: kube::Result<Lease>) -> bool {
        let Err(kube::Error::Service(error)) = written else { return false };
        error.downcast_ref() == Some(&NotHeld)
    }

    #[tokio::test]
    async fn a_write_ends_with_the_fence() {
        let fence = LeaseFence::default();
        let leases = Api::<Lease>::default_namespaced(fence.guard(slow_to_write()));
        let write = async || leases.create(&PostParams::default(), &Lease::default()).await;
        assert!(leases.get("a").await.is_ok(), "who does not hold the Lease may look");
        assert!(is_fenced(write().await), "and write nothing");

        let until = LeaseTime::now() + SOON;
        fence.set(Some(until));
        assert!(is_fenced(write().await), "it is given up, though no answer came");
        assert!(until.has_passed(), "and not before it must be");
        assert!(leases.get("a").await.is_ok());
    }
}
