//! Which driver decides, where several could.
//!
//! Configs are ordered by the term of their driver first. A leader's term comes from its Lease and from the documents: it is higher than
//! all terms there. The leader tells each machine its term before it looks at that machine, and the machine refuses earlier leaders from
//! then on. A driver that is alone with its documents, as the holder of a pipe or a directory is, goes on with the term of the documents.
//! A config that a machine holds keeps its number, so a settled world stays as it is whoever leads.
//!
//! What one machine claims moves no term but that of its own configs. Documents may be older than what machines were told: a store was
//! restored without its Lease, or the documents moved. A new leader therefore begins after what more than half of the machines that
//! answer know.

use alloc::vec::Vec;

use keelway_api::{Documents, machine::MachineState};

/// The highest number that documents can hold: their API server keeps an int64.
pub const HIGHEST_NUMBER: u64 = i64::MAX.unsigned_abs();

/// The highest term that is believed of machines. Each leader takes one more, so no installation comes there, and leaders can count on
/// from here.
pub const HIGHEST_TOLD_TERM: u64 = 1 << 53;

/// The highest term that documents know; 0 for none.
#[must_use]
pub fn term_of_documents(documents: &Documents) -> u64 {
    let issued = documents.hypervisors.values().filter_map(|document| document.status.as_ref()?.issued.as_ref());
    issued.map(|issued| issued.term).max().unwrap_or_default()
}

/// The term of a driver that is alone with its documents; 1 where nobody drove the machines yet.
#[must_use]
pub fn term_alone(documents: &Documents) -> u64 {
    term_of_documents(documents).max(1)
}

/// The highest term that more than half of the machines know, by what each of those that answer knows; 0 for none. Terms that no leader
/// can have count as none.
#[must_use]
pub fn majority_term(told: impl IntoIterator<Item = u64>) -> u64 {
    let mut told: Vec<u64> = told.into_iter().map(|term| if term > HIGHEST_TOLD_TERM { 0 } else { term }).collect();
    told.sort_unstable();
    // More than half know this one or a later one.
    let middle = told.len().saturating_sub(1) / 2;
    told.get(middle).copied().unwrap_or_default()
}

/// The term of a leader that begins after this one. None: documents cannot hold it.
#[must_use]
pub fn next_term(known: u64) -> Option<u64> {
    next_number(known)
}

/// The number after this one. None: documents cannot hold it.
pub(crate) fn next_number(number: u64) -> Option<u64> {
    number.checked_add(1).filter(|next| *next <= HIGHEST_NUMBER)
}

/// The term of a config for a machine: what the machine was told by a leader before counts for the machine alone.
pub(crate) fn term_for(state: &MachineState, driver: u64) -> u64 {
    if state.term > HIGHEST_TOLD_TERM { driver } else { driver.max(state.term) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_most_machines_know_counts_and_one_machine_moves_nothing() {
        assert_eq!(majority_term([]), 0);
        assert_eq!(majority_term([7]), 7, "one of one is more than half");
        assert_eq!(majority_term([3, 9]), 3);
        assert_eq!(majority_term([3, 9, 4]), 4);
        assert_eq!(majority_term([9, 3, 9]), 9);
        assert_eq!(majority_term([3, 3, 9, 9]), 3);
        assert_eq!(majority_term([u64::MAX]), 0, "no leader has such a term");
    }

    #[test]
    fn the_term_after_the_last_one_does_not_exist() {
        assert_eq!(next_term(0), Some(1));
        assert_eq!(next_term(HIGHEST_NUMBER - 1), Some(HIGHEST_NUMBER));
        for known in [HIGHEST_NUMBER, 1 << 63, u64::MAX] {
            assert_eq!(next_term(known), None);
        }
    }
}
