//! The rules that decide what is reachable on a worker: the cluster's ranges from other networks, and the worker itself from tunnels and pods.

#[cfg(test)]
mod tests;

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
};

use ipnet::IpNet;

use super::{
    TABLE,
    encode::{ACCEPT, Batch, DROP, EQUAL, IpFamily, UNEQUAL, match_interface, verdict, within},
    matches::{Transport, is_control_message, is_to_port, is_translated, of_known_connection},
};

/// `NF_INET_PRE_ROUTING`. The chain follows connection tracking (-200) and precedes the translation of Services (-100), after which the
/// destination would be a pod.
const PREROUTING: (u32, i32) = (0, -150);
const PREROUTING_CHAIN: &str = "prerouting";
/// `NF_INET_LOCAL_IN`, with the priority of filters.
const LOCAL_IN: (u32, i32) = (1, 0);
const INPUT_CHAIN: &str = "input";
/// The port of the kubelet's API, for API servers and metrics-server.
const KUBELET: u16 = 10250;

/// The interfaces that lead to other networks than the cluster's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ExternalInterfaces {
    /// All interfaces but these. A name that ends with `*` matches all names with that prefix.
    AllBut(Vec<String>),
    /// Only these interfaces.
    Only(Vec<String>),
}

/// The ranges that are reachable through tunnels and from this machine only.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ShieldedRanges {
    pub(crate) ranges: Vec<IpNet>,
    pub(crate) outside: ExternalInterfaces,
}

/// What tunnels and pods reach on the worker itself, besides the kubelet and what Services lead to.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct WorkerInput {
    /// The interfaces of tunnels and pods. A name that ends with `*` matches all names with that prefix.
    pub(crate) interfaces: Vec<String>,
    /// The addresses at which the balancer serves the API.
    pub(crate) api: Vec<SocketAddr>,
    pub(crate) ports: BTreeSet<(Transport, u16)>,
}

impl ShieldedRanges {
    /// Drops new connections from other networks to the ranges.
    pub(super) fn add_rules(&self, batch: &mut Batch, family: IpFamily) {
        let (_, destination) = family.offsets();
        batch.add_chain(TABLE, PREROUTING_CHAIN, "filter", PREROUTING);
        for range in self.ranges.iter().filter(|range| IpFamily::of(range.addr()) == family) {
            let is_new = [of_known_connection(false), within(destination, range), verdict(DROP)].concat();
            match &self.outside {
                ExternalInterfaces::AllBut(names) => {
                    batch.add_rule(TABLE, PREROUTING_CHAIN, &[on_none_of(names), is_new].concat());
                }
                ExternalInterfaces::Only(names) => {
                    for name in names {
                        batch.add_rule(
                            TABLE,
                            PREROUTING_CHAIN,
                            &[match_interface(EQUAL, name), is_new.clone()].concat(),
                        );
                    }
                }
            }
        }
    }
}

impl WorkerInput {
    /// Drops what arrives from tunnels and pods for the worker itself, except what it is for.
    pub(super) fn add_rules(&self, batch: &mut Batch, family: IpFamily) {
        batch.add_chain(TABLE, INPUT_CHAIN, "filter", LOCAL_IN);
        let mut accept = |matches: Vec<u8>| {
            batch.add_rule(TABLE, INPUT_CHAIN, &[matches, verdict(ACCEPT)].concat());
        };
        accept(on_none_of(&self.interfaces));
        accept(of_known_connection(true));
        accept(is_translated());
        accept(is_control_message(family));
        accept(is_to_port(Transport::Tcp, KUBELET));
        for api in self.api.iter().filter(|api| IpFamily::of(api.ip()) == family) {
            accept([is_to(api.ip()), is_to_port(Transport::Tcp, api.port())].concat());
        }
        for (transport, port) in &self.ports {
            accept(is_to_port(*transport, *port));
        }
        batch.add_rule(TABLE, INPUT_CHAIN, &verdict(DROP));
    }
}

fn on_none_of(interfaces: &[String]) -> Vec<u8> {
    interfaces.iter().flat_map(|name| match_interface(UNEQUAL, name)).collect()
}

fn is_to(address: IpAddr) -> Vec<u8> {
    let (_, destination) = IpFamily::of(address).offsets();
    within(destination, &IpNet::from(address))
}
