//! Selects the endpoint at which a worker reaches a gateway. Pure.

use std::net::SocketAddr;

/// The number of consecutive checks without a response after which an endpoint is silent. A check takes a second at most.
const PATIENCE: u32 = 3;

/// The endpoints of one gateway, of which one is in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EndpointChoice {
    endpoints: Vec<SocketAddr>,
    current: usize,
    misses: u32,
    /// How many endpoints in turn were silent since a check was answered last.
    silent: usize,
}

impl EndpointChoice {
    /// Starts with the first endpoint. There must be one.
    pub(crate) fn new(endpoints: Vec<SocketAddr>) -> Self {
        Self { endpoints, current: 0, misses: 0, silent: 0 }
    }

    /// Returns the endpoint in use.
    pub(crate) fn current(&self) -> SocketAddr {
        self.endpoints[self.current]
    }

    /// Returns the endpoints that are not in use.
    pub(crate) fn others(&self) -> Vec<SocketAddr> {
        self.endpoints.iter().copied().filter(|endpoint| *endpoint != self.current()).collect()
    }

    /// Replaces the endpoints. The one in use stays in use if it is still among them.
    pub(crate) fn set(&mut self, endpoints: &[SocketAddr]) {
        if self.endpoints == endpoints {
            return;
        }
        match endpoints.iter().position(|endpoint| *endpoint == self.current()) {
            Some(current) => {
                self.endpoints = endpoints.to_vec();
                self.current = current;
                self.silent = 0;
            }
            None => *self = Self::new(endpoints.to_vec()),
        }
    }

    /// Records a check. Returns whether another endpoint is in use from now on: the next one, once the one in use is silent.
    pub(crate) fn note(&mut self, answered: bool) -> bool {
        if answered {
            (self.misses, self.silent) = (0, 0);
            return false;
        }
        self.misses = self.misses.saturating_add(1);
        if self.misses < PATIENCE || self.endpoints.len() < 2 {
            return false;
        }
        self.current = (self.current + 1) % self.endpoints.len();
        self.silent = self.silent.saturating_add(1);
        self.misses = 0;
        true
    }

    /// Records where the gateway was heard last. WireGuard already sends there.
    pub(crate) fn note_heard(&mut self, at: SocketAddr) {
        if let Some(heard) = self.endpoints.iter().position(|endpoint| *endpoint == at) {
            self.current = heard;
        }
    }

    /// Whether the next check should follow at once: an endpoint missed a check, and not all of them were tried since.
    pub(crate) fn is_searching(&self) -> bool {
        let has_missed = self.misses > 0 || self.silent > 0;
        self.endpoints.len() > 1 && has_missed && self.silent < self.endpoints.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn endpoints(count: u16) -> Vec<SocketAddr> {
        (1..=count).map(|port| SocketAddr::from(([203, 0, 113, 1], port))).collect()
    }

    fn miss(choice: &mut EndpointChoice) -> bool {
        (1..PATIENCE).for_each(|_| assert!(!choice.note(false)));
        choice.note(false)
    }

    #[test]
    fn a_silent_endpoint_gives_way_to_the_next_one_and_one_that_responds_stays() {
        let mut choice = EndpointChoice::new(endpoints(2));
        assert!(!choice.is_searching());
        assert!(miss(&mut choice));
        assert_eq!(choice.current().port(), 2);
        assert!(choice.is_searching());
        for _ in 0..10 {
            assert!(!choice.note(true));
        }
        assert!(!choice.is_searching());
        // A single lost check changes nothing.
        assert!(!choice.note(false) && !choice.note(true) && !choice.note(false));
        assert_eq!(choice.current().port(), 2);
        assert!(!choice.note(false) && choice.note(false));
        assert_eq!(choice.current().port(), 1);
    }

    #[test]
    fn once_all_are_silent_they_are_tried_in_turn_without_haste() {
        let mut choice = EndpointChoice::new(endpoints(3));
        for expected in [2, 3, 1, 2] {
            assert!(miss(&mut choice));
            assert_eq!(choice.current().port(), expected);
        }
        assert!(!choice.is_searching());
    }

    #[test]
    fn the_only_endpoint_stays() {
        let mut choice = EndpointChoice::new(endpoints(1));
        assert!(!miss(&mut choice) && !choice.is_searching());
        assert_eq!(choice.current().port(), 1);
    }

    #[test]
    fn a_new_list_keeps_the_endpoint_in_use() {
        let mut choice = EndpointChoice::new(endpoints(2));
        assert!(miss(&mut choice));
        choice.set(&endpoints(3)[1..]);
        assert_eq!(choice.current().port(), 2);
        choice.set(&endpoints(1));
        assert_eq!(choice.current().port(), 1);
        choice.set(&endpoints(2));
        choice.note_heard(endpoints(2)[1]);
        choice.note_heard(endpoints(9)[8]);
        assert_eq!(choice.current().port(), 2);
    }

    proptest! {
        #[test]
        fn an_endpoint_that_responds_is_found_and_kept(good in 0..4u16, first in 0..4usize) {
            let mut choice = EndpointChoice::new(endpoints(4));
            choice.note_heard(endpoints(4)[first]);
            for _ in 0..16 {
                let answered = choice.current() == endpoints(4)[usize::from(good)];
                choice.note(answered);
            }
            prop_assert_eq!(choice.current(), endpoints(4)[usize::from(good)]);
        }
    }
}
