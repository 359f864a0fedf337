//! Time as an argument.

use std::time::Duration;

/// When something happens, on both clocks that WireGuard needs.
///
/// The core reads no clock: whoever does the IO reads one (see [`crate::io::SystemClock`]) and passes what it saw.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClockReading {
    /// Time since an arbitrary origin, never running backwards, and running on while a machine sleeps. Timers use it.
    pub elapsed: Duration,
    /// Time since the Unix epoch. Only statistics use it.
    pub unix: Duration,
}

impl ClockReading {
    /// The same moment, `by` later on both clocks.
    #[must_use]
    pub fn after(self, by: Duration) -> Self {
        Self { elapsed: self.elapsed + by, unix: self.unix + by }
    }
}
