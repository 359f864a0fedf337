//! The metrics of the controller.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DecisionLabels {
    decision: String,
    reason: String,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct ControllerMetrics {
    requests: Family<DecisionLabels, Counter>,
    allocations: Counter,
    conflicts: Counter,
    applications: Counter,
    failures: Counter,
    leading: Gauge,
}

impl ControllerMetrics {
    /// Creates and registers all metrics.
    pub(crate) fn new(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let registry = registry.sub_registry_with_prefix("keelway_cluster_controller");
        registry.register(
            "certificate_requests",
            "Certificate signing requests that were approved or denied",
            metrics.requests.clone(),
        );
        registry.register("address_allocations", "Addresses allocated to peers", metrics.allocations.clone());
        registry.register(
            "address_conflicts",
            "Conflicts with another replica over an address",
            metrics.conflicts.clone(),
        );
        registry.register("applications", "Objects applied", metrics.applications.clone());
        registry.register("failures", "Failed steps, which are retried", metrics.failures.clone());
        registry.register("leading", "1 while this replica holds the Lease", metrics.leading.clone());
        metrics
    }

    pub(crate) fn count_request(&self, kind: &str, reason: &str) {
        let decision = DecisionLabels { decision: kind.to_owned(), reason: reason.to_owned() };
        self.requests.get_or_create(&decision).inc();
    }

    pub(crate) fn count_allocation(&self) {
        self.allocations.inc();
    }

    pub(crate) fn count_conflict(&self) {
        self.conflicts.inc();
    }

    pub(crate) fn count_application(&self) {
        self.applications.inc();
    }

    pub(crate) fn count_failure(&self) {
        self.failures.inc();
    }

    /// Returns the metric that is 1 while this replica holds the Lease.
    pub(crate) fn leading(&self) -> &Gauge {
        &self.leading
    }
}
