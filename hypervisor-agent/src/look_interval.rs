//! How long a machine is not looked at again after a look. What changes meanwhile is seen together.

use std::time::Duration;

/// How many times as long as a look took: where much happens, most of the time is left to what it is about.
const TIMES: u32 = 7;
/// The longest.
const LONGEST: Duration = Duration::from_secs(1);

/// How long a machine is left alone after a look that took so long.
#[must_use]
pub fn after(look: Duration) -> Duration {
    look.saturating_mul(TIMES).min(LONGEST)
}
