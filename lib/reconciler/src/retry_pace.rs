//! The pauses between passes.

use std::time::Duration;

/// The number of passes with effects that may follow each other without a pause. Creating a cluster takes six, and a component may exit once or
/// twice before its dependencies run.
const AT_ONCE: i32 = 10;
/// The time after which one more such pass may follow without a pause.
const EARN: Duration = Duration::from_secs(5);
/// The pause after the first pass with a failure. Each further one in a row doubles it.
const RETRY: Duration = Duration::from_secs(1);
/// The longest pause after failures.
const LONGEST_RETRY: Duration = Duration::from_secs(30);

/// Limits the rate of passes, so that a component that exits repeatedly, or an effect that fails repeatedly, does not overload a machine. It reads
/// no clock: the caller provides the elapsed time.
#[derive(Debug)]
pub(crate) struct RetryPace {
    /// Negative until the pause for the last pass is over.
    left: i32,
    earned: Duration,
    failures: u32,
}

impl RetryPace {
    pub(crate) fn new() -> Self {
        Self { left: AT_ONCE, earned: Duration::ZERO, failures: 0 }
    }

    /// Returns the minimum pause before the next pass, after a pass with these numbers of effects and failures.
    pub(crate) fn after(&mut self, effects: usize, failures: usize, elapsed: Duration) -> Duration {
        self.earn(elapsed);
        if failures > 0 {
            self.failures += 1;
            return RETRY.saturating_mul(1 << (self.failures - 1).min(8)).min(LONGEST_RETRY);
        }
        self.failures = 0;
        if effects == 0 {
            return Duration::ZERO;
        }
        self.left -= 1;
        EARN.saturating_mul(self.left.min(0).unsigned_abs()).saturating_sub(self.earned)
    }

    fn earn(&mut self, elapsed: Duration) {
        self.earned += elapsed;
        while self.earned >= EARN {
            self.earned -= EARN;
            self.left = (self.left + 1).min(AT_ONCE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOMENT: Duration = Duration::from_millis(100);

    #[test]
    fn a_creation_is_not_delayed() {
        let mut pace = RetryPace::new();
        assert!((0..AT_ONCE).all(|_| pace.after(3, 0, MOMENT).is_zero()));
    }

    #[test]
    fn a_component_that_keeps_exiting_is_restarted_with_pauses() {
        let mut pace = RetryPace::new();
        let mut pause = Duration::ZERO;
        let took: Duration = (0..100)
            .map(|_| {
                let elapsed = pause + MOMENT;
                pause = pace.after(1, 0, elapsed);
                elapsed
            })
            .sum();
        let paused = (100 - AT_ONCE - 1).unsigned_abs();
        assert!(took >= EARN * (paused - 1) && took <= EARN * (paused + 1), "{took:?}");
    }

    #[test]
    fn failures_in_a_row_double_the_pause_up_to_a_bound() {
        let mut pace = RetryPace::new();
        let pauses: Vec<u64> = (0..7).map(|_| pace.after(1, 1, MOMENT).as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
        assert!(pace.after(1, 0, MOMENT).is_zero());
        assert_eq!(pace.after(0, 1, MOMENT), RETRY);
    }
}
