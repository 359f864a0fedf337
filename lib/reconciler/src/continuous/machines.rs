//! The task for all machines together: their status, certificates and identities.

use std::{collections::BTreeMap, time::Duration};

use keelway_api::{jiff::Timestamp, name::HypervisorName};
use keelway_planner::{Connections, PassObservation, PlanScope, identify_machines, plan_part, refuse, wait_for_clock};
use tokio::time::{Instant, sleep_until};
use tracing::{Instrument as _, info_span};

use super::{InstallationReconciler, LONGEST_LOOK, Task, recheck::round};
use crate::{
    PassError, PassOutcome, certificates, certify::certify, clocks::clocks_ahead, pass::is_settled,
    retry_pace::RetryPace,
};

/// How long changes of machines are collected before their status is written. No task waits for the status.
const GATHER: Duration = Duration::from_millis(200);

impl InstallationReconciler<'_> {
    /// Passes over all machines until the run is stopped.
    pub(super) async fn machines(&self) {
        let wake = self.state().all_machines.clone();
        let mut pace = RetryPace::new();
        let mut last = Instant::now();
        let mut number = 0_u64;
        while !self.is_stopped() {
            number += 1;
            let (span, began) = (info_span!("pass", pass = number), Instant::now());
            let passed = self.pass_machines().instrument(span.clone()).await;
            let took = began.elapsed();
            let elapsed = std::mem::replace(&mut last, Instant::now()).elapsed();
            let mut settled = false;
            let (again, pause) = match passed {
                Ok(None) => (true, Duration::ZERO),
                Ok(Some(outcome)) => {
                    span.in_scope(|| self.watcher().passed(&Task::Machines, &outcome, took));
                    settled = outcome.settled;
                    let again = outcome.effects > 0 || !outcome.failures.is_empty();
                    (again, pace.after(outcome.effects, outcome.failures.len(), elapsed))
                }
                Err(error) => {
                    span.in_scope(|| self.watcher().failed(&Task::Machines, &error, took));
                    (true, pace.after(0, 1, elapsed))
                }
            };
            if !again {
                let again = async {
                    if settled {
                        // This pass sends no request. It shows that passes continue.
                        round(&Task::Machines).await;
                    } else {
                        sleep_until(last + LONGEST_LOOK).await;
                    }
                };
                tokio::select! {
                    biased;
                    () = self.context.run.stop.cancelled() => return,
                    () = wake.notified() => {}
                    () = again => {}
                }
            }
            self.pause_until(last + pause.max(GATHER)).await;
        }
    }

    /// One pass. Returns none if the documents changed during the pass.
    async fn pass_machines(&self) -> Result<Option<PassOutcome>, PassError> {
        let (all, loaded, mut seen, heard) = {
            let state = self.state();
            let heard = state.machines.iter().filter_map(|(name, machine)| Some((name.clone(), machine.last_contact?)));
            let heard: BTreeMap<HypervisorName, Timestamp> = heard.collect();
            let seen = state.machines.iter().filter_map(|(name, machine)| Some((name.clone(), machine.seen.clone()?)));
            let seen = PassObservation { machines: seen.collect(), ..PassObservation::default() };
            (state.documents.clone(), state.common.documents().clone(), seen, heard)
        };
        let mut documents = loaded.clone();
        identify_machines(&mut documents, || self.minter().id()).map_err(PassError::Id)?;
        seen.certificates = certificates::read(&documents);
        refuse(&documents, &mut seen);
        let now = self.now();
        let connections = Connections { documents: &all, last_contact: &heard };
        let mut plan = plan_part(documents, PlanScope::Machines(connections), &seen, now).map_err(PassError::Faults)?;
        wait_for_clock(&mut plan, |documents| clocks_ahead(&*self.context.machines, documents, now));
        self.minter().mint(&mut plan.documents, &plan.mint, now).map_err(PassError::Mint)?;
        plan.documents.share_equal(&loaded);
        if !self.save_part(&loaded, &plan.documents).await? {
            return Ok(None);
        }
        let met_anew = self.context.machines.load_credentials(&plan.documents);
        self.state().wake_machines(&met_anew);
        if all.installation() != plan.documents.installation() || !plan.mint.is_empty() {
            self.state().wake_all();
        }
        let (mut effects, mut failures) = (0, Vec::new());
        for (done, failed) in certify(self.context, &plan).await {
            effects += done;
            failures.extend(failed);
        }
        let settled = is_settled(&plan);
        Ok(Some(PassOutcome { plan, effects, failures, refused: false, settled }))
    }
}
