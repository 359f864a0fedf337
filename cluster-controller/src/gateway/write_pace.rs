//! When the file of peers is written: soon, and yet not without end where a worker is seen at another place with every packet.

use std::future::pending;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// How long the file may be behind what was seen last: one write for all that happens meanwhile.
const LAG: Duration = Duration::from_millis(50);
/// How long after a write nothing is written for places alone.
const REST: Duration = Duration::from_secs(1);
/// When a write that failed is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// The next write, and the last one.
#[derive(Debug, Default)]
pub(super) struct WritePace {
    due: Option<Instant>,
    last: Option<Instant>,
}

impl WritePace {
    /// The peers are others.
    pub(super) fn peers_changed(&mut self, now: Instant) {
        self.schedule(now + LAG);
    }

    /// A peer is elsewhere.
    pub(super) fn roamed(&mut self, now: Instant) {
        let rested = self.last.map_or(now, |last| last + REST);
        self.schedule(rested.max(now + LAG));
    }

    fn schedule(&mut self, at: Instant) {
        self.due = Some(self.due.map_or(at, |due| due.min(at)));
    }

    /// The file was written, or could not be.
    pub(super) fn written(&mut self, is_kept: bool, now: Instant) {
        self.last = Some(now);
        self.due = (!is_kept).then(|| now + RETRY);
    }

    /// Waits until the file is to be written.
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
        // 10 s of one packet in a millisecond.
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
