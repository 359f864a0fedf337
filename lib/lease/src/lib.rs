//! Decides which of several replicas acts: the one that holds a Lease.
//!
//! As in client-go, clocks of machines are not compared. A Lease is free when a waiting replica has observed it unchanged for its duration, by
//! that replica's own clock. The holder stops acting earlier, counted from when it began its last renewal.

mod fence;
mod moment;

pub use fence::{LeaseFence, NotHeld};

use std::{
    thread,
    time::{Duration, Instant},
};

use futures::StreamExt;
use k8s_openapi::{
    api::coordination::v1::{Lease, LeaseSpec},
    apimachinery::pkg::apis::meta::v1::MicroTime,
    jiff::Timestamp,
};
use keelway_base::error_chain::chain_text;
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
    runtime::{WatchStreamExt, watcher},
};
use moment::LeaseTime;
use tokio::{
    sync::oneshot,
    time::{sleep_until, timeout_at},
};

/// How often a write is retried after a conflict. Only renewals of the same replica conflict with a write.
const TRIES: usize = 8;

/// The duration of a Lease, and how its holder uses it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseTimes {
    /// The duration for waiting replicas.
    pub duration: Duration,
    /// The holder stops acting this long after it began its last renewal, as far as it controls (see [`LeaseFence`]). The rest of the duration
    /// covers requests still in flight.
    pub holder_deadline: Duration,
    /// How often the holder renews it.
    pub renewal: Duration,
    /// How soon a failed renewal is retried.
    pub again: Duration,
}

/// An error of a Lease.
#[derive(Debug, thiserror::Error)]
pub enum LeaseError {
    /// The API server did not return the Lease.
    #[error("cannot read the Lease")]
    Read(#[source] Box<kube::Error>),
    /// The API server did not write the Lease.
    #[error("cannot write the Lease")]
    Write(#[source] Box<kube::Error>),
    /// The watch of the Lease has ended.
    #[error("the watch of the Lease ended")]
    Unwatched,
    /// The thread that renews the Lease cannot start.
    #[error("cannot start the thread that renews the Lease")]
    Thread(#[source] std::io::Error),
    /// The thread that renews the Lease has no client.
    #[error("cannot create the client that renews the Lease")]
    Connect(#[source] Box<kube::Error>),
    /// Another replica holds the Lease, or may hold it by now.
    #[error(transparent)]
    NotHeld(#[from] NotHeld),
}

/// Returns the holder identity of a process, as in client-go. It is unique: a process that restarts under the same name has not done what the
/// earlier process began.
#[must_use]
pub fn process(name: &str) -> String {
    format!("{name}_{:016x}", rand::random::<u64>())
}

/// A replica that competes for a Lease.
pub struct Election {
    api: Api<Lease>,
    namespace: String,
    name: String,
    identity: String,
    times: LeaseTimes,
    fence: LeaseFence,
}

/// The next step of a replica that does not hold the Lease.
#[derive(Debug, PartialEq, Eq)]
enum CandidateStep {
    /// The Lease is free.
    Take,
    /// Another replica holds the Lease. It is free this long after its last change.
    Await(Duration),
}

impl Election {
    /// Competes for the Lease of this name in a namespace, with this holder identity.
    #[must_use]
    pub fn new(client: Client, (namespace, name): (&str, &str), identity: &str, times: LeaseTimes) -> Self {
        let fence = LeaseFence::default();
        Self::with_fence(client, (namespace, name), (identity, times), fence)
    }

    fn with_fence(
        client: Client,
        (namespace, name): (&str, &str),
        (identity, times): (&str, LeaseTimes),
        fence: LeaseFence,
    ) -> Self {
        let api = Api::namespaced(client, namespace);
        let [namespace, name, identity] = [namespace, name, identity].map(str::to_owned);
        Self { api, namespace, name, identity, times, fence }
    }

    /// Returns the fence of everything that only the holder may do.
    #[must_use]
    pub fn fence(&self) -> LeaseFence {
        self.fence.clone()
    }

    /// Waits until this replica holds the Lease, and returns it. Calls `seen_once` whenever the Lease, or its absence, was observed.
    ///
    /// # Errors
    /// The Lease cannot be written, or its watch has ended.
    pub async fn acquire(&self, seen_once: impl Fn()) -> Result<Lease, LeaseError> {
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
                None => return Err(LeaseError::Unwatched),
            }
            let step = self.decide(current.as_ref(), was_anothers);
            was_anothers = step != CandidateStep::Take;
            match step {
                CandidateStep::Await(rest) => free = Some((Instant::now() + rest).into()),
                CandidateStep::Take => match self.take(current.as_ref()).await? {
                    Some(lease) => return Ok(lease),
                    None => free = Some((Instant::now() + self.times.renewal).into()),
                },
            }
        }
    }

    /// `was_anothers`: another replica held the Lease when it was last observed. If that Lease was deleted, its holder may not know it yet.
    fn decide(&self, lease: Option<&Lease>, was_anothers: bool) -> CandidateStep {
        if lease.is_none() && was_anothers {
            return CandidateStep::Await(self.times.duration);
        }
        let spec = lease.and_then(|lease| lease.spec.as_ref());
        match spec.and_then(|spec| spec.holder_identity.as_deref()) {
            None | Some("") => CandidateStep::Take,
            Some(holder) if holder == self.identity => CandidateStep::Take,
            Some(_) => {
                let seconds = spec.and_then(|spec| spec.lease_duration_seconds).and_then(|n| u64::try_from(n).ok());
                CandidateStep::Await(seconds.map_or(self.times.duration, Duration::from_secs))
            }
        }
    }

    /// Writes this replica as the holder into the observed version. Returns None if the Lease has changed since.
    async fn take(&self, seen: Option<&Lease>) -> Result<Option<Lease>, LeaseError> {
        let began = LeaseTime::now();
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
        spec.lease_duration_seconds = i32::try_from(self.times.duration.as_secs()).ok();
        spec.renew_time = Some(MicroTime(Timestamp::now()));
        let parameters = PostParams::default();
        let written = match seen {
            None => self.api.create(&parameters, &lease).await,
            Some(_) => self.api.replace(&self.name, &parameters, &lease).await,
        };
        match written {
            Ok(lease) => {
                self.fence.set(Some(began + self.times.holder_deadline));
                Ok(Some(lease))
            }
            // The Lease is deleted or has another version by now, which the watch reports.
            Err(error) if has_code(&error, 404) || has_code(&error, 409) => Ok(None),
            Err(error) => Err(LeaseError::Write(Box::new(error))),
        }
    }

    /// Renews the Lease until renewals fail for too long or another replica holds it.
    pub async fn renew_until_lost(&self, mut held: Lease) {
        let LeaseTimes { renewal, again, .. } = self.times;
        let mut next = Instant::now() + renewal;
        while let Some(until) = self.fence.until() {
            if next >= until.timer {
                sleep_until(until.timer.into()).await;
                break;
            }
            sleep_until(next.into()).await;
            next = Instant::now() + again;
            // The machine was suspended for longer than the deadline.
            if until.has_passed() {
                break;
            }
            match timeout_at(until.timer.into(), self.take(Some(&held))).await {
                Ok(Ok(Some(lease))) => {
                    held = lease;
                    next = Instant::now() + renewal;
                }
                // The Lease was written by another client. Its holder is now the one in it, which may still be this replica.
                Ok(Ok(None)) => match timeout_at(until.timer.into(), self.api.get(&self.name)).await {
                    Ok(Ok(lease)) if self.decide(Some(&lease), false) == CandidateStep::Take => held = lease,
                    // The Lease was deleted, and the first replica to create it holds it.
                    Ok(Err(error)) if has_code(&error, 404) => break,
                    Ok(Err(_)) => {}
                    Ok(Ok(_)) | Err(_) => break,
                },
                Ok(Err(error)) => {
                    let error = chain_text(&error);
                    tracing::warn!(error, "cannot renew the Lease");
                }
                Err(_) => break,
            }
        }
        self.fence.set(None);
    }

    /// Like [`Self::renew_until_lost`], on a thread of its own, so that work that keeps all threads of the caller busy for longer than the duration
    /// does not lose the Lease. Calls `connect` on that thread, because connections belong to the thread that made them.
    ///
    /// # Errors
    /// The thread cannot start, or has no client.
    pub async fn renew_on_own_thread(
        &self,
        held: Lease,
        connect: impl FnOnce() -> kube::Result<Client> + Send + 'static,
    ) -> Result<(), LeaseError> {
        let (mut ended, end) = oneshot::channel();
        let [namespace, name, identity] = [&self.namespace, &self.name, &self.identity].map(String::clone);
        let (times, fence) = (self.times, self.fence.clone());
        let keep = async move || {
            let client = connect().map_err(|error| LeaseError::Connect(Box::new(error)))?;
            Self::with_fence(client, (&namespace, &name), (&identity, times), fence).renew_until_lost(held).await;
            Ok(())
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(LeaseError::Thread)?;
        let renew = move || {
            runtime.block_on(async {
                let kept = tokio::select! {
                    kept = keep() => kept,
                    // The caller dropped the future.
                    () = ended.closed() => return,
                };
                let _ = ended.send(kept);
            });
        };
        thread::Builder::new().name("lease".to_owned()).spawn(renew).map_err(LeaseError::Thread)?;
        end.await.unwrap_or(Err(NotHeld.into()))
    }

    /// Writes an annotation into the Lease that this replica holds, for later holders.
    ///
    /// # Errors
    /// Another replica holds the Lease, or it cannot be read or written.
    pub async fn note(&self, annotation: &str, value: &str) -> Result<(), LeaseError> {
        for _ in 0..TRIES {
            let mut lease = self.api.get(&self.name).await.map_err(|error| LeaseError::Read(Box::new(error)))?;
            if !self.holds(&lease) || !self.fence.is_held() {
                return Err(NotHeld.into());
            }
            let annotations = lease.metadata.annotations.get_or_insert_default();
            annotations.insert(annotation.to_owned(), value.to_owned());
            if self.take(Some(&lease)).await?.is_some() {
                return Ok(());
            }
        }
        Err(NotHeld.into())
    }

    /// Returns an annotation that this replica or an earlier holder wrote into the Lease.
    ///
    /// # Errors
    /// The Lease cannot be read.
    pub async fn annotation(&self, annotation: &str) -> Result<Option<String>, LeaseError> {
        let mut lease = self.api.get(&self.name).await.map_err(|error| LeaseError::Read(Box::new(error)))?;
        Ok(lease.metadata.annotations.as_mut().and_then(|noted| noted.remove(annotation)))
    }

    /// Releases the Lease, so that another replica does not have to wait for its end.
    pub async fn release(&self) {
        self.fence.set(None);
        for _ in 0..TRIES {
            let Ok(mut lease) = self.api.get(&self.name).await else { return };
            let held = self.holds(&lease);
            let Some(spec) = lease.spec.as_mut().filter(|_| held) else { return };
            spec.holder_identity = Some(String::new());
            match self.api.replace(&self.name, &PostParams::default(), &lease).await {
                // A renewal was still in flight.
                Err(error) if has_code(&error, 409) => {}
                Err(error) => return tracing::debug!(%error, "cannot release the Lease"),
                Ok(_) => return,
            }
        }
    }

    fn holds(&self, lease: &Lease) -> bool {
        lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_ref()) == Some(&self.identity)
    }
}

/// Whether the API server returned this status code.
fn has_code(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    };

    use kube::client::Body;
    use tower::service_fn;

    use super::*;

    const LASTS: Duration = Duration::from_secs(30);

    fn held_by(holder: Option<&str>, seconds: Option<i32>) -> Lease {
        let spec = LeaseSpec {
            holder_identity: holder.map(str::to_owned),
            lease_duration_seconds: seconds,
            ..LeaseSpec::default()
        };
        Lease { spec: Some(spec), ..Lease::default() }
    }

    fn decide(lease: Option<&Lease>, was_anothers: bool) -> CandidateStep {
        let nowhere = service_fn(|_: http::Request<Body>| {
            std::future::pending::<Result<http::Response<Body>, std::convert::Infallible>>()
        });
        let second = Duration::from_secs(1);
        let times = LeaseTimes { duration: LASTS, holder_deadline: second * 20, renewal: second * 5, again: second };
        let election = Election::new(Client::new(nowhere, "default"), ("default", "a"), "a", times);
        election.decide(lease, was_anothers)
    }

    /// An API server that accepts every write of a Lease and counts them.
    fn counting(writes: &Arc<AtomicUsize>) -> Client {
        let writes = writes.clone();
        let answer = move |request: http::Request<Body>| {
            let writes = writes.clone();
            async move {
                let lease = request.into_body().collect_bytes().await?;
                writes.fetch_add(1, Ordering::Relaxed);
                Ok::<_, tower::BoxError>(http::Response::new(Body::from(lease)))
            }
        };
        Client::new(service_fn(answer), "default")
    }

    /// This happens while documents are read for longer than the duration of the Lease.
    #[tokio::test]
    async fn a_lease_is_renewed_while_its_holder_keeps_its_own_threads_busy() {
        let writes = Arc::new(AtomicUsize::new(0));
        let times = LeaseTimes {
            renewal: Duration::from_millis(1),
            again: Duration::from_millis(1),
            holder_deadline: LASTS / 2,
            duration: LASTS,
        };
        let election = Election::new(counting(&writes), ("default", "a"), "a", times);
        let held = election.take(None).await.unwrap().unwrap();
        let first = election.fence.until().unwrap();
        let apart = writes.clone();
        let busy = async {
            // From here on, nothing else is polled on this thread.
            while writes.load(Ordering::Relaxed) < 10 && election.fence.is_held() {
                thread::yield_now();
            }
        };
        tokio::select! {
            biased;
            kept = election.renew_on_own_thread(held, move || Ok(counting(&apart))) => panic!("it is kept no longer: {kept:?}"),
            () = busy => {}
        }
        assert!(writes.load(Ordering::Relaxed) >= 10, "it is renewed meanwhile");
        assert!(election.fence.is_held() && election.fence.until().is_some_and(|until| until.timer > first.timer));
    }

    #[tokio::test]
    async fn without_a_client_no_lease_is_kept() {
        let election = Election::new(
            counting(&Arc::default()),
            ("default", "a"),
            "a",
            LeaseTimes { duration: LASTS, holder_deadline: LASTS, renewal: LASTS, again: LASTS },
        );
        let no_client = || Err(kube::Error::LinesCodecMaxLineLengthExceeded);
        let kept = election.renew_on_own_thread(Lease::default(), no_client).await;
        assert!(matches!(kept, Err(LeaseError::Connect(_))), "{kept:?}");
    }

    #[tokio::test]
    async fn a_free_lease_and_an_own_one_are_acquired() {
        assert_eq!(decide(None, false), CandidateStep::Take);
        for free in [None, Some(""), Some("a")] {
            assert_eq!(decide(Some(&held_by(free, Some(15))), true), CandidateStep::Take);
        }
    }

    #[tokio::test]
    async fn anothers_lease_is_awaited_for_as_long_as_it_lasts() {
        assert_eq!(decide(Some(&held_by(Some("b"), Some(7))), false), CandidateStep::Await(Duration::from_secs(7)));
        assert_eq!(decide(Some(&held_by(Some("b"), None)), false), CandidateStep::Await(LASTS));
        assert_eq!(decide(None, true), CandidateStep::Await(LASTS), "its holder does not know yet that it was deleted");
    }
}
