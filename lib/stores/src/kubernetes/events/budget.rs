//! Limits the Events of an object, so that documents that change back and forth do not overload the API server.

use std::collections::BTreeMap;

use keelway_api::{
    document::DocumentName,
    jiff::{SignedDuration, Timestamp},
};

/// The number of Events that an object can have at once: more than the creation and the growth of the largest cluster cause.
const AT_ONCE: i64 = 200;
/// The time after which an object can have one more Event.
const EACH: SignedDuration = SignedDuration::from_secs(10);

/// When the budget of each object is full again. Objects with a full budget are not stored.
#[derive(Debug, Default)]
pub(super) struct Budget(BTreeMap<DocumentName, Timestamp>);

impl Budget {
    /// Returns whether one more Event may be published, and counts it.
    pub(super) fn try_spend(&mut self, name: &DocumentName, now: Timestamp) -> bool {
        self.0.retain(|_, full| *full > now);
        let full = self.0.get(name).copied().unwrap_or(now) + EACH;
        let takes = full.duration_since(now).as_secs() <= AT_ONCE * EACH.as_secs();
        if takes {
            self.0.insert(name.clone(), full);
        }
        takes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_object_has_its_own_budget() {
        let (one, other) = ("hv-1".parse().unwrap(), "hv-2".parse().unwrap());
        let (one, other) = (DocumentName::Hypervisor(one), DocumentName::Hypervisor(other));
        let mut budget = Budget::default();
        let start = Timestamp::UNIX_EPOCH;
        let allowed = (0..300).filter(|_| budget.try_spend(&one, start)).count();
        assert_eq!(allowed, 200);
        assert!(budget.try_spend(&other, start));
        assert!(budget.try_spend(&one, start + EACH));
        assert!(!budget.try_spend(&one, start + EACH));
        assert!(budget.try_spend(&other, start + 300 * EACH));
        assert_eq!(budget.0.len(), 1, "what has all of its own is forgotten");
    }
}
