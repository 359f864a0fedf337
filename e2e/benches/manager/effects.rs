//! What is done on machines, whichever it is.

use std::time::{Duration, Instant};

use tokio::{sync::watch, time::timeout};

/// How long nothing is done on any machine, once all that follows of a change is over.
const QUIET: Duration = Duration::from_millis(500);
/// How long the first effect of a change may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Told of each effect by every machine. Clones are the same.
#[derive(Clone)]
pub(crate) struct Effects(watch::Sender<Seen>);

#[derive(Default)]
struct Seen {
    count: usize,
    /// The first one since somebody began to wait.
    first: Option<Instant>,
}

impl Effects {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::default())
    }

    /// There is one.
    pub(crate) fn note(&self) {
        let now = Instant::now();
        self.0.send_modify(|seen| {
            seen.count += 1;
            seen.first.get_or_insert(now);
        });
    }

    /// So many were there.
    pub(crate) fn count(&self) -> usize {
        self.0.borrow().count
    }

    /// How long it takes from a moment at which nothing is going on to the first effect of what is done then.
    pub(crate) async fn first_of(&self, change: impl Future<Output = ()>) -> Duration {
        self.0.send_modify(|seen| seen.first = None);
        let mut seen = self.0.subscribe();
        let began = Instant::now();
        change.await;
        let first = timeout(PATIENCE, seen.wait_for(|seen| seen.first.is_some())).await;
        first.unwrap().unwrap().first.unwrap().duration_since(began)
    }

    /// Returns once nothing was done anywhere for a while.
    pub(crate) async fn end(&self) {
        let mut seen = self.0.subscribe();
        while timeout(QUIET, seen.changed()).await.is_ok() {}
    }
}
