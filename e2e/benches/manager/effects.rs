//! Counts the effects on all machines together.

use std::time::{Duration, Instant};

use tokio::{sync::watch, time::timeout};

/// If no machine reports an effect for this time, all consequences of a change are over.
const QUIET: Duration = Duration::from_millis(500);
/// The time limit for the first effect of a change.
const PATIENCE: Duration = Duration::from_secs(60);

/// Every machine reports each of its effects here. Clones share the same count.
#[derive(Clone)]
pub(crate) struct Effects(watch::Sender<Seen>);

#[derive(Default)]
struct Seen {
    count: usize,
    /// The time of the first effect since the last call of [`Effects::first_of`].
    first: Option<Instant>,
}

impl Effects {
    pub(crate) fn new() -> Self {
        Self(watch::Sender::default())
    }

    /// Records one effect.
    pub(crate) fn note(&self) {
        let now = Instant::now();
        self.0.send_modify(|seen| {
            seen.count += 1;
            seen.first.get_or_insert(now);
        });
    }

    /// Returns the number of effects so far.
    pub(crate) fn count(&self) -> usize {
        self.0.borrow().count
    }

    /// Returns the time from the start of `change` to the first effect that follows. The caller ensures that nothing else is in progress.
    pub(crate) async fn first_of(&self, change: impl Future<Output = ()>) -> Duration {
        self.0.send_modify(|seen| seen.first = None);
        let mut seen = self.0.subscribe();
        let began = Instant::now();
        change.await;
        let first = timeout(PATIENCE, seen.wait_for(|seen| seen.first.is_some())).await;
        first.unwrap().unwrap().first.unwrap().duration_since(began)
    }

    /// Returns when no machine has reported an effect for [`QUIET`].
    pub(crate) async fn end(&self) {
        let mut seen = self.0.subscribe();
        while timeout(QUIET, seen.changed()).await.is_ok() {}
    }
}
