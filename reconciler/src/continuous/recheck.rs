//! When what is settled is looked at again: at dates, and now and then where not everything is told of.

use std::{
    future::pending,
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use keelway_api::jiff::Timestamp;
use tokio::time::sleep;

use super::{InstallationReconciler, Task};

/// The longest round: that of a machine that tells of its runtime's events and of nothing else, and of all machines' documents.
const ROUND: Duration = Duration::from_secs(300);
/// How far those are spread at most that have one date in common.
const SPREAD: Duration = Duration::from_secs(3600);
/// How long a clock is trusted to go as that of the world does, which may be set.
const TRUST: Duration = Duration::from_secs(600);

impl InstallationReconciler<'_> {
    /// Returns once a date has come, and a moment of this task's own later: certificates that were minted together are not all
    /// minted anew together.
    pub(super) async fn wait_until_due(&self, task: &Task, date: Option<Timestamp>) {
        let Some(date) = date else { return pending().await };
        let left = || Duration::try_from(date.duration_since(self.now())).unwrap_or_default();
        let spread = SPREAD.min(left() / 10).mul_f64(jitter(task));
        while !left().is_zero() {
            sleep(left().min(TRUST)).await;
        }
        sleep(spread).await;
    }
}

/// Returns after a round, of which each task has its own length.
pub(super) async fn round(task: &Task) {
    sleep((ROUND / 2).mul_f64(1.0 + jitter(task))).await;
}

/// A number between 0 and 1, the same each time for one task and another for others.
fn jitter(task: &Task) -> f64 {
    let mut hasher = DefaultHasher::new();
    task.hash(&mut hasher);
    let [a, b, c, d, ..] = hasher.finish().to_le_bytes();
    f64::from(u32::from_le_bytes([a, b, c, d])) / f64::from(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_have_shares_of_their_own() {
        let task = |number: usize| Task::Machine(format!("hv-{number}").parse().unwrap());
        let shares: Vec<f64> = (0..400).map(|number| jitter(&task(number))).collect();
        assert!(shares.iter().all(|share| (0.0..=1.0).contains(share)));
        for part in [0.0, 0.25, 0.5, 0.75] {
            let here = shares.iter().filter(|share| (part..part + 0.25).contains(*share)).count();
            assert!(here > 60, "{here} of 400 from {part} on");
        }
        assert!(jitter(&task(1)).to_bits() == jitter(&task(1)).to_bits());
    }
}
