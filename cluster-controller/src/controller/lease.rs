//! Which replica acts: the one that holds a Lease.
//!
//! As in client-go, clocks of machines are not compared: a Lease is free once it was seen unchanged for as long as it lasts, by the clock
//! of who waits, and its holder stops before that, counted from when it began to renew.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

use futures::StreamExt;
use http::{Method, Request, Response};
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
    client::Body,
    runtime::{WatchStreamExt, watcher},
};
use tokio::time::{sleep_until, timeout_at};
use tower::{BoxError, service_fn};

use super::{
    ControllerError,
    context::{has_code, unless_overtaken},
};

/// How long a Lease lasts for those who wait. Longer than that of Kubernetes' own controllers: nothing that is done here is missed for half a
/// minute, and a cluster whose API is slow is not made slower by replicas that begin again and again.
const LASTS: Duration = Duration::from_secs(30);
/// How long its holder acts without having renewed it: all that it writes is over by then, as far as it knows (see [`Fence::guard`]), and
/// what is left is for what is still on its way.
const ACTS: Duration = Duration::from_secs(20);
/// How often its holder renews it.
const RENEWAL: Duration = Duration::from_secs(5);
/// How soon a renewal that failed is tried again.
const AGAIN: Duration = Duration::from_millis(500);

/// Whether this replica acts now. Every effect asks first.
#[derive(Debug, Clone, Default)]
pub(crate) struct Fence(Arc<Mutex<Option<Instant>>>);

impl Fence {
    /// An error where another replica may act.
    pub(crate) fn check(&self) -> Result<(), ControllerError> {
        if self.is_held() { Ok(()) } else { Err(ControllerError::NotLeading) }
    }

    pub(crate) fn is_held(&self) -> bool {
        self.until().is_some_and(|until| Instant::now() < until)
    }

    /// A client by which nothing is written but while the Lease is held: a write that is not answered by then is given up.
    pub(crate) fn guard(&self, client: Client) -> Client {
        let namespace = client.default_namespace().to_owned();
        let fence = self.clone();
        let guarded = service_fn(move |request| fence.clone().send(client.clone(), request));
        Client::new(guarded, namespace)
    }

    async fn send(self, client: Client, request: Request<Body>) -> Result<Response<Body>, BoxError> {
        let writes = request.method() != Method::GET;
        let answer = async { Ok::<_, BoxError>(client.send(request).await?) };
        if !writes {
            return answer.await;
        }
        let Some(until) = self.until().filter(|until| Instant::now() < *until) else {
            return Err(ControllerError::NotLeading.into());
        };
        timeout_at(until.into(), answer).await.map_err(|_| ControllerError::NotLeading)?
    }

    fn until(&self) -> Option<Instant> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, until: Option<Instant>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = until;
    }
}

/// Who holds a Lease: a process, as in client-go. One that was started anew under the name of another has not done what that one began.
pub(crate) fn process(name: &str) -> String {
    format!("{name}_{:016x}", rand::random::<u64>())
}

/// A replica that wants a Lease.
pub(crate) struct Election {
    api: Api<Lease>,
    name: String,
    identity: String,
    fence: Fence,
}

/// What somebody who does not hold the Lease does about it.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// It is free.
    Take,
    /// It is another's. It is free this long after it changed.
    Await(Duration),
}

/// `was_anothers`: another one held it when it was there last. One that is deleted is free once its holder knows that it is.
fn decide(lease: Option<&Lease>, identity: &str, was_anothers: bool) -> Step {
    if lease.is_none() && was_anothers {
        return Step::Await(LASTS);
    }
    let spec = lease.and_then(|lease| lease.spec.as_ref());
    match spec.and_then(|spec| spec.holder_identity.as_deref()) {
        None | Some("") => Step::Take,
        Some(holder) if holder == identity => Step::Take,
        Some(_) => {
            let seconds = spec.and_then(|spec| spec.lease_duration_seconds).and_then(|n| u64::try_from(n).ok());
            Step::Await(seconds.map_or(LASTS, Duration::from_secs))
        }
    }
}

impl Election {
    pub(crate) fn new(client: Client, namespace: &str, name: &str, identity: &str) -> Self {
        let api = Api::namespaced(client, namespace);
        Self { api, name: name.to_owned(), identity: identity.to_owned(), fence: Fence::default() }
    }

    pub(crate) fn fence(&self) -> Fence {
        self.fence.clone()
    }

    /// Waits until this replica holds the Lease. Tells when it was seen whose it is.
    pub(crate) async fn acquire(&self, seen_once: impl Fn()) -> Result<Lease, ControllerError> {
        let mut seen = Box::pin(watcher::watch_object(self.api.clone(), &self.name).default_backoff());
        let mut current: Option<Lease> = None;
        let (mut free, mut was_anothers) = (None, false);
        loop {
            let next = match free {
                None => seen.next().await,
                Some(at) => {
                    if let Ok(next) = timeout_at(at, seen.next()).await {
                        next
                    } else {
                        free = None;
                        if let Some(lease) = self.take(current.as_ref()).await? {
                            return Ok(lease);
                        }
                        continue;
                    }
                }
            };
            match next {
                Some(Ok(lease)) => {
                    seen_once();
                    current = lease;
                }
                Some(Err(error)) => {
                    tracing::warn!(%error, "cannot watch the Lease");
                    continue;
                }
                None => return Err(ControllerError::NotLeading),
            }
            let step = decide(current.as_ref(), &self.identity, was_anothers);
            was_anothers = step != Step::Take;
            match step {
                Step::Await(rest) => free = Some((Instant::now() + rest).into()),
                Step::Take => match self.take(current.as_ref()).await? {
                    Some(lease) => return Ok(lease),
                    None => free = Some((Instant::now() + RENEWAL).into()),
                },
            }
        }
    }

    /// Writes this replica into the version that was seen; none where another one was faster.
    async fn take(&self, seen: Option<&Lease>) -> Result<Option<Lease>, ControllerError> {
        let began = Instant::now();
        let mut lease = seen.cloned().unwrap_or_else(|| Lease {
            metadata: ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() },
            spec: None,
        });
        let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
        if spec.holder_identity.as_ref() != Some(&self.identity) {
            spec.acquire_time = Some(MicroTime(Timestamp::now()));
            spec.lease_transitions = Some(spec.lease_transitions.unwrap_or_default().saturating_add(1));
        }
        spec.holder_identity = Some(self.identity.clone());
        spec.lease_duration_seconds = i32::try_from(LASTS.as_secs()).ok();
        spec.renew_time = Some(MicroTime(Timestamp::now()));
        let parameters = PostParams::default();
        let written = async {
            match seen {
                None => self.api.create(&parameters, &lease).await,
                Some(_) => self.api.replace(&self.name, &parameters, &lease).await,
            }
        };
        let taken = unless_overtaken("take the Lease", written).await?;
        if taken.is_some() {
            self.fence.set(Some(began + ACTS));
        }
        Ok(taken)
    }

    /// Renews the Lease until that fails for too long, or another replica has it.
    pub(crate) async fn keep(&self, mut held: Lease) {
        let mut next = Instant::now() + RENEWAL;
        while let Some(until) = self.fence.until() {
            if next >= until {
                sleep_until(until.into()).await;
                break;
            }
            sleep_until(next.into()).await;
            next = Instant::now() + AGAIN;
            match timeout_at(until.into(), self.take(Some(&held))).await {
                Ok(Ok(Some(lease))) => {
                    held = lease;
                    next = Instant::now() + RENEWAL;
                }
                // Somebody wrote it: whoever that is now holds it, unless it is still this replica.
                Ok(Ok(None)) => match timeout_at(until.into(), self.api.get(&self.name)).await {
                    Ok(Ok(lease)) if decide(Some(&lease), &self.identity, false) == Step::Take => held = lease,
                    // It was deleted, and whoever comes first makes it anew.
                    Ok(Err(error)) if has_code(&error, 404) => break,
                    Ok(Err(_)) => {}
                    Ok(Ok(_)) | Err(_) => break,
                },
                Ok(Err(error)) => {
                    let error = format!("{:#}", anyhow::Error::from(error));
                    tracing::warn!(error, "cannot renew the Lease");
                }
                Err(_) => break,
            }
        }
        self.fence.set(None);
    }

    /// Gives the Lease up, so that another replica need not wait.
    pub(crate) async fn release(&self) {
        self.fence.set(None);
        let Ok(mut lease) = self.api.get(&self.name).await else { return };
        if let Some(spec) = lease.spec.as_mut().filter(|spec| spec.holder_identity.as_ref() == Some(&self.identity)) {
            spec.holder_identity = Some(String::new());
            if let Err(error) = self.api.replace(&self.name, &PostParams::default(), &lease).await {
                tracing::debug!(%error, "could not give up the Lease");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held_by(holder: Option<&str>, seconds: Option<i32>) -> Lease {
        let spec = LeaseSpec {
            holder_identity: holder.map(str::to_owned),
            lease_duration_seconds: seconds,
            ..LeaseSpec::default()
        };
        Lease { spec: Some(spec), ..Lease::default() }
    }

    #[test]
    fn a_free_lease_and_one_of_our_own_are_taken() {
        assert_eq!(decide(None, "a", false), Step::Take);
        for free in [None, Some(""), Some("a")] {
            assert_eq!(decide(Some(&held_by(free, Some(15))), "a", true), Step::Take);
        }
    }

    #[test]
    fn anothers_lease_is_awaited_for_as_long_as_it_lasts() {
        assert_eq!(decide(Some(&held_by(Some("b"), Some(7))), "a", false), Step::Await(Duration::from_secs(7)));
        assert_eq!(decide(Some(&held_by(Some("b"), None)), "a", false), Step::Await(LASTS));
        assert_eq!(decide(None, "a", true), Step::Await(LASTS), "its holder does not know yet that it was deleted");
    }

    #[test]
    fn a_fence_holds_until_its_moment() {
        let fence = Fence::default();
        assert!(!fence.is_held());
        fence.set(Some(Instant::now() + LASTS));
        assert!(fence.check().is_ok());
        fence.set(Some(Instant::now()));
        assert!(matches!(fence.check(), Err(ControllerError::NotLeading)));
    }

    /// An API server that answers what is read at once, and what is written never.
    fn slow_to_write() -> Client {
        let answer = async |request: Request<Body>| {
            if request.method() != Method::GET {
                std::future::pending::<()>().await;
            }
            let lease = serde_json::to_vec(&held_by(None, None)).unwrap();
            Ok::<_, BoxError>(Response::new(Body::from(lease)))
        };
        Client::new(service_fn(answer), "default")
    }

    fn is_fenced(written: kube::Result<Lease>) -> bool {
        let Err(kube::Error::Service(error)) = written else { return false };
        matches!(error.downcast_ref(), Some(ControllerError::NotLeading))
    }

    #[tokio::test]
    async fn a_write_ends_with_the_fence() {
        let fence = Fence::default();
        let leases = Api::<Lease>::default_namespaced(fence.guard(slow_to_write()));
        let write = async || leases.create(&PostParams::default(), &held_by(Some("a"), None)).await;
        assert!(leases.get("a").await.is_ok(), "who does not hold the Lease may look");
        assert!(is_fenced(write().await), "and write nothing");

        let until = Instant::now() + AGAIN;
        fence.set(Some(until));
        assert!(is_fenced(write().await), "it is given up, though no answer came");
        assert!(Instant::now() >= until, "and not before it must be");
        assert!(leases.get("a").await.is_ok());
    }
}
