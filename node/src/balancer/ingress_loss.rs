//! Decides when the connections of an ingress are reset. Clients of a reset connection connect again, which only helps if another ingress responds.

use tokio::time::Instant;

use super::ingress_check::SLOW;

/// The number of consecutive failed connections of checks after which an ingress is lost.
const FAILURES: u32 = 2;

/// Consecutive failed checks of one ingress.
#[derive(Debug, Default)]
pub(super) struct IngressLoss {
    failures: u32,
    /// A later response of another ingress shows that only this ingress fails.
    since: Option<Instant>,
    is_reset: bool,
}

impl IngressLoss {
    /// Whether the last check succeeded.
    pub(super) fn is_over(&self) -> bool {
        self.failures == 0
    }

    /// Records a check that succeeded, or that found an API server that is not ready. Connections continue.
    pub(super) fn end(&mut self) {
        *self = Self::default();
    }

    /// Records failed connections of a check that began at `began`. Returns whether the next check follows at once.
    pub(super) fn record(&mut self, failures: u32, began: Instant, now: Instant) -> bool {
        self.failures = self.failures.saturating_add(failures);
        // If the worker's own network had failed after `began`, the other ingress would not have responded so much later.
        self.since.get_or_insert(now.min(began + SLOW));
        self.failures < FAILURES
    }

    /// Whether the ingress is lost, and its connections are not reset yet.
    pub(super) fn is_pending(&self) -> bool {
        self.failures >= FAILURES && !self.is_reset
    }

    /// Decides whether to reset the connections, at most once for each loss: if another ingress responded after this one failed. An older response
    /// does not count, because the worker may have lost its own network since.
    pub(super) fn resets(&mut self, responses_of_others: impl IntoIterator<Item = Instant>) -> bool {
        let is_better = |response| self.since.is_some_and(|since| response > since);
        let resets = self.is_pending() && responses_of_others.into_iter().any(is_better);
        self.is_reset |= resets;
        resets
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_ingress_is_reset_once_if_another_one_responds() {
        let at = Instant::now();
        let mut loss = IngressLoss::default();
        assert!(!loss.record(2, at, at + seconds(2)));
        assert!(loss.resets([at + Duration::from_millis(1_001)]));
        assert!(!loss.is_pending());
        loss.record(1, at + seconds(4), at + seconds(6));
        assert!(!loss.resets([at + seconds(5)]), "connections that were made since are a last resort");
        loss.end();
        assert!(
            loss.record(1, at + seconds(8), at + seconds(9)),
            "this is another loss, and one failure is not enough"
        );
        assert!(!loss.resets([at + seconds(9)]));
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_reset_while_no_other_ingress_responds() {
        let at = Instant::now();
        let mut loss = IngressLoss::default();
        loss.record(2, at, at + seconds(2));
        assert!(!loss.resets([]));
        assert!(!loss.resets([at + seconds(1)]), "the worker may have lost its own network after this response");
        assert!(loss.is_pending());
        loss.end();
        assert!(!loss.resets([at + seconds(5)]), "the ingress responds again");
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_connection_is_a_loss_from_then_on() {
        let at = Instant::now();
        let mut loss = IngressLoss::default();
        let refused = at + Duration::from_millis(1);
        loss.record(2, at, refused);
        assert!(!loss.resets([refused]));
        assert!(loss.resets([refused + Duration::from_millis(1)]));
    }
}
