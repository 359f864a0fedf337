//! The driver of an installation: the only one, or the leader of several.

#[cfg(test)]
mod tests;

use std::{sync::atomic::Ordering, time::Duration};

use futures::{StreamExt, stream};
use keelway_api::{
    Documents, Hypervisor,
    machine::{MachineState, ObservedValue},
};
use keelway_planner::{majority_term, term_alone, term_of_documents};
use tokio::time::timeout;

use super::InstallationReconciler;
use crate::Machines;

/// The time that a machine has to report its newest term. The leader fences each machine before it observes it, so a machine that does not
/// respond in time can be left out.
const ASKED: Duration = Duration::from_secs(2);
/// The number of machines that are queried at one time.
const AT_ONCE: usize = 256;

/// The role in which a program drives the machines of its documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Driver {
    /// The only driver, as the holder of a directory's lock is.
    Alone,
    /// One of several drivers, of which one works at a time.
    Leader {
        /// The term of this leader. It is higher than the terms of all earlier leaders.
        term: u64,
    },
}

/// Why reconciliation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum StopReason {
    /// The run was stopped.
    Stopped,
    /// Most machines obey a later leader.
    Superseded {
        /// The term of the later leader.
        term: u64,
    },
}

/// Returns the highest term in the documents, or the highest term that more than half of the responding machines know, whichever is higher. A
/// new leader uses a higher term.
pub async fn highest_known_term(machines: &dyn Machines, documents: &Documents) -> u64 {
    machines.load_credentials(documents);
    let asked = documents.hypervisors.values().map(|machine| timeout(ASKED, machines.fence(machine, 0)));
    let terms: Vec<u64> = stream::iter(asked)
        .buffer_unordered(AT_ONCE)
        .filter_map(async |term| term.ok().and_then(Result::ok))
        .collect()
        .await;
    majority_term(terms).max(term_of_documents(documents))
}

/// Returns whether a machine remembers the term of its leader: it has an agent, and its document names an installation.
fn remembers(machine: &Hypervisor) -> bool {
    machine.spec.endpoint.has_agent() && machine.status.as_ref().is_some_and(|status| status.installation.is_some())
}

impl InstallationReconciler<'_> {
    /// Returns the term for configs that the driver decides now.
    pub(super) fn term(&self) -> u64 {
        match self.driver {
            Driver::Alone => term_alone(&self.state().documents),
            Driver::Leader { term } => term,
        }
    }

    /// Observes a machine, after it is fenced with the term of this leader: from then on it refuses earlier leaders. `obeys` is true if the machine
    /// is fenced already.
    ///
    /// # Errors
    /// The machine obeys a later leader. The error is the term of that leader, and nothing changed on the machine.
    pub(super) async fn observe_fenced(
        &self,
        machine: &Hypervisor,
        obeys: &mut bool,
    ) -> Result<ObservedValue<MachineState>, u64> {
        let Driver::Leader { term } = self.driver else { return Ok(self.context.machines.observe(machine).await) };
        // An agent that restarts on a machine without a config has forgotten the term, so we fence once more.
        for _ in 0..2 {
            if !*obeys {
                match self.context.machines.fence(machine, term).await {
                    Ok(newest) if newest > term => return Err(newest),
                    Ok(_) => *obeys = true,
                    Err(why) => return Ok(ObservedValue::unreachable(why)),
                }
            }
            let seen = self.context.machines.observe(machine).await;
            match seen.known().map(|state| state.term) {
                Some(newest) if newest > term => {
                    *obeys = false;
                    return Err(newest);
                }
                Some(newest) if newest < term && remembers(machine) => *obeys = false,
                Some(_) | None => return Ok(seen),
            }
        }
        Ok(ObservedValue::unreachable("its agent repeatedly loses the record of its driver"))
    }

    /// Stops the run if most machines obey a later leader. If only a few report one, the fault is theirs, and the run continues.
    pub(super) fn stop_if_superseded(&self) {
        if let Some(term) = self.state().term_of_later_leader() {
            self.superseded.fetch_max(term, Ordering::Relaxed);
            self.context.run.stop.cancel();
        }
    }

    pub(super) fn end(&self) -> StopReason {
        match self.superseded.load(Ordering::Relaxed) {
            0 => StopReason::Stopped,
            term => StopReason::Superseded { term },
        }
    }
}
