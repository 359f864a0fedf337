//! Work of the one replica that holds the Lease.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use keelway_base::error_chain::ErrorChain;
use keelway_lease::{Election, LeaseTimes};
use prometheus_client::{metrics::gauge::Gauge, registry::Registry};
use serde::{Deserialize, Serialize};
use tokio::{select, time::sleep};

use crate::health::ProcessHealth;

/// The Lease is longer than those of Kubernetes' own controllers. No work of these controllers is urgent within half a minute, and replicas that
/// restart their work again and again would slow down a cluster whose API is already slow.
pub const LEASE: LeaseTimes = LeaseTimes {
    duration: Duration::from_secs(30),
    holder_deadline: Duration::from_secs(20),
    renewal: Duration::from_secs(5),
    again: Duration::from_millis(500),
};
/// The pause before the Lease is acquired again after an error.
const AGAIN: Duration = Duration::from_secs(1);

/// The name of a Lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeaseName {
    /// The namespace of the Lease.
    pub namespace: String,
    /// The name of the Lease.
    pub name: String,
}

/// What a replica reports about the Lease.
#[derive(Debug, Clone)]
pub struct LeaderReport {
    /// The name of the replica, for logs.
    pub identity: String,
    /// Whether an API server has responded to this replica.
    pub is_ready: Arc<AtomicBool>,
    /// 1 while the replica holds the Lease.
    pub leading: Gauge,
}

impl LeaderReport {
    /// Returns the health of a replica that is ready once it can observe the Lease.
    #[must_use]
    pub fn health(&self, registry: Registry) -> ProcessHealth {
        let why = "no API server has responded yet, or access to the Lease is denied";
        let is_ready = Arc::clone(&self.is_ready);
        let readiness = move || if is_ready.load(Ordering::Relaxed) { Ok(()) } else { Err(why.to_owned()) };
        ProcessHealth { registry, liveness: Box::new(|| Ok(())), readiness: Box::new(readiness) }
    }
}

/// Acquires the Lease and works while the replica holds it, repeatedly.
pub async fn lead(election: &Election, report: &LeaderReport, work: impl AsyncFn()) -> Infallible {
    let identity = &report.identity;
    loop {
        let held = match election.acquire(|| report.is_ready.store(true, Ordering::Relaxed)).await {
            Ok(held) => held,
            Err(error) => {
                report.is_ready.store(false, Ordering::Relaxed);
                tracing::warn!("cannot acquire the Lease: {}", ErrorChain(&error));
                sleep(AGAIN).await;
                continue;
            }
        };
        tracing::info!(identity, "holds the Lease");
        report.leading.set(1);
        select! {
            biased;
            () = election.renew_until_lost(held) => tracing::warn!(identity, "lost the Lease"),
            () = work() => {}
        }
        report.leading.set(0);
    }
}
