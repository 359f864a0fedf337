//! The metrics of the controller.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{
        counter::Counter,
        family::Family,
        gauge::Gauge,
        histogram::{Histogram, exponential_buckets},
        info::Info,
    },
    registry::Registry,
};

use crate::placement::{CensusState, FleetCensus};

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RegistrationLabels {
    decision: String,
    reason: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReadinessLabels {
    status: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PlacementLabels {
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ClusterWorkLabels {
    cluster: String,
    state: &'static str,
}

/// The metrics of a controller. Clones share their values.
#[derive(Debug, Clone)]
pub struct FleetMetrics {
    requests: Family<RegistrationLabels, Counter>,
    clusters: Family<ReadinessLabels, Gauge>,
    placements: Family<PlacementLabels, Gauge>,
    works: Family<ClusterWorkLabels, Gauge>,
    /// The clusters that `works` contains.
    counted: Arc<Mutex<BTreeSet<String>>>,
    pending: Gauge,
    decisions: Histogram,
    writes: Counter,
    failures: Counter,
    leading: Gauge,
}

impl FleetMetrics {
    /// Creates and registers all metrics.
    #[must_use]
    pub fn new(registry: &mut Registry) -> Self {
        let metrics = Self {
            requests: Family::default(),
            clusters: Family::default(),
            placements: Family::default(),
            works: Family::default(),
            counted: Arc::default(),
            pending: Gauge::default(),
            // From 0.1 ms to 1.6 s.
            decisions: Histogram::new(exponential_buckets(0.000_1, 4.0, 8)),
            writes: Counter::default(),
            failures: Counter::default(),
            leading: Gauge::default(),
        };
        let registry = registry.sub_registry_with_prefix("keelway_fleet_controller");
        let build = Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("build", "The release of the controller", build);
        let requests = "Certificate signing requests that were approved or denied";
        registry.register("certificate_requests", requests, metrics.requests.clone());
        registry.register("clusters", "Workload clusters by the status of Ready", metrics.clusters.clone());
        registry.register("placements", "Placements by state", metrics.placements.clone());
        registry.register("works", "Works by cluster and state", metrics.works.clone());
        registry.register("pending_objects", "Objects that wait for a decision", metrics.pending.clone());
        registry.register(
            "decision_duration_seconds",
            "The time to decide about one object",
            metrics.decisions.clone(),
        );
        registry.register("writes", "Writes of documents that differ from what was decided", metrics.writes.clone());
        registry.register("failures", "Failed steps, which are retried", metrics.failures.clone());
        registry.register("leading", "1 while this replica holds the Lease", metrics.leading.clone());
        metrics
    }

    /// Counts a decision about a certificate signing request.
    pub fn count_request(&self, decision: &str, reason: &str) {
        let labels = RegistrationLabels { decision: decision.to_owned(), reason: reason.to_owned() };
        self.requests.get_or_create(&labels).inc();
    }

    /// Sets the number of clusters with this status of `Ready`.
    pub fn set_clusters(&self, status: &str, count: usize) {
        let labels = ReadinessLabels { status: status.to_owned() };
        self.clusters.get_or_create(&labels).set(number(count));
    }

    /// Sets the numbers of Placements and Works. Clusters that are not in the fleet any more are left out.
    pub fn set_census(&self, census: &FleetCensus) {
        self.pending.set(number(census.pending));
        for state in CensusState::PLACEMENT {
            let count = census.placements.get(&state).copied().unwrap_or_default();
            self.placements.get_or_create(&PlacementLabels { state: state.as_str() }).set(number(count));
        }
        let mut counted = self.counted.lock().unwrap_or_else(PoisonError::into_inner);
        let now: BTreeSet<String> = census.works.keys().cloned().collect();
        let labels = |cluster: &str, state: CensusState| ClusterWorkLabels {
            cluster: cluster.to_owned(),
            state: state.as_str(),
        };
        for (cluster, states) in &census.works {
            for state in CensusState::WORK {
                let count = states.get(&state).copied().unwrap_or_default();
                self.works.get_or_create(&labels(cluster, state)).set(number(count));
            }
        }
        for cluster in counted.difference(&now) {
            for state in CensusState::WORK {
                self.works.remove(&labels(cluster, state));
            }
        }
        *counted = now;
    }

    pub(crate) fn observe_decision(&self, took: Duration) {
        self.decisions.observe(took.as_secs_f64());
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

fn number(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}
