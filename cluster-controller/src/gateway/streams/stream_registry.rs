//! All open streams, with a limit. A stream that carries a peer is never closed for another one.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

/// The most streams. Each needs about 64 KiB of memory, and up to 160 KiB while its client accepts nothing.
const MOST: usize = 512;

/// The open streams of a gateway.
#[derive(Default)]
pub(in crate::gateway) struct StreamRegistry(Mutex<OpenStreams>);

#[derive(Default)]
struct OpenStreams {
    next: u32,
    /// In the order of their beginning.
    by_number: BTreeMap<u32, OpenStream>,
}

struct OpenStream {
    is_met: bool,
    displaced: CancellationToken,
}

/// One open stream, until it is dropped.
pub(super) struct StreamEntry {
    registry: Arc<StreamRegistry>,
    number: u32,
    displaced: CancellationToken,
}

impl StreamRegistry {
    fn open(&self) -> MutexGuard<'_, OpenStreams> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the number of streams that carry a peer.
    pub(in crate::gateway) fn met(&self) -> usize {
        self.open().by_number.values().filter(|stream| stream.is_met).count()
    }

    /// Adds a stream. If there are too many, the oldest one without a peer gives way. `None` if all of them carry peers.
    pub(super) fn admit(self: &Arc<Self>) -> Option<StreamEntry> {
        let mut open = self.open();
        if open.by_number.len() >= MOST && !open.displace_oldest() {
            return None;
        }
        let (number, displaced) = (open.next, CancellationToken::new());
        open.next = open.next.wrapping_add(1);
        open.by_number.insert(number, OpenStream { is_met: false, displaced: displaced.clone() });
        Some(StreamEntry { registry: Arc::clone(self), number, displaced })
    }
}

impl OpenStreams {
    /// Ends the oldest stream that carries no peer. Returns whether there is one.
    fn displace_oldest(&mut self) -> bool {
        let unmet = self.by_number.iter().find(|(_, stream)| !stream.is_met).map(|(number, _)| *number);
        let stream = unmet.and_then(|number| self.by_number.remove(&number));
        stream.map(|stream| stream.displaced.cancel()).is_some()
    }
}

impl StreamEntry {
    /// Records that the stream carries a peer.
    pub(super) fn set_met(&self) {
        if let Some(own) = self.registry.open().by_number.get_mut(&self.number) {
            own.is_met = true;
        }
    }

    /// Whether the stream carries a peer.
    pub(super) fn is_met(&self) -> bool {
        self.registry.open().by_number.get(&self.number).is_some_and(|own| own.is_met)
    }

    /// Returns once the stream has to give way to another one.
    pub(super) async fn displaced(&self) {
        self.displaced.cancelled().await;
    }

    /// Returns the loopback address of this stream's local socket.
    pub(super) fn stand_in(&self) -> Ipv4Addr {
        let [_, a, b, c] = self.number.to_be_bytes();
        Ipv4Addr::new(127, 1 + a % 254, b, c)
    }
}

impl Drop for StreamEntry {
    fn drop(&mut self) {
        self.registry.open().by_number.remove(&self.number);
    }
}

/// Whether this is the address of a stream's local socket.
pub(super) fn is_stand_in(address: Ipv4Addr) -> bool {
    address.is_loopback() && address.octets()[1] != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_stream_without_a_peer_is_displaced_by_a_new_one() {
        let registry = Arc::<StreamRegistry>::default();
        let mut all: Vec<StreamEntry> = (0..MOST).map(|_| registry.admit().unwrap()).collect();
        all[0].set_met();
        all.push(registry.admit().unwrap());
        let ended: Vec<usize> = (0..all.len()).filter(|at| all[*at].displaced.is_cancelled()).collect();
        assert_eq!(ended, [1]);
        all.iter().for_each(StreamEntry::set_met);
        assert!(registry.admit().is_none());
        assert_eq!(registry.met(), MOST);
        all.clear();
        assert!(registry.open().by_number.is_empty());
        assert!(registry.admit().is_some());
    }

    #[test]
    fn each_stream_has_a_stand_in_of_its_own() {
        let registry = Arc::<StreamRegistry>::default();
        registry.open().next = u32::MAX - 1;
        let all: Vec<Ipv4Addr> = (0..4).map(|_| registry.admit().unwrap().stand_in()).collect();
        assert!(all.iter().all(|address| is_stand_in(*address)), "{all:?}");
        assert!((1..4).all(|at| !all[..at].contains(&all[at])), "{all:?}");
        assert!(!is_stand_in(Ipv4Addr::LOCALHOST) && !is_stand_in(Ipv4Addr::new(10, 1, 0, 1)));
    }
}
