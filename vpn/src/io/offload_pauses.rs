//! The destinations to which segmentation offload failed lately.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

/// How long datagrams to a destination are sent one by one after offload failed. A path and its MTU may change.
const PAUSE: Duration = Duration::from_secs(30);
/// The most destinations. Beyond it, offload is tried again to all of them.
const MOST: usize = 4096;

/// Offload fails to a destination if a segment is larger than the MTU of the path, or if the outgoing device lacks it. It then pauses for this
/// destination, and for no other.
#[derive(Debug, Default)]
pub(super) struct OffloadPauses(BTreeMap<SocketAddr, Duration>);

impl OffloadPauses {
    /// Records a failure. `now` is the time since an arbitrary origin.
    pub(super) fn add(&mut self, destination: SocketAddr, now: Duration) {
        if self.0.len() >= MOST {
            self.0.clear();
        }
        self.0.insert(destination, now + PAUSE);
    }

    /// Returns whether datagrams to the destination are to be sent one by one.
    pub(super) fn holds(&mut self, destination: SocketAddr, now: Duration) -> bool {
        let Some(end) = self.0.get(&destination) else { return false };
        let holds = now < *end;
        if !holds {
            self.0.remove(&destination);
        }
        holds
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offload_pauses_for_one_destination_and_is_tried_again() {
        let destination = |number: u16| SocketAddr::from(([192, 0, 2, 1], number));
        let mut pauses = OffloadPauses::default();
        let start = Duration::from_secs(1000);
        pauses.add(destination(1), start);
        assert!(pauses.holds(destination(1), start + PAUSE / 2));
        assert!(!pauses.holds(destination(2), start));
        assert!(!pauses.holds(destination(1), start + PAUSE));
        assert!(!pauses.holds(destination(1), start), "the pause is over for good");
    }

    #[test]
    fn the_number_of_destinations_is_bounded() {
        let mut pauses = OffloadPauses::default();
        for number in 0..=u16::MAX {
            pauses.add(SocketAddr::from(([192, 0, 2, 1], number)), Duration::ZERO);
        }
        assert!(pauses.0.len() <= MOST);
    }
}
