//! Runs passes until the documents are settled.

use std::time::Duration;

use keelway_api::Hypervisor;
use tokio::time::{Instant, sleep_until};

use crate::{Minter, PassContext, PassError, PassOutcome, health, pass, retry_pace::RetryPace};

/// How often an unhealthy component is probed: readiness causes no event that we could wait for.
const RECHECK: Duration = Duration::from_millis(100);
/// The time after which a pass follows one without effects if no change was reported: unreachable machines report no changes.
const LOOK: Duration = Duration::from_secs(2);

/// The limits of a run.
#[derive(Debug, Clone, Copy)]
pub struct RunLimits {
    /// Whether the run ends after one pass.
    pub once: bool,
    /// The time after which the run ends.
    pub timeout: Duration,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunOutcome {
    /// There is nothing to do and nothing to wait for.
    Settled,
    /// The run was limited to one pass, and there is more to do.
    Once,
    /// The timeout ended the run.
    TimedOut,
    /// The run was stopped.
    Stopped,
    /// A machine accepts no config from these documents, so that a later pass cannot succeed.
    Refused,
}

/// Runs passes until the documents are settled or a limit is reached, or until the run is stopped. Returns the outcome of the last pass.
pub async fn run(
    context: &PassContext,
    minter: &mut dyn Minter,
    limits: RunLimits,
) -> Result<(RunOutcome, PassOutcome), PassError> {
    let deadline = Instant::now() + limits.timeout;
    let mut pace = RetryPace::new();
    let mut last = Instant::now();
    loop {
        let outcome = pass(context, minter).await?;
        let end = if outcome.settled {
            Some(RunOutcome::Settled)
        } else if context.run.stop.is_cancelled() {
            Some(RunOutcome::Stopped)
        } else if outcome.refused {
            Some(RunOutcome::Refused)
        } else if limits.once {
            Some(RunOutcome::Once)
        } else if Instant::now() >= deadline {
            Some(RunOutcome::TimedOut)
        } else {
            None
        };
        if let Some(end) = end {
            return Ok((end, outcome));
        }
        context.run.progress.waiting(&outcome.plan.waiting);
        let pause = pace.after(outcome.effects, outcome.failures.len(), last.elapsed());
        last = Instant::now();
        until_next(context, &outcome, deadline).await;
        wait_until(context, deadline.min(last + pause)).await;
    }
}

/// Waits until another pass is useful: at once after effects or failures, or else when a machine reports a change, a component becomes healthy, or
/// [`LOOK`] is over.
async fn until_next(context: &PassContext, outcome: &PassOutcome, deadline: Instant) {
    if outcome.effects > 0 || !outcome.failures.is_empty() {
        return;
    }
    let documents = &outcome.plan.documents;
    let machines: Vec<&Hypervisor> = documents.hypervisors.values().map(|machine| &**machine).collect();
    tokio::select! {
        // A fixed order makes a run repeatable.
        biased;
        () = context.machines.changed(&machines) => {}
        () = health::wait_for_recovery(&*context.components, documents, health::is_not_ready, RECHECK) => {}
        () = context.run.stop.cancelled() => {}
        () = sleep_until(deadline.min(Instant::now() + LOOK)) => {}
    }
}

/// Waits until this time, or until the run is stopped.
async fn wait_until(context: &PassContext, until: Instant) {
    tokio::select! {
        biased;
        () = context.run.stop.cancelled() => {}
        () = sleep_until(until) => {}
    }
}
