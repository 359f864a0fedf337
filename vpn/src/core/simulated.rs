//! `Tunn` reads its own clock. In a simulation that clock is ours to move.

use crate::clock_reading::ClockReading;

#[cfg(feature = "simulated-clock")]
pub(super) fn set_clock(now: ClockReading) {
    mock_instant::MockClock::set_time(now.elapsed);
}

#[cfg(not(feature = "simulated-clock"))]
pub(super) fn set_clock(_: ClockReading) {}
