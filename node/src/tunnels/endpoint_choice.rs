//! Selects the endpoint at which a worker reaches a gateway, and how. Pure.

use std::{fmt, net::SocketAddr};

use serde::{Deserialize, Serialize};

/// The number of consecutive checks without a response after which an endpoint is silent. A check takes a second at most.
const PATIENCE: u32 = 3;

/// How the datagrams of a tunnel reach a gateway.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum TunnelTransport {
    /// As they are.
    #[default]
    Udp,
    /// Over TLS, by way of the ingress at the same address and port.
    Tls,
}

impl fmt::Display for TunnelTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Udp => "UDP",
            Self::Tls => "TLS",
        })
    }
}

/// One way to a gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TunnelEndpoint {
    pub(crate) address: SocketAddr,
    pub(crate) transport: TunnelTransport,
}

impl fmt::Display for TunnelEndpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.address, self.transport)
    }
}

/// The endpoints of one gateway, of which one is in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct EndpointChoice {
    /// First those over UDP, then the same over TLS.
    endpoints: Vec<TunnelEndpoint>,
    current: usize,
    misses: u32,
    /// How many endpoints in turn were silent since a check was answered last.
    silent: usize,
}

impl EndpointChoice {
    /// Starts with the first endpoint. There must be one.
    pub(crate) fn new(addresses: &[SocketAddr]) -> Self {
        Self { endpoints: all(addresses), current: 0, misses: 0, silent: 0 }
    }

    /// Returns the endpoint in use.
    pub(crate) fn current(&self) -> TunnelEndpoint {
        self.endpoints[self.current]
    }

    /// Returns the other addresses.
    pub(crate) fn others(&self) -> Vec<SocketAddr> {
        let over_udp = self.endpoints.iter().filter(|endpoint| endpoint.transport == TunnelTransport::Udp);
        over_udp.map(|endpoint| endpoint.address).filter(|address| *address != self.current().address).collect()
    }

    /// Replaces the addresses. The endpoint in use stays in use if it is still among them.
    pub(crate) fn set(&mut self, addresses: &[SocketAddr]) {
        let endpoints = all(addresses);
        if self.endpoints == endpoints {
            return;
        }
        match endpoints.iter().position(|endpoint| *endpoint == self.current()) {
            Some(current) => {
                self.endpoints = endpoints;
                self.current = current;
                self.silent = 0;
            }
            None => *self = Self::new(addresses),
        }
    }

    /// Records a check. Returns whether another endpoint is in use from now on: the next one, once the one in use is silent.
    pub(crate) fn note(&mut self, answered: bool) -> bool {
        if answered {
            (self.misses, self.silent) = (0, 0);
            return false;
        }
        self.misses = self.misses.saturating_add(1);
        if self.misses < PATIENCE {
            return false;
        }
        self.current = (self.current + 1) % self.endpoints.len();
        self.silent = self.silent.saturating_add(1);
        self.misses = 0;
        true
    }

    /// Records that the gateway was heard over UDP at this address. It is in use from now on.
    pub(crate) fn note_heard(&mut self, at: SocketAddr) {
        let heard = TunnelEndpoint { address: at, transport: TunnelTransport::Udp };
        if let Some(heard) = self.endpoints.iter().position(|endpoint| *endpoint == heard) {
            self.current = heard;
        }
    }

    /// Whether more than one endpoint in turn was silent since a check was answered last.
    pub(crate) fn is_searched_again(&self) -> bool {
        self.silent > 1
    }

    /// Whether the next check should follow at once: an endpoint missed a check, and not all of them were tried since.
    pub(crate) fn is_searching(&self) -> bool {
        (self.misses > 0 || self.silent > 0) && self.silent < self.endpoints.len()
    }
}

fn all(addresses: &[SocketAddr]) -> Vec<TunnelEndpoint> {
    let over = |transport| addresses.iter().map(move |address| TunnelEndpoint { address: *address, transport });
    over(TunnelTransport::Udp).chain(over(TunnelTransport::Tls)).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn addresses(count: u16) -> Vec<SocketAddr> {
        (1..=count).map(|port| SocketAddr::from(([203, 0, 113, 1], port))).collect()
    }

    fn miss(choice: &mut EndpointChoice) -> bool {
        (1..PATIENCE).for_each(|_| assert!(!choice.note(false)));
        choice.note(false)
    }

    fn in_use(choice: &EndpointChoice) -> (u16, TunnelTransport) {
        (choice.current().address.port(), choice.current().transport)
    }

    #[test]
    fn a_silent_endpoint_is_replaced_by_the_next_and_one_that_responds_stays() {
        let mut choice = EndpointChoice::new(&addresses(2));
        assert!(!choice.is_searching());
        assert!(miss(&mut choice));
        assert_eq!(in_use(&choice), (2, TunnelTransport::Udp));
        assert_eq!(choice.others(), addresses(1));
        assert!(choice.is_searching());
        for _ in 0..10 {
            assert!(!choice.note(true));
        }
        assert!(!choice.is_searching());
        // A single lost check changes nothing.
        assert!(!choice.note(false) && !choice.note(true) && !choice.note(false));
        assert_eq!(in_use(&choice), (2, TunnelTransport::Udp));
    }

    #[test]
    fn tls_is_used_once_no_endpoint_responds_over_udp() {
        let mut choice = EndpointChoice::new(&addresses(1));
        assert!(miss(&mut choice));
        assert_eq!(in_use(&choice), (1, TunnelTransport::Tls));
        assert_eq!(choice.current().to_string(), "203.0.113.1:1 (TLS)");
        assert!(choice.others().is_empty());
        choice.note(true);
        choice.note_heard(addresses(1)[0]);
        assert_eq!(in_use(&choice), (1, TunnelTransport::Udp));
    }

    #[test]
    fn once_all_are_silent_they_are_tried_in_turn_without_haste() {
        let mut choice = EndpointChoice::new(&addresses(2));
        for expected in
            [(2, TunnelTransport::Udp), (1, TunnelTransport::Tls), (2, TunnelTransport::Tls), (1, TunnelTransport::Udp)]
        {
            assert!(choice.is_searching() || choice.misses == 0);
            assert!(miss(&mut choice));
            assert_eq!(in_use(&choice), expected);
        }
        assert!(!choice.is_searching());
    }

    #[test]
    fn a_new_list_keeps_the_endpoint_in_use() {
        let mut choice = EndpointChoice::new(&addresses(2));
        assert!(miss(&mut choice));
        choice.set(&addresses(3)[1..]);
        assert_eq!(choice.current().address.port(), 2);
        choice.set(&addresses(1));
        assert_eq!(choice.current().address.port(), 1);
        choice.set(&addresses(2));
        choice.note_heard(addresses(2)[1]);
        choice.note_heard(addresses(9)[8]);
        assert_eq!(choice.current().address.port(), 2);
    }

    proptest! {
        #[test]
        fn an_endpoint_that_responds_is_found_and_kept(good in 0..6usize, first in 0..3usize) {
            let mut choice = EndpointChoice::new(&addresses(3));
            choice.note_heard(addresses(3)[first]);
            let good = choice.endpoints[good];
            for _ in 0..20 {
                let answered = choice.current() == good;
                choice.note(answered);
            }
            prop_assert_eq!(choice.current(), good);
        }
    }
}
