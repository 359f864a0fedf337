//! How long there was no answer to what is asked all the time.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::deadline;

/// After so many answers it goes on.
const ENOUGH: usize = 5;

/// Seconds since the Unix epoch, as a shell's `$EPOCHREALTIME` has them, so that what was seen in different places can be compared.
pub fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

/// The longest time without an answer from one time to another, once it goes on after that. `answers`: when there were some, in seconds.
pub fn longest_between(since: f64, until: f64, answers: impl Fn() -> Vec<f64>) -> Duration {
    deadline::until("answers after that", deadline::KUBERNETES, || {
        answers().iter().filter(|at| **at > until).count() >= ENOUGH
    });
    longest(&answers(), since)
}

/// The one that had begun by then counts from its own beginning.
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
