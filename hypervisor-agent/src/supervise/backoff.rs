//! How long to wait before something that ended is started again.

use std::time::Duration;

use super::MonotonicTime;

/// What ended once is started again at once. After that the pause begins here and doubles: a component that waits for another
/// one ends a few times, and must not be late by much when that one is there.
const FIRST: Duration = Duration::from_secs(1);
/// The longest pause, which is the kubelet's.
const LONGEST: Duration = Duration::from_secs(300);
/// What ran for so long is well: the kubelet's, twice its longest pause.
const WELL: Duration = Duration::from_secs(600);

/// The restarts of one thing.
#[derive(Debug, Default)]
pub struct Backoff {
    restarts: u32,
    started: Option<MonotonicTime>,
    held_until: Option<MonotonicTime>,
}

impl Backoff {
    /// It is seen to have ended. Returns the moment from which on it may be started again, which stays the same until it is.
    pub fn ended(&mut self, now: MonotonicTime) -> MonotonicTime {
        if let Some(until) = self.held_until {
            return until;
        }
        if self.started.is_some_and(|started| now.saturating_sub(started) >= WELL) {
            self.restarts = 0;
        }
        let until = now.saturating_add(pause(self.restarts));
        self.held_until = Some(until);
        until
    }

    /// It was started, anew where it had ended before.
    pub fn started(&mut self, now: MonotonicTime) {
        self.restarts = self.restarts.saturating_add(u32::from(self.held_until.take().is_some()));
        self.started = Some(now);
    }

    /// It was tried and failed: there is a pause from the first time on.
    pub fn failed(&mut self, now: MonotonicTime) {
        self.restarts = self.restarts.saturating_add(1);
        self.held_until = Some(now.saturating_add(pause(self.restarts)));
    }

    /// Until when it waits, where it does.
    #[must_use]
    pub fn held_until(&self) -> Option<MonotonicTime> {
        self.held_until
    }
}

fn pause(restarts: u32) -> Duration {
    match restarts.checked_sub(1) {
        None => Duration::ZERO,
        Some(doublings) => FIRST.saturating_mul(1 << doublings.min(16)).min(LONGEST),
    }
}
