//! The ranges and addresses of a fleet. Pure.
//!
//! The ranges are those of RFC 2544 for tests of network devices, which no real network uses.

use std::{collections::BTreeSet, net::Ipv4Addr, ops::RangeInclusive};

use ipnet::Ipv4Net;
use keelway_api::hypervisor::HypervisorRole;
use serde::{Deserialize, Serialize};

use crate::fleet::{FleetMachine, FleetMachineId, MachineId};

/// A route with a shorter prefix is a default route (or one of two halves of it, as VPN clients set them), not a network.
const WIDEST_ROUTE: u8 = 8;

/// The first user id of agents, which have one each. The ids are below those of components.
const AGENTS: u32 = 1_800_000_000;

/// The highest number of a fleet. The default range of VPNs is 198.19.128.0/18.
const LAST: u8 = 127;

/// The last octets of the addresses of guests in the public network. No public machine has one of these.
pub(crate) const GUESTS: RangeInclusive<u8> = 110..=254;

/// The number of a fleet: 198.18.N.0/24 is its public, 198.19.N.0/24 its private network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct FleetNetwork(u8);

impl FleetNetwork {
    /// Returns the lowest number that no other fleet has and whose ranges overlap no route.
    pub(crate) fn lowest_free(taken: &BTreeSet<Self>, routes: &[Ipv4Net]) -> Option<Self> {
        (0..=LAST).map(Self).find(|network| !taken.contains(network) && network.conflict(routes).is_none())
    }

    /// Returns the range of this network that overlaps a route.
    pub(crate) fn conflict(self, routes: &[Ipv4Net]) -> Option<Ipv4Net> {
        let overlaps = |range: &Ipv4Net| {
            routes
                .iter()
                .any(|route| route.prefix_len() >= WIDEST_ROUTE && (route.contains(range) || range.contains(route)))
        };
        [self.public(), self.private()].into_iter().find(overlaps)
    }

    pub(crate) fn public(self) -> Ipv4Net {
        range(self.with(18, 0))
    }

    pub(crate) fn private(self) -> Ipv4Net {
        range(self.with(19, 0))
    }

    /// Returns the host's address in the public network.
    pub(crate) fn host(self) -> Ipv4Addr {
        self.with(18, 1)
    }

    /// Returns a machine's address in the public network, if it has one.
    pub(crate) fn public_address(self, machine: MachineId) -> Option<Ipv4Addr> {
        match machine.role {
            HypervisorRole::Public => Some(self.with(18, last_octet(machine))),
            HypervisorRole::Private => None,
        }
    }

    /// Returns a machine's address in the private network.
    pub(crate) fn private_address(self, machine: MachineId) -> Ipv4Addr {
        self.with(19, last_octet(machine))
    }

    /// Returns the user id of a machine's agent, which is unique on this host because it is derived from the machine's address. Workers have none.
    pub(crate) fn agents_user(self, machine: &FleetMachine) -> Option<u32> {
        let FleetMachineId::Hypervisor(id) = machine.id else { return None };
        let [.., network, last] = self.private_address(id).octets();
        Some(AGENTS + u32::from(u16::from_be_bytes([network, last])))
    }

    /// Returns the address of a guest in the public network: a worker, or a NAT.
    pub(crate) fn guest_address(self, octet: u8) -> Ipv4Addr {
        self.with(18, octet)
    }

    fn with(self, second: u8, last: u8) -> Ipv4Addr {
        Ipv4Addr::new(198, second, self.0, last)
    }
}

fn range(first: Ipv4Addr) -> Ipv4Net {
    Ipv4Net::new_assert(first, 24)
}

/// Returns the last octet of a machine's addresses in both networks. It depends only on role and ordinal, so other machines do not affect it.
fn last_octet(machine: MachineId) -> u8 {
    match machine.role {
        HypervisorRole::Public => 10 + machine.ordinal,
        HypervisorRole::Private => 110 + machine.ordinal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::MOST;

    fn routes(texts: &[&str]) -> Vec<Ipv4Net> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn the_lowest_free_number_is_used() {
        let free = |taken: &[u8], texts: &[&str]| {
            FleetNetwork::lowest_free(&taken.iter().copied().map(FleetNetwork).collect(), &routes(texts))
        };
        assert_eq!(free(&[], &["10.0.0.0/8"]), Some(FleetNetwork(0)));
        assert_eq!(free(&[0, 2], &[]), Some(FleetNetwork(1)));
        assert_eq!(free(&[], &["198.18.0.0/24", "198.19.1.7/32"]), Some(FleetNetwork(2)));
        assert_eq!(free(&[], &["198.18.0.0/18"]), Some(FleetNetwork(64)));
        assert_eq!(free(&[], &["198.18.0.0/17"]), None, "VPNs have the other half");
        assert_eq!(free(&[], &["198.18.0.0/15"]), None);
        assert_eq!(free(&[], &["0.0.0.0/0", "128.0.0.0/1"]), Some(FleetNetwork(0)));
    }

    #[test]
    fn no_two_machines_share_an_address() {
        let network = FleetNetwork(7);
        let roles = [HypervisorRole::Public, HypervisorRole::Private];
        let addresses: BTreeSet<_> = roles
            .into_iter()
            .flat_map(|role| (1..=MOST).map(move |ordinal| MachineId { role, ordinal }))
            .map(|machine| network.private_address(machine))
            .collect();
        assert_eq!(addresses.len(), 2 * usize::from(MOST));
        assert!(addresses.iter().all(|address| network.private().contains(address)));
    }
}
