//! Schedules writes of the peer file: soon after a change, but with a limited rate if a worker's endpoint changes with every packet.

use std::future::pending;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// How long the file may lag behind a change. All changes in this time lead to one write.
const LAG: Duration = Duration::from_millis(50);
/// The shortest time between two writes for endpoints alone.
const REST: Duration = Duration::from_secs(1);
/// The pause before a failed write is retried.
const RETRY: Duration = Duration::from_secs(5);

/// The times of the next write and of the last one.
#[derive(Debug, Default)]
pub(super) struct WritePace {
    due: Option<Instant>,
    last: Option<Instant>,
}

impl WritePace {
    /// Schedules a write after a change of the peers.
    pub(super) fn peers_changed(&mut self, now: Instant) {
        self.schedule(now + LAG);
    }

    /// Schedules a write after a change of an endpoint.
    pub(super) fn roamed(&mut self, now: Instant) {
        let rested = self.last.map_or(now, |last| last + REST);
        self.schedule(rested.max(now + LAG));
    }

    fn schedule(&mut self, at: Instant) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    /// Records a write, and schedules a retry if it failed.
    pub(super) fn written(&mut self, is_kept: bool, now: Instant) {
        self.last = Some(now);
        self.due = (!is_kept).then(|| now + RETRY);
    }

    /// Waits until a write is due.
    pub(super) async fn wait_until_due(&self) {
        match self.due {
            Some(at) => sleep_until(at).await,
            None => pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_that_moves_with_every_packet_is_written_once_in_a_second() {
        let mut pace = WritePace::default();
        let start = Instant::now();
        let mut writes = 0_u32;
        // 10 s with one packet per millisecond.
        for now in (0..10_000).map(|milliseconds| start + Duration::from_millis(milliseconds)) {
            pace.roamed(now);
            if pace.due.is_some_and(|due| due <= now) {
                writes += 1;
                pace.written(true, now);
            }
        }
        assert!((10..=11).contains(&writes), "{writes}");
    }

    #[test]
    fn a_first_place_and_other_peers_are_written_soon() {
        let mut pace = WritePace::default();
        let start = Instant::now();
        pace.roamed(start);
        assert_eq!(pace.due, Some(start + LAG));
        pace.written(true, start + LAG);
        assert_eq!(pace.due, None);
        pace.roamed(start + LAG);
        assert_eq!(pace.due, Some(start + LAG + REST));
        pace.peers_changed(start + LAG);
        assert_eq!(pace.due, Some(start + LAG * 2));
        pace.written(false, start + LAG * 2);
        assert_eq!(pace.due, Some(start + LAG * 2 + RETRY));
    }
}
