//! Selects the gateway that carries a worker's outgoing packets. Pure: the time is an argument.
//!
//! Each worker prefers another gateway, by a hash of both keys (rendezvous hashing). If a gateway fails, its workers spread over all others, and each
//! other worker keeps its gateway.

use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::time::Instant;

use keelway_vpn::PublicKey;

/// The number of consecutive checks without a response after which a gateway is lost: two to four seconds after it stopped responding, because
/// the second check follows as soon as the time for a response to the first one is over.
const MISSES: u32 = 2;
/// How long a preferred gateway must have responded before a worker returns to it, at least. A gateway that fails repeatedly must not take its workers
/// along each time.
const RETURN_AFTER: Duration = Duration::from_secs(180);
/// The longest further time, which differs between workers, so that they do not all return at the same moment.
const JITTER: Duration = Duration::from_secs(120);

/// How much a worker prefers a gateway. The highest value wins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GatewayPreference(u64);

impl GatewayPreference {
    /// Derives the preference from the keys of both ends.
    pub(crate) fn of(worker: &PublicKey, gateway: &PublicKey) -> Self {
        let digest = Sha256::new().chain_update(worker.to_hex()).chain_update(gateway.to_hex()).finalize();
        Self(digest.iter().take(8).fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    fn return_after(self) -> Duration {
        let share = u32::try_from(self.0 & 0xffff).unwrap_or_default();
        RETURN_AFTER + JITTER * share / 0x1_0000
    }
}

/// The state of one gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct GatewayState {
    preference: GatewayPreference,
    /// The number of consecutive checks without a response. `None` if the gateway was never checked.
    misses: Option<u32>,
    /// Since when the gateway is not lost.
    responds_since: Option<Instant>,
}

impl GatewayState {
    /// Returns the state of a gateway that was never checked.
    pub(crate) fn new(preference: GatewayPreference) -> Self {
        Self { preference, misses: None, responds_since: None }
    }

    fn note(&mut self, answered: bool, now: Instant) {
        if answered {
            self.misses = Some(0);
            self.responds_since.get_or_insert(now);
            return;
        }
        self.misses = Some(self.misses.unwrap_or_default().saturating_add(1));
        if self.is_lost() {
            self.responds_since = None;
        }
    }

    fn answers(&self) -> Option<bool> {
        self.misses.map(|misses| misses == 0)
    }

    fn is_lost(&self) -> bool {
        self.misses.is_some_and(|misses| misses >= MISSES)
    }

    fn may_be_returned_to(&self, now: Instant) -> bool {
        let responds_for = self.responds_since.map(|since| now.saturating_duration_since(since));
        self.answers() == Some(true) && responds_for >= Some(self.preference.return_after())
    }
}

/// The state of the gateways, in their order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct GatewayChoice {
    gateways: Vec<GatewayState>,
    active: usize,
}

impl GatewayChoice {
    /// Creates the state from earlier states. Without an active gateway, it selects the preferred one of those that respond. If none does, it selects
    /// the preferred one of those that were never checked.
    pub(crate) fn new(gateways: Vec<GatewayState>, active: Option<usize>) -> Self {
        let order = |at: &usize| {
            let gateway = &gateways[*at];
            let rank = match gateway.answers() {
                Some(true) => 2,
                None => 1,
                Some(false) => 0,
            };
            (rank, gateway.preference)
        };
        let active = active.or_else(|| (0..gateways.len()).max_by_key(order)).unwrap_or_default();
        Self { gateways, active }
    }

    /// Returns the active gateway.
    pub(crate) fn active(&self) -> usize {
        self.active
    }

    /// Returns the state of a gateway, to create a choice with other gateways beside it.
    pub(crate) fn state(&self, gateway: usize) -> Option<GatewayState> {
        self.gateways.get(gateway).copied()
    }

    /// Whether a gateway responds. `None` if it was never checked.
    pub(crate) fn answers(&self, gateway: usize) -> Option<bool> {
        self.gateways.get(gateway).and_then(GatewayState::answers)
    }

    /// Whether the active gateway missed a check, but is not lost yet.
    pub(crate) fn is_unconfirmed(&self) -> bool {
        self.gateways.get(self.active).is_some_and(|active| active.answers() == Some(false) && !active.is_lost())
    }

    /// Records the result of one check of each gateway, `None` for a gateway that could not be checked. It selects another gateway if the active one
    /// is lost and another one responds, or if a preferred one has responded for some minutes. Returns whether it switched.
    pub(crate) fn note(&mut self, round: &[Option<bool>], now: Instant) -> bool {
        for (gateway, answered) in self.gateways.iter_mut().zip(round) {
            if let Some(answered) = answered {
                gateway.note(*answered, now);
            }
        }
        let next = self.next(now);
        self.active = next.unwrap_or(self.active);
        next.is_some()
    }

    fn next(&self, now: Instant) -> Option<usize> {
        let active = self.gateways.get(self.active)?;
        let is_better = |other: &GatewayState| {
            if active.is_lost() {
                return other.answers() == Some(true);
            }
            other.preference > active.preference && other.may_be_returned_to(now)
        };
        let better = self.gateways.iter().enumerate().filter(|(_, other)| is_better(other));
        better.max_by_key(|(_, other)| other.preference).map(|(at, _)| at)
    }
}

#[cfg(test)]
mod tests {
    use keelway_vpn::PrivateKey;
    use proptest::prelude::*;

    use super::*;

    /// Gateways that were never checked, of which the first is preferred, then the second, and so on.
    fn fresh(count: u64) -> Vec<GatewayState> {
        (0..count).map(|at| GatewayState::new(GatewayPreference((count - at) << 32))).collect()
    }

    fn new(count: u64, active: usize) -> GatewayChoice {
        GatewayChoice::new(fresh(count), Some(active))
    }

    fn with_misses(misses: &[Option<u32>]) -> Vec<GatewayState> {
        let states = fresh(misses.len() as u64).into_iter().zip(misses);
        states.map(|(state, misses)| GatewayState { misses: *misses, ..state }).collect()
    }

    #[test]
    fn two_misses_switch_the_gateway_and_it_stays() {
        let now = Instant::now();
        let mut choice = new(2, 0);
        assert!(!choice.is_unconfirmed());
        assert!(!choice.note(&[Some(false), Some(true)], now));
        assert!(choice.is_unconfirmed());
        assert!(choice.note(&[Some(false), Some(true)], now));
        assert_eq!(choice.active(), 1);
        assert!(!choice.is_unconfirmed());
        for answered in [true, false, true, false] {
            assert!(!choice.note(&[Some(true), Some(answered)], now));
        }
        assert_eq!(choice.active(), 1);
    }

    #[test]
    fn a_worker_returns_once_its_preferred_gateway_has_responded_for_minutes() {
        let start = Instant::now();
        let mut choice = new(3, 0);
        for _ in 0..2 {
            choice.note(&[Some(false), Some(true), Some(true)], start);
        }
        assert_eq!(choice.active(), 1, "the next in the order of preference");
        let at = |seconds| start + Duration::from_secs(seconds);
        assert!(!choice.note(&[Some(true), Some(true), Some(true)], at(10)));
        // A lost check does not count. A lost gateway begins again.
        assert!(!choice.note(&[Some(false), Some(true), Some(true)], at(100)));
        assert!(!choice.note(&[Some(true), Some(true), Some(true)], at(102)));
        let mut failed = choice.clone();
        assert!(!choice.note(&[Some(true), Some(true), Some(true)], at(189)));
        assert!(choice.note(&[Some(true), Some(true), Some(true)], at(190)));
        assert_eq!(choice.active(), 0);
        for second in [180, 182] {
            failed.note(&[Some(false), Some(true), Some(true)], at(second));
        }
        assert!(!failed.note(&[Some(true), Some(true), Some(true)], at(190)));
        assert!(!failed.note(&[Some(true), Some(true), Some(true)], at(369)));
        assert!(failed.note(&[Some(true), Some(true), Some(true)], at(370)));
    }

    #[test]
    fn without_any_response_the_gateway_stays() {
        let now = Instant::now();
        let mut choice = new(2, 1);
        assert_eq!(choice.answers(0), None);
        // Both responded until the uplink failed.
        assert!(!choice.note(&[Some(true), Some(true)], now));
        for _ in 0..5 {
            assert!(!choice.note(&[Some(false), Some(false)], now));
        }
        assert!(!choice.is_unconfirmed(), "all gateways are asked as often as before");
        assert_eq!(choice.active(), 1);
        assert!(choice.note(&[Some(true), Some(false)], now));
        assert_eq!(choice.active(), 0);
    }

    #[test]
    fn an_unchecked_gateway_does_not_count_as_responding() {
        let now = Instant::now();
        let mut choice = new(2, 0);
        for _ in 0..3 {
            assert!(!choice.note(&[Some(false), None], now));
        }
        assert_eq!((choice.active(), choice.answers(1)), (0, None));
    }

    #[test]
    fn the_state_of_gateways_survives_a_new_list() {
        let chosen = |misses: &[Option<u32>], active| GatewayChoice::new(with_misses(misses), active).active();
        assert_eq!(chosen(&[Some(0), Some(3)], Some(1)), 1);
        // The active gateway was removed. Its index must not carry over to a gateway that is lost.
        assert_eq!(chosen(&[Some(7), Some(0), None], None), 1);
        assert_eq!(chosen(&[Some(7), Some(1), None], None), 2);
        assert_eq!(chosen(&[None, None, None], None), 0);
        assert_eq!(chosen(&[], None), 0);
        // After one earlier miss, one more makes the gateway lost.
        let mut choice = GatewayChoice::new(with_misses(&[Some(1), Some(0)]), Some(0));
        assert!(choice.note(&[Some(false), Some(true)], Instant::now()));
    }

    #[test]
    fn workers_spread_over_gateways_and_those_of_a_lost_one_over_the_rest() {
        let key = |byte: u8| PrivateKey::from_bytes([byte; 32]).public();
        let (gateways, workers) = ([1, 2, 3, 4].map(key), 50..=249);
        let mut now = [0u32; 4];
        let mut after = [0u32; 4];
        for worker in workers.map(key) {
            let states = gateways.map(|gateway| GatewayState::new(GatewayPreference::of(&worker, &gateway)));
            let mut choice = GatewayChoice::new(states.to_vec(), None);
            now[choice.active()] += 1;
            let was = choice.active();
            for _ in 0..2 {
                choice.note(&[Some(false), Some(true), Some(true), Some(true)], Instant::now());
            }
            assert!(was == 0 || choice.active() == was, "a worker of another gateway stays");
            after[choice.active()] += 1;
        }
        assert!(now.iter().all(|workers| (30..=70).contains(workers)), "{now:?}");
        assert!(after[0] == 0 && after[1..].iter().all(|workers| (45..=90).contains(workers)), "{after:?}");
    }

    proptest! {
        #[test]
        fn the_active_gateway_responded_last_or_none_did(
            first in 0..4usize,
            rounds in (1..4usize).prop_flat_map(|count| {
                let round = (proptest::collection::vec(any::<Option<bool>>(), count), 0..200u64);
                proptest::collection::vec(round, 1..30)
            }),
        ) {
            let count = rounds[0].0.len();
            let mut choice = new(count as u64, first % count);
            let mut now = Instant::now();
            for (round, seconds) in rounds {
                now += Duration::from_secs(seconds);
                let before = choice.clone();
                let changed = choice.note(&round, now);
                prop_assert!(choice.active() < count);
                prop_assert_eq!(changed, before.active() != choice.active());
                prop_assert!(!changed || choice.answers(choice.active()) == Some(true));
                // A worker leaves a gateway that responds only for a preferred one.
                let left = choice.state(before.active()).unwrap();
                prop_assert!(!changed || left.is_lost() || choice.active() < before.active());
            }
        }
    }
}
