//! Which driver decides, where several could.
//!
//! Configs are ordered by the term of their driver first. One that is alone with its documents, as whoever holds a pipe or a directory is,
//! goes on with the highest term that documents or machines know. A leader, who may not be the only one, has one that is higher than all of
//! them; it tells each machine so before it looks at it, and whoever led before is refused there from then on. So a config that a machine
//! holds keeps its number, and a world that is settled stays as it is whoever leads.

use keelway_api::{Documents, Hypervisor, hypervisor::Applied, machine::MachineState};

use crate::Observation;

/// The highest term that documents or machines know; 1 where nobody drove them yet.
#[must_use]
pub fn highest_term(documents: &Documents, seen: &Observation) -> u64 {
    let told = seen.machines.values().filter_map(|state| state.known()).map(term_of_machine).max();
    term_of_documents(documents).max(told.unwrap_or_default()).max(1)
}

/// The highest term that documents know; 0 for none.
#[must_use]
pub fn term_of_documents(documents: &Documents) -> u64 {
    documents.hypervisors.values().map(|document| term_of_document(document)).max().unwrap_or_default()
}

/// The highest term that a machine knows; 0 for none.
#[must_use]
pub fn term_of_machine(state: &MachineState) -> u64 {
    state.term.max(state.applied.as_ref().map_or(0, |applied| applied.term))
}

fn term_of_document(document: &Hypervisor) -> u64 {
    let term = |applied: &Option<Applied>| applied.as_ref().map_or(0, |applied| applied.term);
    document.status.as_ref().map_or(0, |status| term(&status.issued).max(term(&status.applied)))
}
