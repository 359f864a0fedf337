//! When a settled task runs again: at dates, and at intervals if not all changes are reported.

use std::{
    future::pending,
    hash::{DefaultHasher, Hash, Hasher},
    time::Duration,
};

use keelway_api::jiff::Timestamp;
use tokio::time::sleep;

use super::{InstallationReconciler, Task};

/// The longest interval: for machines that report only the events of their runtime, and for the documents of all machines.
const ROUND: Duration = Duration::from_secs(300);
/// The longest delay by which tasks with the same date are spread.
const SPREAD: Duration = Duration::from_secs(3600);
/// How long the timer is trusted to follow the wall clock, which a user may set.
const TRUST: Duration = Duration::from_secs(600);

impl InstallationReconciler<'_> {
    /// Returns at a date, plus a delay of this task's own, so that certificates that were minted together are not all renewed together.
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

/// Returns after one interval. Each task has its own interval.
pub(super) async fn round(task: &Task) {
    sleep((ROUND / 2).mul_f64(1.0 + jitter(task))).await;
}

/// Returns a number between 0 and 1 that depends only on the task.
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
