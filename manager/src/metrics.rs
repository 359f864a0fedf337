//! Metrics for Prometheus: counters that passes update, and gauges that are computed from the documents on request.

mod actions;
mod certificates;
mod cluster_creation;
mod clusters;
mod component_figures;
mod exposition;
mod family;
mod hypervisors;
mod passes;
mod process;
mod snapshots;
mod state;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use keelway_api::{
    jiff::Timestamp,
    machine::{MachineState, ObservedValue},
    name::HypervisorName,
};
use keelway_stores::DocumentSource;
use prometheus_client::{collector::Collector, encoding::DescriptorEncoder, metrics::gauge::Gauge, registry::Registry};

use certificates::CertificateCache;
use component_figures::Holdings;
use family::MetricFamily;
use process::ProcessCollector;

pub use exposition::ExpositionFormat;
pub use passes::Passes;

/// All metrics of a manager.
#[derive(Debug)]
pub struct ManagerMetrics {
    registry: Registry,
    passes: Passes,
    holdings: Arc<Holdings>,
    leading: Gauge,
    /// Whether the manager has loaded all documents and waits for the Lease.
    stands_by: AtomicBool,
}

impl ManagerMetrics {
    /// Creates the metrics of these documents, and of a process that starts now.
    #[must_use]
    pub fn new(kept: Arc<dyn DocumentSource>, now: Timestamp) -> Self {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(ProcessCollector::new(now)));
        let own = registry.sub_registry_with_prefix("keelway");
        let passes = Passes::new(own);
        let holdings = Arc::<Holdings>::default();
        let world = DocumentCollector { kept, certificates: CertificateCache::default(), holdings: holdings.clone() };
        own.register_collector(Box::new(world));
        let leading = Gauge::default();
        own.register(
            "leading",
            "1 if this manager reconciles: it is the only manager, or it holds the Lease",
            leading.clone(),
        );
        Self { registry, passes, holdings, leading, stands_by: AtomicBool::new(false) }
    }

    /// Records whether this manager is the leader.
    pub fn set_leading(&self, leads: bool) {
        self.stands_by.store(false, Ordering::Relaxed);
        self.leading.set(i64::from(leads));
    }

    /// Records that this manager has loaded all documents and waits until another manager no longer leads.
    pub fn set_standing_by(&self) {
        self.stands_by.store(true, Ordering::Relaxed);
    }

    /// Returns whether the manager is ready: it has completed a pass, or it stands by.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.passes.any() || self.stands_by.load(Ordering::Relaxed)
    }

    /// Records an observation of a machine. It is `Unreachable` if the machine did not respond.
    pub fn record_machine(&self, machine: &HypervisorName, seen: &ObservedValue<MachineState>) {
        self.holdings.record_machine(machine, seen);
    }

    /// Returns the counters of passes.
    #[must_use]
    pub fn passes(&self) -> &Passes {
        &self.passes
    }

    /// Returns all metrics as text.
    ///
    /// # Errors
    /// A value cannot be formatted.
    pub fn text(&self, format: ExpositionFormat) -> Result<String, fmt::Error> {
        exposition::text(&self.registry, format)
    }
}

/// Computes metrics from the documents.
struct DocumentCollector {
    kept: Arc<dyn DocumentSource>,
    certificates: CertificateCache,
    holdings: Arc<Holdings>,
}

impl DocumentCollector {
    fn families(&self) -> Vec<MetricFamily> {
        let documents = self.kept.documents();
        let mut refused = MetricFamily::new("documents_refused", "Invalid documents, which have no effect");
        refused.add([], family::count(self.kept.refused()));
        let mut build = MetricFamily::new("build_info", "Build information of the manager; the value is always 1");
        build.add([("version", env!("CARGO_PKG_VERSION").to_owned())], 1.0);
        let mut families = vec![build, refused];
        families.extend(clusters::families(&documents));
        families.extend(snapshots::families(&documents));
        families.extend(hypervisors::families(&documents));
        families.extend(self.holdings.families(&documents));
        families.extend(self.certificates.families(&documents));
        families
    }
}

impl fmt::Debug for DocumentCollector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("World")
    }
}

impl Collector for DocumentCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        self.families().iter().try_for_each(|family| family.encode(&mut encoder))
    }
}
