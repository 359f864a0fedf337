//! Passes for as long as documents are to be kept.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::{Context, Minter, Outcome, PassError, health, pace::Pace, pass};

/// How soon a pass follows one with nothing to do: certificates come to their time, and machines are heard of again
/// (`Hypervisor.status.lastHeartbeatTime`).
const HEARTBEAT: Duration = Duration::from_secs(300);
/// How soon at first a pass follows one that waits, should nothing tell of a change: machines that are out of reach send none. Each
/// further one in a row doubles it.
const LOOK: Duration = Duration::from_secs(2);
/// The longest of these.
const LONGEST_LOOK: Duration = Duration::from_secs(30);
/// How often a component that is not well is asked again: readiness has no event to wait for.
const RECHECK: Duration = Duration::from_millis(500);

/// Whoever has documents that change while they are kept.
#[async_trait::async_trait]
pub trait Changing: Send + Sync {
    /// Returns when documents may be others than at the last load.
    async fn changed(&self);
}

/// What is told of passes, one after the other.
pub trait Watcher: Send {
    /// A pass ended.
    fn passed(&mut self, outcome: &Outcome);
    /// A pass could not be carried out.
    fn failed(&mut self, error: &PassError);
}

/// Runs passes until it is told to stop. What a broken document or machine keeps from being done is done once that is mended.
pub async fn keep(context: &Context, minter: &mut dyn Minter, documents: &dyn Changing, watcher: &mut dyn Watcher) {
    let mut pace = Pace::new();
    let mut look = LOOK;
    let mut last = Instant::now();
    while !context.run.stop.is_cancelled() {
        let outcome = pass(context, minter).await;
        let elapsed = std::mem::replace(&mut last, Instant::now()).elapsed();
        let pause = match &outcome {
            Ok(outcome) => {
                watcher.passed(outcome);
                context.run.progress.waiting(&outcome.plan.waiting);
                pace.after(outcome.effects, outcome.failures.len(), elapsed)
            }
            Err(error) => {
                watcher.failed(error);
                pace.after(0, 1, elapsed)
            }
        };
        let idle = outcome.as_ref().is_ok_and(|outcome| outcome.effects == 0 && outcome.failures.is_empty());
        look = if idle { (look * 2).min(LONGEST_LOOK) } else { LOOK };
        let outcome = outcome.ok();
        tokio::select! {
            biased;
            () = context.run.stop.cancelled() => return,
            () = until_next(context, outcome.as_ref(), documents, look) => {}
        }
        tokio::select! {
            biased;
            () = context.run.stop.cancelled() => return,
            () = sleep_until(last + pause) => {}
        }
    }
}

/// Waits until another pass makes sense.
async fn until_next(context: &Context, outcome: Option<&Outcome>, documents: &dyn Changing, look: Duration) {
    let Some(outcome) = outcome else {
        // Its pause is over at some time: the store may answer by then.
        return;
    };
    if outcome.effects > 0 || !outcome.failures.is_empty() {
        return;
    }
    let known = &outcome.plan.documents;
    let machines: Vec<_> = known.hypervisors.values().collect();
    let longest = if outcome.settled { HEARTBEAT } else { look };
    tokio::select! {
        // In one order, so that a run can be repeated.
        biased;
        () = documents.changed() => {}
        () = context.machines.changed(&machines) => {}
        () = health::until_better(&*context.components, known, RECHECK) => {}
        () = sleep_until(Instant::now() + longest) => {}
    }
}
