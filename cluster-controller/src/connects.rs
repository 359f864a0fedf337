//! The outcomes of requests for tunnels: all are counted, and a limited number is logged.

use std::sync::Arc;

use keelway_tls::LogRateLimiter;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use crate::connect::RefusalReason;

/// The counters of requests, by outcome.
#[derive(Debug, Clone, Default)]
pub(crate) struct Connects {
    by_outcome: Family<ConnectLabels, Counter>,
    log_limit: Arc<LogRateLimiter>,
}

type ConnectLabels = [(&'static str, &'static str); 1];

fn label(outcome: Result<(), RefusalReason>) -> ConnectLabels {
    [("outcome", outcome.map_or_else(RefusalReason::label, |()| "opened"))]
}

impl Connects {
    /// Counts one request.
    pub(crate) fn count(&self, outcome: Result<(), RefusalReason>) {
        self.by_outcome.get_or_create(&label(outcome)).inc();
    }

    /// Whether one more refusal may be logged. A limit applies, because tenants control the number of refusals.
    pub(crate) fn may_log(&self) -> bool {
        self.log_limit.has_room()
    }

    /// Registers the metric, with all its outcomes.
    pub(crate) fn register(&self, registry: &mut Registry) {
        for outcome in RefusalReason::ALL.map(Err).into_iter().chain([Ok(())]) {
            drop(self.by_outcome.get_or_create(&label(outcome)));
        }
        registry.register("connects", "Requests for tunnels, by outcome", self.by_outcome.clone());
    }
}
