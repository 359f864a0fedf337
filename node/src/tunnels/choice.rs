//! Which gateway carries what leaves a worker. Pure.

/// After so many questions in a row without an answer a gateway is given up: between two and five seconds after it fell silent.
const MISSES: u32 = 2;

/// What is known of the gateways, in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Choice {
    misses: Vec<u32>,
    active: usize,
}

impl Choice {
    /// Of so many gateways, none of which was asked yet; beginning with this one of them.
    pub(crate) fn new(count: usize, first: usize) -> Self {
        Self { misses: vec![0; count], active: if count == 0 { 0 } else { first % count } }
    }

    /// The one that carries all.
    pub(crate) fn active(&self) -> usize {
        self.active
    }

    /// Whether a gateway answers, as far as it is known.
    pub(crate) fn answers(&self, gateway: usize) -> bool {
        self.misses.get(gateway).is_some_and(|misses| *misses == 0)
    }

    /// A gateway answered, or did not. Returns whether another one is active now: only where the active one is given up and there is
    /// one that answers. It stays so when the first one is back.
    pub(crate) fn note(&mut self, gateway: usize, answered: bool) -> bool {
        let Some(misses) = self.misses.get_mut(gateway) else { return false };
        *misses = if answered { 0 } else { misses.saturating_add(1) };
        let is_lost = self.misses.get(self.active).is_none_or(|misses| *misses >= MISSES);
        let next = (0..self.misses.len()).find(|other| self.misses[*other] == 0);
        match next.filter(|_| is_lost) {
            Some(next) => {
                self.active = next;
                true
            }
            None => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn two_misses_change_it_and_nothing_changes_it_back() {
        let mut choice = Choice::new(2, 0);
        assert!(!choice.note(0, false));
        assert!(!choice.note(1, true));
        assert!(choice.note(0, false));
        assert_eq!(choice.active(), 1);
        assert!(!choice.note(0, true));
        assert_eq!(choice.active(), 1);
    }

    #[test]
    fn where_nobody_answers_all_stays() {
        let mut choice = Choice::new(2, 1);
        for _ in 0..5 {
            assert!(!choice.note(0, false));
            choice.note(1, false);
        }
        assert_eq!(choice.active(), 1);
        assert!(choice.note(0, true));
        assert_eq!(choice.active(), 0);
    }

    proptest! {
        #[test]
        fn the_active_one_answered_last_or_nobody_did(
            count in 1..4usize,
            notes in proptest::collection::vec((0..4usize, any::<bool>()), 0..60),
        ) {
            let mut choice = Choice::new(count, 0);
            for (gateway, answered) in notes {
                let before = choice.active();
                let changed = choice.note(gateway, answered);
                prop_assert!(choice.active() < count);
                prop_assert_eq!(changed, before != choice.active());
                prop_assert!(!changed || choice.answers(choice.active()));
            }
        }
    }
}
