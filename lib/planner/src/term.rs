//! Terms: which driver's configs a machine accepts, if several drivers send configs.
//!
//! Configs are ordered by the term of their driver first. The term of a leader is higher than all terms in its Lease and in the documents.
//! The leader sends its term to each machine before it observes that machine, and from then on the machine refuses earlier leaders. A driver
//! that has its documents to itself, such as the process on a pipe or a directory, continues with the term of the documents. A config that a
//! machine holds keeps its number, so a settled installation does not change with its leader.
//!
//! A term that one machine reports affects only the configs of that machine. Documents can be older than the terms that machines obey, if a
//! store was restored without its Lease or the documents were moved. Therefore a new leader begins after the term that more than half of the
//! responding machines know.

use alloc::vec::Vec;

use keelway_api::{Documents, machine::MachineState};

/// The highest number that documents can store, because the API server stores an int64.
pub const HIGHEST_NUMBER: u64 = i64::MAX.unsigned_abs();

/// The highest term that is believed of machines. Each leader adds one, so no installation reaches this term, and leaders can still count up
/// from it.
pub const HIGHEST_TOLD_TERM: u64 = 1 << 53;

/// Returns the highest term in the documents. 0: there is none.
#[must_use]
pub fn term_of_documents(documents: &Documents) -> u64 {
    let issued = documents.hypervisors.values().filter_map(|document| document.status.as_ref()?.issued.as_ref());
    issued.map(|issued| issued.term).max().unwrap_or_default()
}

/// Returns the term of a driver that has its documents to itself. 1: no driver has sent a config to the machines yet.
#[must_use]
pub fn term_alone(documents: &Documents) -> u64 {
    term_of_documents(documents).max(1)
}

/// Returns the highest term that more than half of the machines know, from the terms that the responding machines report. 0: there is none.
/// A term that no leader can have counts as 0.
#[must_use]
pub fn majority_term(terms: impl IntoIterator<Item = u64>) -> u64 {
    let mut terms: Vec<u64> = terms.into_iter().map(|term| if term > HIGHEST_TOLD_TERM { 0 } else { term }).collect();
    terms.sort_unstable();
    // Sorted, so more than half of the machines know this term or a later one.
    let middle = terms.len().saturating_sub(1) / 2;
    terms.get(middle).copied().unwrap_or_default()
}

/// Returns the term of a leader that begins after this term. None: documents cannot store it.
#[must_use]
pub fn next_term(known: u64) -> Option<u64> {
    next_number(known)
}

/// Returns the next number. None: documents cannot store it.
pub(crate) fn next_number(number: u64) -> Option<u64> {
    number.checked_add(1).filter(|next| *next <= HIGHEST_NUMBER)
}

/// The term of a config for a machine. A term that the machine received from an earlier leader counts for that machine alone.
pub(crate) fn term_for(state: &MachineState, driver: u64) -> u64 {
    if state.term > HIGHEST_TOLD_TERM { driver } else { driver.max(state.term) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_term_of_most_machines_decides() {
        assert_eq!(majority_term([]), 0);
        assert_eq!(majority_term([7]), 7, "one of one is more than half");
        assert_eq!(majority_term([3, 9]), 3);
        assert_eq!(majority_term([3, 9, 4]), 4);
        assert_eq!(majority_term([9, 3, 9]), 9);
        assert_eq!(majority_term([3, 3, 9, 9]), 3);
        assert_eq!(majority_term([u64::MAX]), 0, "no driver can have this term");
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
