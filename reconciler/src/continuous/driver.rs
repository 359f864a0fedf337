//! Who keeps the documents, where several could.

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
use crate::{Machines, connected::has_agent};

/// How long a machine may take to tell whom it obeys. One that says nothing is told of the leader before anything else is done there.
const ASKED: Duration = Duration::from_secs(2);
/// Machines that are asked at one time.
const AT_ONCE: usize = 256;

/// As which driver of its machines somebody keeps documents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Driver {
    /// The only one, as whoever has the lock of a directory is.
    Alone,
    /// One of several, of whom one works at a time.
    Leader {
        /// Higher than those of all before.
        term: u64,
    },
}

/// Why documents are kept no longer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum StopReason {
    /// It was told to stop.
    Stopped,
    /// Most machines were told of a later leader.
    Superseded {
        /// The term of that.
        term: u64,
    },
}

/// The highest term that documents know, or more than half of the machines that answer: a new leader has a higher one.
pub async fn highest_known_term(machines: &dyn Machines, documents: &Documents) -> u64 {
    machines.load_credentials(documents);
    let asked = documents.hypervisors.values().map(|machine| timeout(ASKED, machines.fence(machine, 0)));
    let told: Vec<u64> = stream::iter(asked)
        .buffer_unordered(AT_ONCE)
        .filter_map(async |told| told.ok().and_then(Result::ok))
        .collect()
        .await;
    majority_term(told).max(term_of_documents(documents))
}

/// Whether a machine can be told of a leader: it has an agent, and its document says whose it is.
fn remembers(machine: &Hypervisor) -> bool {
    has_agent(machine) && machine.status.as_ref().is_some_and(|status| status.installation.is_some())
}

impl InstallationReconciler<'_> {
    /// The driver's, for configs that it decides now.
    pub(super) fn term(&self) -> u64 {
        match self.driver {
            Driver::Alone => term_alone(&self.state().documents),
            Driver::Leader { term } => term,
        }
    }

    /// Looks at a machine, once that obeys this leader: nobody else changes it from then on. `obeys`: it does already.
    ///
    /// # Errors
    /// The machine says that it obeys a later leader, of this term: nothing is done there.
    pub(super) async fn observe_fenced(
        &self,
        machine: &Hypervisor,
        obeys: &mut bool,
    ) -> Result<ObservedValue<MachineState>, u64> {
        let Driver::Leader { term } = self.driver else { return Ok(self.context.machines.observe(machine).await) };
        // An agent of a machine that holds nothing forgets it when it ends.
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
        Ok(ObservedValue::unreachable("its agent forgets who leads again and again"))
    }

    /// Ends where most machines obey a later leader. Where a few say so, that is their own fault.
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
