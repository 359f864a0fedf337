//! The interval between two looks at a machine. One look observes all changes of an interval.

use std::time::Duration;

/// The pause as a multiple of the duration of the last look, so that a busy machine spends most of its time on its own work.
const TIMES: u32 = 7;
/// The longest pause.
const LONGEST: Duration = Duration::from_secs(1);

/// Returns the pause after a look of this duration.
#[must_use]
pub fn after(look: Duration) -> Duration {
    look.saturating_mul(TIMES).min(LONGEST)
}
