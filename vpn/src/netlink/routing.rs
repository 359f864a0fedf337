//! The routes of all tables, and the rules by which the kernel chooses a table.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::IpNet;
use netlink_packet_core::NLM_F_DUMP;
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteType};
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleFlags, RuleMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;

use super::{NetlinkError, NetlinkSocket, exchange};

/// A destination in a routing table.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct RoutedPrefix {
    /// The number of the table.
    pub table: u32,
    /// The destination.
    pub destination: IpNet,
    /// Whether the route drops packets.
    pub drops: bool,
    /// The index of the interface, if the route has one.
    pub interface: Option<u32>,
}

impl RoutedPrefix {
    /// Returns the destinations in all tables, without those of broadcasts and multicasts, and without routes that refer to the next table.
    pub fn list() -> Result<BTreeSet<Self>, NetlinkError> {
        let link = NetlinkSocket::open(NETLINK_ROUTE)?;
        let request = RouteNetlinkMessage::GetRoute(RouteMessage::default());
        let answers = exchange(&link, "list routes", NLM_F_DUMP, request)?;
        let prefixes = answers
            .iter()
            .filter_map(|answer| if let RouteNetlinkMessage::NewRoute(route) = answer { routed(route) } else { None });
        Ok(prefixes.collect())
    }

    /// Whether the table is one of those that every machine has: `local`, `main` and `default`.
    #[must_use]
    pub fn is_in_standard_table(&self) -> bool {
        is_standard(self.table)
    }
}

/// A rule that selects packets by their addresses, and decides where they go without the standard tables.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PolicyRule {
    /// The priority by which the kernel sorts rules, and by which `ip rule` names them.
    pub priority: u32,
    /// The prefixes of source and destination. At least one of them.
    pub prefixes: Vec<IpNet>,
    /// The number of the table. `None` if the rule drops packets.
    pub table: Option<u32>,
}

impl PolicyRule {
    /// Returns all such rules.
    pub fn list() -> Result<BTreeSet<Self>, NetlinkError> {
        let link = NetlinkSocket::open(NETLINK_ROUTE)?;
        let request = RouteNetlinkMessage::GetRule(RuleMessage::default());
        let answers = match exchange(&link, "list policy rules", NLM_F_DUMP, request) {
            // The kernel was built without policy rules.
            Err(error) if error.errno() == Some(rustix::io::Errno::OPNOTSUPP.raw_os_error()) => {
                return Ok(BTreeSet::new());
            }
            answers => answers?,
        };
        let rules = answers
            .iter()
            .filter_map(|answer| if let RouteNetlinkMessage::NewRule(rule) = answer { selecting(rule) } else { None });
        Ok(rules.collect())
    }
}

fn is_standard(table: u32) -> bool {
    /// `RT_TABLE_DEFAULT`, `RT_TABLE_MAIN`, `RT_TABLE_LOCAL`
    const STANDARD: [u32; 3] = [253, 254, 255];
    STANDARD.contains(&table)
}

fn routed(route: &RouteMessage) -> Option<RoutedPrefix> {
    let header = &route.header;
    let drops = [RouteType::BlackHole, RouteType::Unreachable, RouteType::Prohibit].contains(&header.kind);
    let leads = [RouteType::Unicast, RouteType::Local].contains(&header.kind);
    (drops || leads).then_some(())?;
    let (mut address, mut table) = (unspecified(header.address_family)?, u32::from(header.table));
    let mut interface = None;
    for attribute in &route.attributes {
        if let RouteAttribute::Destination(RouteAddress::Inet(v4)) = attribute {
            address = IpAddr::V4(*v4);
        } else if let RouteAttribute::Destination(RouteAddress::Inet6(v6)) = attribute {
            address = IpAddr::V6(*v6);
        } else if let RouteAttribute::Table(number) = attribute {
            table = *number;
        } else if let RouteAttribute::Oif(index) = attribute {
            interface = Some(*index);
        }
    }
    let destination = IpNet::new(address, header.destination_prefix_length).ok()?;
    Some(RoutedPrefix { table, destination, drops, interface })
}

fn selecting(rule: &RuleMessage) -> Option<PolicyRule> {
    let header = &rule.header;
    let (mut priority, mut table, mut prefixes) = (0, u32::from(header.table), Vec::new());
    for attribute in &rule.attributes {
        if let RuleAttribute::Source(address) = attribute {
            prefixes.extend(IpNet::new(*address, header.src_len).ok());
        } else if let RuleAttribute::Destination(address) = attribute {
            prefixes.extend(IpNet::new(*address, header.dst_len).ok());
        } else if let RuleAttribute::Table(number) = attribute {
            table = *number;
        } else if let RuleAttribute::Priority(number) = attribute {
            priority = *number;
        }
    }
    let drops = [RuleAction::Blackhole, RuleAction::Unreachable, RuleAction::Prohibit].contains(&header.action);
    let leads = header.action == RuleAction::ToTable && !is_standard(table);
    let is_meant = (drops || leads) && !prefixes.is_empty() && !header.flags.contains(RuleFlags::Invert);
    is_meant.then_some(PolicyRule { priority, prefixes, table: leads.then_some(table) })
}

/// The destination of a route without the attribute: all addresses of the family.
fn unspecified(family: AddressFamily) -> Option<IpAddr> {
    if family == AddressFamily::Inet {
        Some(Ipv4Addr::UNSPECIFIED.into())
    } else if family == AddressFamily::Inet6 {
        Some(Ipv6Addr::UNSPECIFIED.into())
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(destination: IpNet, table: u32, kind: RouteType) -> RouteMessage {
        let mut route = RouteMessage::default();
        route.header.address_family = AddressFamily::Inet;
        route.header.destination_prefix_length = destination.prefix_len();
        route.header.kind = kind;
        // `RT_TABLE_COMPAT`
        route.header.table = u8::try_from(table).unwrap_or(252);
        route.attributes.push(RouteAttribute::Table(table));
        if destination.prefix_len() > 0 {
            route.attributes.push(RouteAttribute::Destination(RouteAddress::from(destination.addr())));
        }
        route
    }

    #[test]
    fn routes_of_any_table_are_read() {
        let destination = "100.64.0.0/10".parse().unwrap();
        let found = routed(&route(destination, 52, RouteType::Unicast)).unwrap();
        assert_eq!(found, RoutedPrefix { table: 52, destination, drops: false, interface: None });
        assert!(!found.is_in_standard_table());
        let expected = RoutedPrefix { table: 51820, destination, drops: true, interface: None };
        assert_eq!(routed(&route(destination, 51820, RouteType::BlackHole)), Some(expected));
        let all = "0.0.0.0/0".parse().unwrap();
        let default = routed(&route(all, 254, RouteType::Unicast)).unwrap();
        assert!(default.destination == all && default.is_in_standard_table());
        assert_eq!(routed(&route(destination, 52, RouteType::Throw)), None);
    }

    #[test]
    fn only_rules_with_addresses_and_a_table_of_their_own_are_read() {
        let mut rule = RuleMessage::default();
        rule.header.action = RuleAction::ToTable;
        rule.header.dst_len = 16;
        rule.attributes.push(RuleAttribute::Priority(5270));
        rule.attributes.push(RuleAttribute::Table(52));
        assert_eq!(selecting(&rule), None, "it selects all packets");
        rule.attributes.push(RuleAttribute::Destination([10, 244, 0, 0].into()));
        let expected = PolicyRule { priority: 5270, prefixes: vec!["10.244.0.0/16".parse().unwrap()], table: Some(52) };
        assert_eq!(selecting(&rule), Some(expected.clone()));
        rule.header.action = RuleAction::Prohibit;
        assert_eq!(selecting(&rule), Some(PolicyRule { table: None, ..expected }));
        rule.header.action = RuleAction::ToTable;
        rule.attributes[1] = RuleAttribute::Table(254);
        assert_eq!(selecting(&rule), None, "the main table is checked itself");
    }

    #[test]
    fn the_loopback_network_is_in_the_local_table() {
        let destination = "127.0.0.0/8".parse().unwrap();
        let local = RoutedPrefix { table: 255, destination, drops: false, interface: Some(1) };
        assert!(RoutedPrefix::list().unwrap().contains(&local));
        PolicyRule::list().unwrap();
    }
}
