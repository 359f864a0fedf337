//! Passes over a store, alone or in turns.

use std::{convert::Infallible, future::pending, sync::Arc, time::Duration};

use anyhow::bail;
use k8s_openapi::api::coordination::v1::Lease;
use keelway_api::jiff::Timestamp;
use keelway_lease::Election;
use keelway_manager::{
    Reports,
    kubernetes::{EventSender, KubernetesStore, LEASE},
    metrics::ManagerMetrics,
    pivot::LEFT_FOR,
};
use keelway_planner::{HIGHEST_NUMBER, Waves, next_term};
use keelway_reconciler::{
    ChangingDocuments, DialledComponents, Driver, Machines, NoProgress, PassContext, PkiMinter, RunControl, StopReason,
    Store, highest_known_term, reconcile_continuously,
};
use keelway_resident::MappedProgram;
use rand::{SeedableRng, rngs::StdRng};
use tokio::{
    sync::Notify,
    time::{sleep, timeout},
};
use tokio_util::sync::CancellationToken;

/// The term of whoever holds the Lease, or held it last: documents and machines may know an older one.
const TERM: &str = "keelway.dev/term";

/// How long nothing was left to be done before the program is given back: metrics and Events are told meanwhile.
const AT_REST: Duration = Duration::from_secs(5);
/// How often that is done otherwise: connections that are kept up need little of it, and Linux maps much around that.
const EACH: Duration = Duration::from_secs(5);

/// How soon the Lease is asked for again that could not be written.
const AGAIN: Duration = Duration::from_secs(1);

/// Passes over a store.
pub(crate) struct StoreReconciler<S> {
    pub(crate) store: Arc<S>,
    pub(crate) machines: Arc<dyn Machines>,
    pub(crate) metrics: Arc<ManagerMetrics>,
    /// In which clusters go to this release of Keelway.
    pub(crate) waves: Waves,
    /// Where Events are told, where that is.
    pub(crate) events: Option<EventSender>,
}

impl<S: Store + ChangingDocuments + 'static> StoreReconciler<S> {
    /// Works until it is told to stop, or another one leads.
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
        let rest = reports.idle_notify();
        let kept = tokio::select! {
            kept = reconcile_continuously(&context, driver, self.waves.clone(), &mut minter, &*self.store, &mut reports) => kept,
            never = release_memory_when_idle(&rest) => match never {},
        };
        self.machines.release_probes().await;
        kept
    }
}

/// Gives back what of the program is resident each time that nothing is left to be done, and once in a while: most of it is for births and
/// changes.
async fn release_memory_when_idle(rest: &Notify) -> Infallible {
    let mapped = match MappedProgram::of_this_process() {
        Ok(mapped) => mapped,
        Err(error) => {
            tracing::debug!(%error, "the manager keeps more of its program resident than it needs");
            return pending().await;
        }
    };
    loop {
        if timeout(EACH, rest.notified()).await.is_ok() {
            sleep(AT_REST).await;
        }
        if let Err(error) = mapped.release() {
            tracing::debug!(%error, "the program could not be given back");
        }
    }
}

/// The term that a Lease tells of; 0 for none. What no leader can have written is passed over: machines and documents know the term, too.
fn term_noted(noted: Option<&str>) -> u64 {
    let Some(text) = noted else { return 0 };
    let term = text.parse().ok().filter(|term| *term < HIGHEST_NUMBER);
    if term.is_none() {
        tracing::warn!(annotation = TERM, value = text, "the Lease tells of a term that no leader can have");
    }
    term.unwrap_or_default()
}

impl StoreReconciler<KubernetesStore> {
    /// Waits for the Lease, and works for as long as it is held. Who has lost it ends: a process that is started anew has nothing left
    /// over from before.
    ///
    /// `connect` makes a client of the thread that renews the Lease: reading all documents anew takes longer than the Lease lasts where there
    /// are many.
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
                bail!("the Lease is lost, and another manager may lead by now")
            }
            led = self.run_as_leader(election, stop) => led,
        };
        self.metrics.set_leading(false);
        election.release().await;
        led
    }

    /// Sees all that there is, and waits for the Lease.
    async fn wait_for_lease(&self, election: &Election) -> Lease {
        while let Err(error) = self.store.seen().await {
            tracing::warn!("{:#}", anyhow::Error::from(error));
        }
        loop {
            match election.acquire(|| self.metrics.set_standing_by()).await {
                Ok(held) => return held,
                Err(error) => tracing::warn!("could not have the Lease: {:#}", anyhow::Error::from(error)),
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
                // Whoever leads next begins after it.
                election.note(TERM, &term.to_string()).await?;
                bail!("a machine obeys the leader of term {term}, and this one is of term {begun}")
            }
        }
    }

    /// The term of this leader: one that was never given, whatever machines are out of reach.
    async fn begin(&self, election: &Election) -> anyhow::Result<u64> {
        if let Some(target) = election.annotation(LEFT_FOR).await?.filter(|target| !target.is_empty()) {
            bail!(
                "the documents have gone to {target}: finish that with keelway pivot --from kubernetes --to {target}"
            );
        }
        self.store.relist().await?;
        let documents = self.store.load().await.unwrap_or_default();
        let known = highest_known_term(&*self.machines, &documents).await;
        let noted = election.annotation(TERM).await?;
        let Some(term) = next_term(known.max(term_noted(noted.as_deref()))) else {
            bail!(
                "term {known} is the last one: set status.issued.term of the Hypervisors and the annotation {TERM} of the Lease \
                 {LEASE} back to what leaders had"
            )
        };
        election.note(TERM, &term.to_string()).await?;
        tracing::info!(term, "begins a term");
        Ok(term)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_term_that_no_leader_can_have_is_passed_over() {
        assert_eq!(term_noted(None), 0);
        assert_eq!(term_noted(Some("7")), 7);
        for forged in ["", "-1", "soon", "9223372036854775807", "9223372036854775808", "18446744073709551615"] {
            assert_eq!(term_noted(Some(forged)), 0, "{forged}");
        }
    }
}
