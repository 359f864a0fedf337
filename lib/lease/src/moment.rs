//! A time after which a replica must not act.

use core::{ops::Add, time::Duration};
use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};

/// A time on two clocks. It has passed when it has passed on one of them.
///
/// `Instant` and timers stand still while the machine is suspended, and other replicas continue. The boot-time clock continues too
/// (`clock_gettime(2)`).
#[derive(Debug, Clone, Copy)]
pub(crate) struct LeaseTime {
    pub(crate) timer: Instant,
    boot: Duration,
}

impl LeaseTime {
    pub(crate) fn now() -> Self {
        Self { timer: Instant::now(), boot: since_boot() }
    }

    pub(crate) fn has_passed(self) -> bool {
        self.timer <= Instant::now() || self.boot <= since_boot()
    }
}

impl Add<Duration> for LeaseTime {
    type Output = Self;

    fn add(self, rest: Duration) -> Self {
        Self { timer: self.timer + rest, boot: self.boot + rest }
    }
}

fn since_boot() -> Duration {
    clock_gettime(ClockId::Boottime).try_into().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: Duration = Duration::from_secs(60);

    #[test]
    fn a_time_has_passed_once_it_has_by_one_clock() {
        let now = LeaseTime::now();
        assert!(now.has_passed());
        assert!(!(now + MINUTE).has_passed());
        // The machine was suspended: timers stood still.
        assert!(LeaseTime { timer: now.timer + MINUTE, ..now }.has_passed());
        assert!(LeaseTime { boot: now.boot + MINUTE, ..now }.has_passed());
    }
}
