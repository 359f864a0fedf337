//! Which Work is next: by rank, and then by the order of arrival. A Work runs once at a time. No IO.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use crate::manifest::ApplyRank;

/// The shortest and the longest pause before a failed Work is tried again.
const SHORTEST: Duration = Duration::from_millis(500);
const LONGEST: Duration = Duration::from_secs(30);

/// The Works that wait, run, or failed.
#[derive(Debug, Default)]
pub struct WorkQueue {
    waiting: BTreeSet<(ApplyRank, u64, String)>,
    positions: BTreeMap<String, (ApplyRank, u64)>,
    running: BTreeMap<String, ApplyRank>,
    /// Works that changed while they ran.
    changed: BTreeSet<String>,
    retries: BTreeMap<String, QueuedRetry>,
    arrivals: u64,
}

#[derive(Debug)]
struct QueuedRetry {
    rank: ApplyRank,
    at: Instant,
    pause: Duration,
}

impl WorkQueue {
    /// Adds a Work. If it runs, it runs again afterwards.
    pub fn add(&mut self, work: &str, rank: ApplyRank) {
        if self.running.contains_key(work) {
            self.changed.insert(work.to_owned());
            return;
        }
        if self.positions.contains_key(work) {
            return;
        }
        self.arrivals += 1;
        self.positions.insert(work.to_owned(), (rank, self.arrivals));
        self.waiting.insert((rank, self.arrivals, work.to_owned()));
    }

    /// Adds every Work whose retry is pending, for a cause that may have ended.
    pub fn retry_all(&mut self, now: Instant) {
        self.retries.values_mut().for_each(|retry| retry.at = now);
    }

    /// Starts the next Work. Namespaces and definitions that run are awaited first.
    pub fn start(&mut self, now: Instant) -> Option<String> {
        let due = self.retries.iter().filter(|(_, retry)| retry.at <= now);
        for (work, rank) in due.map(|(work, retry)| (work.clone(), retry.rank)).collect::<Vec<_>>() {
            if let Some(retry) = self.retries.get_mut(&work) {
                // The pause stays, and ends with a success.
                retry.at = now + LONGEST;
            }
            self.add(&work, rank);
        }
        let (rank, arrival, work) = self.waiting.first()?.clone();
        if self.running.values().any(|running| *running < rank) {
            return None;
        }
        self.waiting.remove(&(rank, arrival, work.clone()));
        self.positions.remove(&work);
        self.running.insert(work.clone(), rank);
        Some(work)
    }

    /// Records the end of a Work's run. A failed one is retried later.
    pub fn finish(&mut self, work: &str, has_failed: bool, now: Instant) {
        let Some(rank) = self.running.remove(work) else { return };
        if has_failed {
            let pause = self.retries.get(work).map_or(SHORTEST, |retry| (retry.pause * 2).min(LONGEST));
            self.retries.insert(work.to_owned(), QueuedRetry { rank, at: now + pause, pause });
        } else {
            self.retries.remove(work);
        }
        if self.changed.remove(work) {
            self.add(work, rank);
        }
    }

    /// Forgets a Work. If it runs, its run ends without another one.
    pub fn remove(&mut self, work: &str) {
        if let Some((rank, arrival)) = self.positions.remove(work) {
            self.waiting.remove(&(rank, arrival, work.to_owned()));
        }
        self.changed.remove(work);
        self.retries.remove(work);
    }

    /// Returns when the next retry is due.
    #[must_use]
    pub fn next_retry(&self) -> Option<Instant> {
        self.retries.values().map(|retry| retry.at).min()
    }

    /// The number of Works that wait or run. Those that wait for a retry are not among them.
    #[must_use]
    pub fn depth(&self) -> usize {
        self.waiting.len() + self.running.len()
    }

    /// Whether a Work runs.
    #[must_use]
    pub fn is_running(&self, work: &str) -> bool {
        self.running.contains_key(work)
    }

    /// The number of Works that run.
    #[must_use]
    pub fn running(&self) -> usize {
        self.running.len()
    }
}
