//! How requests for tunnels ended: counted all, and told of as far as a log may grow.

use std::sync::Arc;

use keelway_tls::Told;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use crate::connect::Reason;

/// Requests by how they ended.
#[derive(Debug, Clone, Default)]
pub(crate) struct Connects {
    by_outcome: Family<Label, Counter>,
    told: Arc<Told>,
}

type Label = [(&'static str, &'static str); 1];

fn label(outcome: Result<(), Reason>) -> Label {
    [("outcome", outcome.map_or_else(Reason::word, |()| "opened"))]
}

impl Connects {
    /// Counts one.
    pub(crate) fn count(&self, outcome: Result<(), Reason>) {
        self.by_outcome.get_or_create(&label(outcome)).inc();
    }

    /// Whether one more refusal may be logged: tenants decide how many there are.
    pub(crate) fn may_tell(&self) -> bool {
        self.told.has_room()
    }

    /// Makes the metric known, with all its outcomes.
    pub(crate) fn register(&self, registry: &mut Registry) {
        for outcome in Reason::ALL.map(Err).into_iter().chain([Ok(())]) {
            drop(self.by_outcome.get_or_create(&label(outcome)));
        }
        registry.register("connects", "Requests for tunnels, by how they ended", self.by_outcome.clone());
    }
}
