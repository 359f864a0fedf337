//! The handshakes that one stream may begin. The relay's limits are for each address, and each stream has an address of its own.

use std::time::Duration;

use tokio::time::Instant;

/// Handshake messages of a peer are not data. A worker sends one in five seconds, and a few more while it looks for its gateway.
const DATA: u8 = 4;
/// The most handshake messages at once, and the time after which there may be another one.
const MOST: u32 = 4;
const EVERY: Duration = Duration::from_secs(1);

/// The handshake messages that a stream may carry.
pub(super) struct HandshakePace {
    left: u32,
    counted: Instant,
}

impl HandshakePace {
    pub(super) fn new(now: Instant) -> Self {
        Self { left: MOST, counted: now }
    }

    /// Whether the relay gets this datagram.
    pub(super) fn admits(&mut self, datagram: &[u8], now: Instant) -> bool {
        if datagram.first() == Some(&DATA) {
            return true;
        }
        let passed = now.saturating_duration_since(self.counted).as_secs();
        if passed > 0 {
            self.left = MOST.min(self.left.saturating_add(u32::try_from(passed).unwrap_or(MOST)));
            self.counted += EVERY * u32::try_from(passed).unwrap_or(u32::MAX);
        }
        let is_admitted = self.left > 0;
        self.left = self.left.saturating_sub(1);
        is_admitted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_begins_few_handshakes_and_carries_any_data() {
        let start = Instant::now();
        let mut pace = HandshakePace::new(start);
        let mut admitted = |millis: u64| pace.admits(&[1, 0, 0, 0], start + Duration::from_millis(millis));
        assert_eq!((0..100).filter(|_| admitted(10)).count(), 4);
        assert_eq!((0..100).filter(|_| admitted(1500)).count(), 1);
        assert_eq!((0..1000).filter(|at| admitted(2000 + at * 10)).count(), 10);
        assert_eq!((0..100).filter(|_| admitted(1_000_000)).count(), 4);
        assert!((0..100).all(|_| pace.admits(&[DATA, 0, 0, 0], start)));
        assert!(!pace.admits(&[], start));
    }
}
