//! The only place that reads the time.

use std::time::{Duration, SystemTime};

use rustix::time::{ClockId, clock_gettime};

use crate::clock_reading::ClockReading;

/// The machine's clocks.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemClock;

impl SystemClock {
    /// Returns the current time. The clock advances while the machine sleeps, because keys age then too.
    #[must_use]
    pub fn now(self) -> ClockReading {
        let elapsed = clock_gettime(ClockId::Boottime);
        ClockReading {
            elapsed: Duration::new(
                elapsed.tv_sec.try_into().unwrap_or_default(),
                elapsed.tv_nsec.try_into().unwrap_or_default(),
            ),
            unix: SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default(),
        }
    }
}
