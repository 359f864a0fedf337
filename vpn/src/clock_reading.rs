//! Time as an argument.

use std::time::Duration;

/// One moment on both clocks that WireGuard needs.
///
/// The core reads no clock. The code that does the IO reads one (see [`crate::io::SystemClock`]) and passes the reading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClockReading {
    /// Time since an arbitrary origin. It never runs backwards, and it advances while the machine sleeps. Timers use it.
    pub elapsed: Duration,
    /// Time since the Unix epoch. Only statistics use it.
    pub unix: Duration,
}

impl ClockReading {
    /// Returns the moment that is `by` later on both clocks.
    #[must_use]
    pub fn after(self, by: Duration) -> Self {
        Self { elapsed: self.elapsed + by, unix: self.unix + by }
    }
}
