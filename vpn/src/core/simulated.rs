//! `Tunn` reads its own clock. In a simulation that clock is ours to move.

use crate::moment::Moment;

#[cfg(feature = "simulated-clock")]
pub(super) fn set_clock(now: Moment) {
    mock_instant::MockClock::set_time(now.elapsed);
}

#[cfg(not(feature = "simulated-clock"))]
pub(super) fn set_clock(_: Moment) {}
