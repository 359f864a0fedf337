//! Who keeps the documents, where several could.

#[cfg(test)]
mod tests;

use std::{sync::atomic::Ordering, time::Duration};

use futures::{StreamExt, stream};
use keelway_api::{
    Documents, Hypervisor,
    machine::{MachineState, Seen},
};
use keelway_planner::term_of_documents;
use tokio::time::timeout;

use super::Keeper;
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
pub enum Kept {
    /// It was told to stop.
    Stopped,
    /// A machine was told of a later leader.
    Superseded {
        /// The term of that.
        term: u64,
    },
}

/// The highest term that documents know, and machines that answer: a new leader has a higher one.
pub async fn highest_known_term(machines: &dyn Machines, documents: &Documents) -> u64 {
    machines.introduce(documents);
    let asked = documents.hypervisors.values().map(|machine| timeout(ASKED, machines.fence(machine, 0)));
    let told = stream::iter(asked).buffer_unordered(AT_ONCE);
    let highest = told.fold(0, async |highest, told| told.ok().and_then(Result::ok).unwrap_or_default().max(highest));
    highest.await.max(term_of_documents(documents))
}

/// Whether a machine can be told of a leader: it has an agent, and its document says whose it is.
fn remembers(machine: &Hypervisor) -> bool {
    has_agent(machine) && machine.status.as_ref().is_some_and(|status| status.installation.is_some())
}

impl Keeper<'_> {
    /// The driver's, for configs that it decides now.
    pub(super) fn term(&self) -> u64 {
        match self.driver {
            Driver::Alone => self.state().highest_term(),
            Driver::Leader { term } => term,
        }
    }

    /// Looks at a machine, once that obeys this leader: nobody else changes it from then on. `obeys`: it does already.
    pub(super) async fn look(&self, machine: &Hypervisor, obeys: &mut bool) -> Seen<MachineState> {
        let Driver::Leader { term } = self.driver else { return self.context.machines.observe(machine).await };
        // An agent of a machine that holds nothing forgets it when it ends.
        for _ in 0..2 {
            if !*obeys {
                match self.context.machines.fence(machine, term).await {
                    Ok(newest) if newest > term => return self.superseded(newest),
                    Ok(_) => *obeys = true,
                    Err(why) => return Seen::unreachable(why),
                }
            }
            let seen = self.context.machines.observe(machine).await;
            match seen.known().map(|state| state.term) {
                Some(newest) if newest > term => return self.superseded(newest),
                Some(newest) if newest < term && remembers(machine) => *obeys = false,
                Some(_) | None => return seen,
            }
        }
        Seen::unreachable("its agent forgets who leads again and again")
    }

    /// Another one leads by now: nothing more is done.
    fn superseded(&self, by: u64) -> Seen<MachineState> {
        self.superseded.fetch_max(by, Ordering::Relaxed);
        self.context.run.stop.cancel();
        Seen::unreachable("it obeys a later leader")
    }

    pub(super) fn end(&self) -> Kept {
        match self.superseded.load(Ordering::Relaxed) {
            0 => Kept::Stopped,
            term => Kept::Superseded { term },
        }
    }
}
