//! Passes until the world is settled.

use std::time::Duration;

use keelway_api::Hypervisor;
use tokio::time::{Instant, sleep_until};

use crate::{Minter, PassContext, PassError, PassOutcome, health, pass, retry_pace::RetryPace};

/// How often a component that is not well is asked again: readiness has no event to wait for.
const RECHECK: Duration = Duration::from_millis(100);
/// How soon a pass follows one without effects, should nothing tell of a change: machines that were out of reach send none.
const LOOK: Duration = Duration::from_secs(2);

/// How far a run goes.
#[derive(Debug, Clone, Copy)]
pub struct RunLimits {
    /// One pass only.
    pub once: bool,
    /// When it ends at the latest.
    pub timeout: Duration,
}

/// How a run ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunOutcome {
    /// There is nothing to do and nothing to wait for.
    Settled,
    /// One pass was asked for, and there is more to do.
    Once,
    /// The time was over before.
    TimedOut,
    /// It was told to stop.
    Stopped,
    /// A machine takes nothing from these documents: no later pass does better.
    Refused,
}

/// Runs passes until the world is settled, the time is over, or it is told to stop. Returns the last pass.
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

/// Waits until another pass makes sense: at once after effects, else when a machine tells of a change, a component that was
/// not well is, or it is time to look again.
async fn until_next(context: &PassContext, outcome: &PassOutcome, deadline: Instant) {
    if outcome.effects > 0 || !outcome.failures.is_empty() {
        return;
    }
    let documents = &outcome.plan.documents;
    let machines: Vec<&Hypervisor> = documents.hypervisors.values().map(|machine| &**machine).collect();
    tokio::select! {
        // In one order, so that a run can be repeated.
        biased;
        () = context.machines.changed(&machines) => {}
        () = health::wait_for_recovery(&*context.components, documents, health::is_not_ready, RECHECK) => {}
        () = context.run.stop.cancelled() => {}
        () = sleep_until(deadline.min(Instant::now() + LOOK)) => {}
    }
}

/// Waits for a moment, or to be told to stop.
async fn wait_until(context: &PassContext, until: Instant) {
    tokio::select! {
        biased;
        () = context.run.stop.cancelled() => {}
        () = sleep_until(until) => {}
    }
}
