//! The registry of open tunnels, which ends those whose target is lost.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// Open tunnels, each with a key that identifies its target.
pub(crate) struct TunnelRegistry<K> {
    open: Mutex<TunnelTable<K>>,
    most: usize,
    left: Notify,
    /// Cancelled once idle tunnels are to end.
    drain: CancellationToken,
}

struct TunnelTable<K> {
    next: u64,
    by_number: BTreeMap<u64, (K, CancellationToken)>,
}

impl<K> TunnelRegistry<K> {
    /// Creates a registry for at most `most` tunnels.
    pub(crate) fn new(most: usize) -> Arc<Self> {
        let open = Mutex::new(TunnelTable { next: 0, by_number: BTreeMap::new() });
        Arc::new(Self { open, most, left: Notify::new(), drain: CancellationToken::new() })
    }

    fn open(&self) -> MutexGuard<'_, TunnelTable<K>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers one more tunnel. Returns `None` if the limit is reached.
    pub(crate) fn enter(self: &Arc<Self>, to: K) -> Option<TunnelGuard<K>> {
        let mut open = self.open();
        if open.by_number.len() >= self.most {
            return None;
        }
        let number = open.next;
        open.next += 1;
        let reset = CancellationToken::new();
        open.by_number.insert(number, (to, reset.clone()));
        Some(TunnelGuard { tunnels: Arc::clone(self), number, reset })
    }

    /// Ends the tunnels for which `is_over` returns true, and returns their number.
    pub(crate) fn reset(&self, is_over: impl Fn(&K) -> bool) -> usize {
        let open = self.open();
        let over = open.by_number.values().filter(|(to, reset)| !reset.is_cancelled() && is_over(to));
        over.map(|(_, reset)| reset.cancel()).count()
    }

    /// Ends each tunnel as soon as it is idle, from now on.
    pub(crate) fn end_idle(&self) {
        self.drain.cancel();
    }

    /// Returns the number of open tunnels.
    pub(crate) fn len(&self) -> usize {
        self.open().by_number.len()
    }

    /// Waits until no tunnel is open.
    pub(crate) async fn drained(&self) {
        loop {
            let left = self.left.notified();
            if self.len() == 0 {
                return;
            }
            left.await;
        }
    }
}

/// The registration of one open tunnel, until it is dropped.
pub(crate) struct TunnelGuard<K> {
    tunnels: Arc<TunnelRegistry<K>>,
    number: u64,
    reset: CancellationToken,
}

impl<K> TunnelGuard<K> {
    /// Waits until the tunnel is reset.
    pub(crate) async fn is_reset(&self) {
        self.reset.cancelled().await;
    }

    /// Waits until tunnels are to end once they are idle.
    pub(crate) async fn is_draining(&self) {
        self.tunnels.drain.cancelled().await;
    }
}

impl<K> Drop for TunnelGuard<K> {
    fn drop(&mut self) {
        let mut open = self.tunnels.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.by_number.remove(&self.number);
        drop(open);
        self.tunnels.left.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn only_tunnels_to_the_lost_target_are_reset() {
        let tunnels = TunnelRegistry::new(3);
        let [a, b, c] = ["w1", "w2", "w1"].map(|name| tunnels.enter(name).unwrap());
        assert!(tunnels.enter("w3").is_none(), "there is room for three");
        assert_eq!(tunnels.reset(|to| *to == "w1"), 2);
        assert_eq!(tunnels.reset(|to| *to == "w1"), 0, "once is enough");
        assert!(a.is_reset().now_or_never().is_some() && c.is_reset().now_or_never().is_some());
        assert!(b.is_reset().now_or_never().is_none());
        drop(a);
        assert_eq!(tunnels.len(), 2);
        assert!(tunnels.drained().now_or_never().is_none());
        drop((b, c));
        assert!(tunnels.drained().now_or_never().is_some());
    }
}
