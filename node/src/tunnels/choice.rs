//! Selects the gateway that carries a worker's outgoing packets. Pure.

/// The number of consecutive checks without a response after which a gateway is lost: two to four seconds after it stopped responding, because
/// the second check follows as soon as the time for a response to the first one is over.
const MISSES: u32 = 2;

/// The state of the gateways, in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct GatewayChoice {
    /// The number of consecutive checks without a response. `None` if the gateway was never checked.
    misses: Vec<Option<u32>>,
    active: usize,
}

impl GatewayChoice {
    /// Creates the state from earlier results. Without an active gateway, it selects the first one from `first` on that responds. If none does,
    /// it selects the first one that was never checked.
    pub(crate) fn new(misses: Vec<Option<u32>>, active: Option<usize>, first: usize) -> Self {
        let count = misses.len();
        let order = |gateway: &usize| {
            let turn = (gateway + count - first % count) % count;
            let rank = match misses[*gateway] {
                Some(0) => 0,
                None => 1,
                Some(_) => 2,
            };
            (rank, turn)
        };
        let active = active.or_else(|| (0..count).min_by_key(order)).unwrap_or_default();
        Self { misses, active }
    }

    /// Returns the active gateway.
    pub(crate) fn active(&self) -> usize {
        self.active
    }

    /// Returns the number of consecutive checks without a response, or `None` if the gateway was never checked.
    pub(crate) fn misses(&self, gateway: usize) -> Option<u32> {
        self.misses.get(gateway).copied().flatten()
    }

    /// Whether a gateway responds. `None` if it was never checked.
    pub(crate) fn answers(&self, gateway: usize) -> Option<bool> {
        self.misses(gateway).map(|misses| misses == 0)
    }

    /// Whether the active gateway missed a check, but is not lost yet.
    pub(crate) fn is_unconfirmed(&self) -> bool {
        self.misses(self.active).is_some_and(|misses| (1..MISSES).contains(&misses))
    }

    /// Records the result of one check of each gateway, `None` for a gateway that could not be checked. It selects another gateway only if the
    /// active one is lost and another one responds. It does not switch back when the first one recovers. Returns whether it switched.
    pub(crate) fn note(&mut self, round: &[Option<bool>]) -> bool {
        for (misses, answered) in self.misses.iter_mut().zip(round) {
            match answered {
                Some(true) => *misses = Some(0),
                Some(false) => *misses = Some(misses.unwrap_or_default().saturating_add(1)),
                None => {}
            }
        }
        let is_lost = self.misses(self.active).is_some_and(|misses| misses >= MISSES);
        let next = (0..self.misses.len()).find(|other| self.answers(*other) == Some(true));
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

    fn new(count: usize, first: usize) -> GatewayChoice {
        GatewayChoice::new(vec![None; count], None, first)
    }

    #[test]
    fn two_misses_switch_the_gateway_and_it_stays() {
        let mut choice = new(2, 0);
        assert!(!choice.is_unconfirmed());
        assert!(!choice.note(&[Some(false), Some(true)]));
        assert!(choice.is_unconfirmed());
        assert!(choice.note(&[Some(false), Some(true)]));
        assert_eq!(choice.active(), 1);
        assert!(!choice.is_unconfirmed());
        assert!(!choice.note(&[Some(true), Some(true)]));
        assert_eq!(choice.active(), 1);
        assert!(!choice.note(&[Some(true), Some(false)]));
        assert!(!choice.note(&[Some(true), Some(true)]));
        assert!(!choice.note(&[Some(true), Some(false)]));
        assert_eq!(choice.active(), 1);
    }

    #[test]
    fn without_any_response_the_gateway_stays() {
        let mut choice = new(2, 1);
        assert_eq!(choice.answers(0), None);
        // Both responded until the uplink failed.
        assert!(!choice.note(&[Some(true), Some(true)]));
        for _ in 0..5 {
            assert!(!choice.note(&[Some(false), Some(false)]));
        }
        assert!(!choice.is_unconfirmed(), "all gateways are asked as often as before");
        assert_eq!(choice.active(), 1);
        assert!(choice.note(&[Some(true), Some(false)]));
        assert_eq!(choice.active(), 0);
    }

    #[test]
    fn an_unchecked_gateway_does_not_count_as_responding() {
        let mut choice = new(2, 0);
        for _ in 0..3 {
            assert!(!choice.note(&[Some(false), None]));
        }
        assert_eq!((choice.active(), choice.answers(1)), (0, None));
    }

    #[test]
    fn the_state_of_gateways_survives_a_new_list() {
        assert_eq!(GatewayChoice::new(vec![Some(0), Some(3)], Some(1), 0).active(), 1);
        // The active gateway was removed. Its index must not carry over to a gateway that is lost.
        assert_eq!(GatewayChoice::new(vec![Some(7), Some(0), None], None, 0).active(), 1);
        assert_eq!(GatewayChoice::new(vec![Some(7), Some(1), None], None, 0).active(), 2);
        assert_eq!(GatewayChoice::new(vec![None, None, None], None, 5).active(), 2);
        assert_eq!(GatewayChoice::new(vec![], None, 5).active(), 0);
        // After one earlier miss, one more makes the gateway lost.
        assert!(GatewayChoice::new(vec![Some(1), Some(0)], Some(0), 0).note(&[Some(false), Some(true)]));
    }

    proptest! {
        #[test]
        fn the_active_gateway_responded_last_or_none_did(
            first in 0..4usize,
            rounds in (1..4usize).prop_flat_map(|count| {
                proptest::collection::vec(proptest::collection::vec(any::<Option<bool>>(), count), 1..30)
            }),
        ) {
            let count = rounds[0].len();
            let mut choice = new(count, first);
            for round in rounds {
                let before = choice.active();
                let changed = choice.note(&round);
                prop_assert!(choice.active() < count);
                prop_assert_eq!(changed, before != choice.active());
                prop_assert!(!changed || choice.answers(choice.active()) == Some(true));
            }
        }
    }
}
