//! The back-off of restarts.

use std::time::Duration;

/// The first end has no delay. After that, the delay starts with this value and doubles. A component that depends on another one ends a few times,
/// and must start soon after the other one is ready.
const FIRST: Duration = Duration::from_secs(1);
/// The longest delay, as in the kubelet.
const LONGEST: Duration = Duration::from_secs(300);
/// After running this long, a component counts as healthy: as in the kubelet, twice the longest delay.
const WELL: Duration = Duration::from_secs(600);

/// The restarts of a process, container or action. Times are readings of one monotonic clock.
#[derive(Debug, Default)]
pub struct Backoff {
    restarts: u32,
    started: Option<Duration>,
    held_until: Option<Duration>,
}

impl Backoff {
    /// Records an end. Returns the earliest time of the restart, which stays the same until the restart.
    pub fn ended(&mut self, now: Duration) -> Duration {
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

    /// Records a start, which counts as a restart after an end.
    pub fn started(&mut self, now: Duration) {
        self.restarts = self.restarts.saturating_add(u32::from(self.held_until.take().is_some()));
        self.started = Some(now);
    }

    /// Records a failed attempt. Unlike an end, the first failure already has a delay.
    pub fn failed(&mut self, now: Duration) {
        self.restarts = self.restarts.saturating_add(1);
        self.held_until = Some(now.saturating_add(pause(self.restarts)));
    }

    /// Returns the end of the delay, if there is one.
    #[must_use]
    pub fn held_until(&self) -> Option<Duration> {
        self.held_until
    }
}

fn pause(restarts: u32) -> Duration {
    match restarts.checked_sub(1) {
        None => Duration::ZERO,
        Some(doublings) => FIRST.saturating_mul(1 << doublings.min(16)).min(LONGEST),
    }
}
