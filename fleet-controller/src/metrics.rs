//! The metrics of the controller.

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RegistrationLabels {
    decision: String,
    reason: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReadinessLabels {
    status: String,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct FleetMetrics {
    requests: Family<RegistrationLabels, Counter>,
    clusters: Family<ReadinessLabels, Gauge>,
    writes: Counter,
    failures: Counter,
    leading: Gauge,
}

impl FleetMetrics {
    /// Creates and registers all metrics.
    pub(crate) fn new(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        let registry = registry.sub_registry_with_prefix("keelway_fleet_controller");
        let requests = "Certificate signing requests that were approved or denied";
        registry.register("certificate_requests", requests, metrics.requests.clone());
        registry.register("clusters", "Workload clusters by the status of Ready", metrics.clusters.clone());
        registry.register("writes", "Objects that were written because they changed", metrics.writes.clone());
        registry.register("failures", "Failed steps, which are retried", metrics.failures.clone());
        registry.register("leading", "1 while this replica holds the Lease", metrics.leading.clone());
        metrics
    }

    pub(crate) fn count_request(&self, decision: &str, reason: &str) {
        let labels = RegistrationLabels { decision: decision.to_owned(), reason: reason.to_owned() };
        self.requests.get_or_create(&labels).inc();
    }

    /// Sets the number of clusters with this status of `Ready`.
    pub(crate) fn set_clusters(&self, status: &str, count: usize) {
        let labels = ReadinessLabels { status: status.to_owned() };
        self.clusters.get_or_create(&labels).set(i64::try_from(count).unwrap_or(i64::MAX));
    }

    pub(crate) fn count_write(&self) {
        self.writes.inc();
    }

    pub(crate) fn count_failure(&self) {
        self.failures.inc();
    }

    /// Returns the metric that is 1 while this replica holds the Lease.
    pub(crate) fn leading(&self) -> &Gauge {
        &self.leading
    }
}
