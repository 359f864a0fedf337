//! The metrics of the agent.

use std::sync::atomic::AtomicU64;

use jiff::Timestamp;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, info::Info},
    registry::Registry,
};

/// What the cluster has of a Work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WorkState {
    /// The cluster has the object as it was applied last.
    Applied,
    /// The last attempt failed, or the policy leaves a deleted object as it is.
    Failed,
    /// There was no attempt yet.
    Pending,
}

impl WorkState {
    /// All states.
    pub const ALL: [Self; 3] = [Self::Applied, Self::Failed, Self::Pending];

    fn labels(self) -> WorkLabels {
        let state = match self {
            Self::Applied => "Applied",
            Self::Failed => "Failed",
            Self::Pending => "Pending",
        };
        WorkLabels { state }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WorkLabels {
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct AttemptLabels {
    outcome: &'static str,
}

/// The metrics of an agent. Clones share their values.
#[derive(Debug, Clone, Default)]
pub struct AgentMetrics {
    works: Family<WorkLabels, Gauge>,
    attempts: Family<AttemptLabels, Counter>,
    corrections: Counter,
    queue: Gauge,
    reports: Gauge,
    connected: Gauge,
    contact: Gauge<f64, AtomicU64>,
    expiration: Gauge<f64, AtomicU64>,
    renewal: Gauge<f64, AtomicU64>,
}

impl AgentMetrics {
    /// Creates and registers all metrics.
    #[must_use]
    pub fn new(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        for state in WorkState::ALL {
            metrics.works.get_or_create(&state.labels()).set(0);
        }
        let registry = registry.sub_registry_with_prefix("keelway_fleet_agent");
        let build = Info::new(vec![("version", env!("CARGO_PKG_VERSION"))]);
        registry.register("build", "The release of the agent", build);
        registry.register("works", "Works of this cluster by state", metrics.works.clone());
        registry.register("attempts", "Attempts to carry out a Work, by outcome", metrics.attempts.clone());
        registry.register(
            "drift_corrections",
            "Objects that were applied again because the cluster changed them",
            metrics.corrections.clone(),
        );
        registry.register("queue_depth", "Works that wait or are carried out", metrics.queue.clone());
        registry.register("pending_reports", "Works with a report that was not sent", metrics.reports.clone());
        registry.register("connected", "1 while a session with the fleet is open", metrics.connected.clone());
        let contact = "The time at which the fleet accepted the last heartbeat";
        registry.register("last_contact_timestamp_seconds", contact, metrics.contact.clone());
        let expiration = "The time at which the certificate of the agent expires";
        registry.register("certificate_expiration_timestamp_seconds", expiration, metrics.expiration.clone());
        let renewal = "The time from which the agent renews its certificate";
        registry.register("certificate_renewal_timestamp_seconds", renewal, metrics.renewal.clone());
        metrics
    }

    /// Counts a Work in a state, and no longer in the one before.
    pub(crate) fn count_work(&self, before: Option<WorkState>, after: Option<WorkState>) {
        if let Some(before) = before {
            self.works.get_or_create(&before.labels()).dec();
        }
        if let Some(after) = after {
            self.works.get_or_create(&after.labels()).inc();
        }
    }

    /// Counts an attempt to carry out a Work.
    pub fn count_attempt(&self, outcome: &'static str) {
        self.attempts.get_or_create(&AttemptLabels { outcome }).inc();
    }

    pub(crate) fn count_correction(&self) {
        self.corrections.inc();
    }

    pub(crate) fn set_queue(&self, depth: usize) {
        self.queue.set(i64::try_from(depth).unwrap_or(i64::MAX));
    }

    /// Returns the metric of Works with a report that was not sent.
    pub(crate) fn pending_reports(&self) -> &Gauge {
        &self.reports
    }

    pub(crate) fn set_connected(&self, is_connected: bool) {
        self.connected.set(i64::from(is_connected));
    }

    pub(crate) fn set_contact(&self, now: Timestamp) {
        self.contact.set(now.as_duration().as_secs_f64());
    }

    pub(crate) fn set_certificate(&self, expires: Timestamp, renewal: Timestamp) {
        self.expiration.set(expires.as_duration().as_secs_f64());
        self.renewal.set(renewal.as_duration().as_secs_f64());
    }
}
