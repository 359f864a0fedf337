//! Computes how long continuous requests got no response.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::deadline;

/// The number of responses that show that the outage is over.
const ENOUGH: usize = 5;

/// Returns seconds since the Unix epoch, like `$EPOCHREALTIME` of a shell, so that times from different places can be compared.
pub fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

/// Returns the longest gap between responses after `since`. Waits for responses after `until` first. `answers` returns times in seconds.
pub fn longest_between(since: f64, until: f64, answers: impl Fn() -> Vec<f64>) -> Duration {
    deadline::until("answers after that", deadline::KUBERNETES, || {
        answers().iter().filter(|at| **at > until).count() >= ENOUGH
    });
    longest(&answers(), since)
}

/// A gap that began before `since` counts from its own start.
fn longest(answers: &[f64], since: f64) -> Duration {
    let ended = answers.windows(2).filter(|pair| pair[1] > since);
    Duration::from_secs_f64(ended.map(|pair| pair[1] - pair[0]).fold(0.0, f64::max))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_counts_from_its_own_beginning() {
        let answers = [1.0, 5.0, 6.0, 8.0, 9.0];
        assert_eq!(longest(&answers, 0.0), Duration::from_secs(4));
        assert_eq!(longest(&answers, 4.5), Duration::from_secs(4));
        assert_eq!(longest(&answers, 5.5), Duration::from_secs(2));
        assert_eq!(longest(&answers, 9.5), Duration::ZERO);
    }
}
