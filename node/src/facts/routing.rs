//! Observes the machine's networks, and what else can divert packets.

use std::{collections::BTreeSet, net::IpAddr};

use ipnet::IpNet;
use keelway_vpn::netlink::{
    NetlinkError, interface,
    routing::{PolicyRule, RoutedPrefix},
};

use super::resolv_confs;
use crate::{
    checks::{RoutingFacts, TAILSCALE_CHAINS},
    firewall::FirewallNames,
};

/// The networks that a worker makes itself.
#[derive(Debug, Default)]
pub(crate) struct OwnNetworks {
    /// The ranges for which it has routes that drop packets.
    pub(crate) dropped: Vec<IpNet>,
    pub(crate) addresses: BTreeSet<IpAddr>,
    /// The indexes of its interfaces.
    pub(crate) interfaces: BTreeSet<u32>,
}

impl OwnNetworks {
    fn contains(&self, route: &RoutedPrefix) -> bool {
        let destination = &route.destination;
        let is_address = destination.prefix_len() == destination.max_prefix_len();
        route.interface.is_some_and(|index| self.interfaces.contains(&index))
            || route.drops && self.dropped.contains(destination)
            || is_address && self.addresses.contains(&destination.addr())
    }
}

/// Returns the networks to which the machine has routes, its own addresses, and what else can divert packets. It leaves out what the worker created.
pub(crate) fn routing(
    firewall: &FirewallNames,
    worker: &OwnNetworks,
) -> Result<(Vec<IpNet>, RoutingFacts), NetlinkError> {
    let routes = RoutedPrefix::list()?.into_iter().filter(|route| may_clash(route) && !worker.contains(route));
    let (standard, routes): (Vec<_>, Vec<_>) = routes.partition(RoutedPrefix::is_in_standard_table);
    let own = interface::local_addresses()?.into_iter();
    let own = own.filter(|address| !address.is_loopback() && !worker.addresses.contains(address)).map(IpNet::from);
    let networks = standard.into_iter().map(|route| route.destination).chain(own).collect();
    let facts = RoutingFacts {
        routes,
        rules: PolicyRule::list()?.into_iter().collect(),
        resolv_confs: resolv_confs(),
        tailscale_chains: firewall.chains_named(&TAILSCALE_CHAINS),
    };
    Ok((networks, facts))
}

/// Whether the route may keep packets from the worker's own routes. Destinations on loopback and local to each link do not. Machines drop reserved
/// ranges of IPv6 as a whole (RFC 4193, section 4.3), for which the worker's routes in the same table are more specific.
fn may_clash(route: &RoutedPrefix) -> bool {
    let address = route.destination.addr();
    let is_of_link = matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local() || v6.is_multicast());
    let is_reserved = route.drops && address.is_ipv6() && route.is_in_standard_table();
    !address.is_loopback() && !is_of_link && !is_reserved
}

#[cfg(test)]
mod tests {
    use rustix::thread::UnshareFlags;

    use super::*;
    use crate::{
        firewall,
        isolated::{run, within},
    };

    #[test]
    fn routes_of_all_tables_and_rules_are_observed() {
        within(UnshareFlags::NEWNET, || {
            run("ip", &["link", "set", "lo", "up"]);
            run("ip", &["address", "add", "192.168.7.1/24", "dev", "lo"]);
            run("ip", &["route", "add", "100.80.7.7/32", "dev", "lo", "table", "52"]);
            run("ip", &["-6", "route", "add", "fd7a::/48", "dev", "lo", "table", "52"]);
            run("ip", &["-6", "route", "add", "unreachable", "fc00::/7"]);
            run("ip", &["rule", "add", "priority", "99", "to", "10.96.0.0/12", "lookup", "7"]);
            run("nft", &["table ip filter { chain ts-input { }; chain ts-postrouting { }; }"]);
            let (networks, facts) = routing(&firewall::names().unwrap(), &OwnNetworks::default()).unwrap();
            assert!(networks.contains(&"192.168.7.0/24".parse().unwrap()), "{networks:?}");
            assert!(networks.contains(&"192.168.7.1/32".parse().unwrap()), "{networks:?}");
            assert!(!networks.contains(&"fc00::/7".parse().unwrap()), "{networks:?}");
            let routes: Vec<String> = facts.routes.iter().map(|route| route.destination.to_string()).collect();
            assert_eq!(routes, ["100.80.7.7/32", "fd7a::/48"]);
            let [rule] = facts.rules.as_slice() else { panic!("{facts:?}") };
            assert_eq!((rule.priority, rule.table), (99, Some(7)));
            assert_eq!(facts.tailscale_chains, ["ip filter ts-input"]);
        });
    }
}
