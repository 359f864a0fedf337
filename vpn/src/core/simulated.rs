//! The clock that `Tunn` reads by itself. In a simulation, the core moves it.

use crate::clock_reading::ClockReading;

#[cfg(feature = "simulated-clock")]
pub(super) fn set_clock(now: ClockReading) {
    mock_instant::MockClock::set_time(now.elapsed);
}

#[cfg(not(feature = "simulated-clock"))]
pub(super) fn set_clock(_: ClockReading) {}
