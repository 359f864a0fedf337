//! Reconciles a store, as the only manager or as the holder of a Lease.

use std::{sync::Arc, time::Duration};

use anyhow::bail;
use k8s_openapi::api::coordination::v1::Lease;
use keelway_api::jiff::Timestamp;
use keelway_lease::Election;
use keelway_manager::{Reports, metrics::ManagerMetrics};
use keelway_planner::{HIGHEST_NUMBER, Waves, next_term};
use keelway_reconciler::{
    ChangingDocuments, DialledComponents, Driver, Machines, NoProgress, PassContext, PkiMinter, RunControl, StopReason,
    Store, highest_known_term, reconcile_continuously,
};
use keelway_stores::{
    kubernetes::{EventSender, KubernetesStore, LEASE},
    pivot::LEFT_FOR,
};
use rand::{SeedableRng, rngs::StdRng};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// The annotation with the term of the last leader. Documents and machines may know only an earlier one.
const TERM: &str = "keelway.dev/term";

/// The pause after the Lease could not be acquired.
const AGAIN: Duration = Duration::from_secs(1);

/// Reconciles the documents of a store.
pub(crate) struct StoreReconciler<S> {
    pub(crate) store: Arc<S>,
    pub(crate) machines: Arc<dyn Machines>,
    pub(crate) metrics: Arc<ManagerMetrics>,
    /// The waves in which clusters move to this release of Keelway.
    pub(crate) waves: Waves,
    /// The sender of Events; none if the store is not a management cluster.
    pub(crate) events: Option<EventSender>,
}

impl<S: Store + ChangingDocuments + 'static> StoreReconciler<S> {
    /// Reconciles until it is stopped, or until another leader supersedes this one.
    pub(crate) async fn run_passes(&self, driver: Driver, stop: &CancellationToken) -> StopReason {
        self.metrics.set_leading(true);
        let components = Arc::new(DialledComponents::new(self.machines.clone()));
        let run = RunControl { stop: stop.child_token(), progress: Arc::new(NoProgress) };
        let (store, machines) = (self.store.clone(), self.machines.clone());
        let context = PassContext { store, machines, components, clock: Arc::new(Timestamp::now), run };
        let mut minter = PkiMinter::new(StdRng::from_rng(&mut rand::rng()));
        let mut reports = Reports::new(self.metrics.clone());
        if let Some(teller) = &self.events {
            reports = reports.with_events(teller.clone());
        }
        reconcile_continuously(&context, driver, self.waves.clone(), &mut minter, &*self.store, &mut reports).await
    }
}

/// Returns the term in the annotation of a Lease; 0 for none. A term that no leader can have written is ignored, because machines and documents know
/// the term, too.
fn term_noted(noted: Option<&str>) -> u64 {
    let Some(text) = noted else { return 0 };
    let term = text.parse().ok().filter(|term| *term < HIGHEST_NUMBER);
    if term.is_none() {
        tracing::warn!(annotation = TERM, value = text, "ignoring the term in the Lease, which is not valid");
    }
    term.unwrap_or_default()
}

impl StoreReconciler<KubernetesStore> {
    /// Waits for the Lease, and reconciles as long as this manager holds it. If it loses the Lease, it returns an error, so that the process ends:
    /// a new process has no state from before.
    ///
    /// `connect` creates a client for the thread that renews the Lease. That thread is separate, because loading many documents can take longer than
    /// the Lease is valid.
    pub(crate) async fn run_with_lease(
        &self,
        election: &Election,
        connect: impl FnOnce() -> kube::Result<kube::Client> + Send + 'static,
        stop: &CancellationToken,
    ) -> anyhow::Result<()> {
        let held = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            held = self.wait_for_lease(election) => held,
        };
        tracing::info!("leads");
        let led = tokio::select! {
            biased;
            kept = election.renew_on_own_thread(held, connect) => {
                kept?;
                bail!("lost the Lease; another manager may hold it")
            }
            led = self.run_as_leader(election, stop) => led,
        };
        self.metrics.set_leading(false);
        election.release().await;
        led
    }

    /// Waits for the initial lists of the store, and then for the Lease.
    async fn wait_for_lease(&self, election: &Election) -> Lease {
        while let Err(error) = self.store.seen().await {
            tracing::warn!("{:#}", anyhow::Error::from(error));
        }
        loop {
            match election.acquire(|| self.metrics.set_standing_by()).await {
                Ok(held) => return held,
                Err(error) => tracing::warn!("could not acquire the Lease: {:#}", anyhow::Error::from(error)),
            }
            sleep(AGAIN).await;
        }
    }

    async fn run_as_leader(&self, election: &Election, stop: &CancellationToken) -> anyhow::Result<()> {
        let begun = tokio::select! {
            () = stop.cancelled() => return Ok(()),
            begun = self.begin(election) => begun?,
        };
        match self.run_passes(Driver::Leader { term: begun }, stop).await {
            StopReason::Stopped => Ok(()),
            StopReason::Superseded { term } => {
                // The next leader uses a higher term.
                election.note(TERM, &term.to_string()).await?;
                bail!(
                    "a machine obeys the leader of term {term}, which is newer than the term of this manager ({begun})"
                )
            }
        }
    }

    /// Returns the term of this leader. It was never used before, even if machines are unreachable.
    async fn begin(&self, election: &Election) -> anyhow::Result<u64> {
        if let Some(target) = election.annotation(LEFT_FOR).await?.filter(|target| !target.is_empty()) {
            bail!(
                "the documents are moving to {target}; finish the move with keelway pivot --from kubernetes --to {target}"
            );
        }
        self.store.relist().await?;
        let documents = self.store.load().await.unwrap_or_default();
        let known = highest_known_term(&*self.machines, &documents).await;
        let noted = election.annotation(TERM).await?;
        let Some(term) = next_term(known.max(term_noted(noted.as_deref()))) else {
            bail!(
                "term {known} is the last possible one; set status.issued.term of the Hypervisors and the annotation {TERM} of the \
                 Lease {LEASE} to the term of the last leader"
            )
        };
        election.note(TERM, &term.to_string()).await?;
        tracing::info!(term, "starting a term");
        Ok(term)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_term_is_ignored() {
        assert_eq!(term_noted(None), 0);
        assert_eq!(term_noted(Some("7")), 7);
        for forged in ["", "-1", "soon", "9223372036854775807", "9223372036854775808", "18446744073709551615"] {
            assert_eq!(term_noted(Some(forged)), 0, "{forged}");
        }
    }
}
