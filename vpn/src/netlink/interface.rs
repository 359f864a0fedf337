//! Interfaces, their addresses and routes.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::address::{AddressAttribute, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;

use super::{NetlinkError, NetlinkSocket, exchange};

/// Returns all addresses of this network namespace, on any interface.
pub fn local_addresses() -> Result<BTreeSet<IpAddr>, NetlinkError> {
    list_addresses(&NetlinkSocket::open(NETLINK_ROUTE)?, |_| true)
}

/// Returns the addresses of the interfaces with these indexes.
fn list_addresses(link: &NetlinkSocket, is_meant: impl Fn(u32) -> bool) -> Result<BTreeSet<IpAddr>, NetlinkError> {
    let request = RouteNetlinkMessage::GetAddress(AddressMessage::default());
    let answers = exchange(link, "list addresses", NLM_F_DUMP, request)?;
    let mut addresses = BTreeSet::new();
    for answer in answers {
        let RouteNetlinkMessage::NewAddress(found) = answer else { continue };
        if !is_meant(found.header.index) {
            continue;
        }
        let own = found
            .attributes
            .iter()
            .find_map(|attribute| if let AddressAttribute::Local(address) = attribute { Some(*address) } else { None });
        let only = found.attributes.iter().find_map(|attribute| {
            if let AddressAttribute::Address(address) = attribute { Some(*address) } else { None }
        });
        // On a point-to-point interface, `Address` is the far end and `Local` this end. IPv6 usually has only `Address`.
        addresses.extend(own.or(only));
    }
    Ok(addresses)
}

/// An interface of this network namespace.
pub struct Interface {
    link: NetlinkSocket,
    index: u32,
}

impl Interface {
    /// Finds an interface by name.
    pub fn find(name: &str) -> Result<Self, NetlinkError> {
        let link = NetlinkSocket::open(NETLINK_ROUTE)?;
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.to_owned()));
        let answers = exchange(&link, "find an interface", 0, RouteNetlinkMessage::GetLink(message))?;
        let index = answers.iter().find_map(|answer| {
            if let RouteNetlinkMessage::NewLink(found) = answer { Some(found.header.index) } else { None }
        });
        let index = index.ok_or_else(|| NetlinkError::Missing(format!("interface {name}")))?;
        Ok(Self { link, index })
    }

    /// Creates an interface of the kernel's WireGuard, and returns its name too. `%d` in `name` stands for a free number.
    /// Returns `EOPNOTSUPP` if the kernel has no WireGuard.
    pub(crate) fn create_wireguard(name: &str) -> Result<(Self, String), NetlinkError> {
        let link = NetlinkSocket::open(NETLINK_ROUTE)?;
        let taken = Some(rustix::io::Errno::EXIST.raw_os_error());
        let mut last = NetlinkError::Missing(format!("free interface name like {name}"));
        for name in names(name) {
            let message = RouteNetlinkMessage::NewLink(wireguard_link(&name));
            match exchange(&link, "create a WireGuard interface", NLM_F_CREATE | NLM_F_EXCL, message) {
                Ok(_) => return Ok((Self::find(&name)?, name)),
                Err(error) if error.errno() == taken => last = error,
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }

    /// Returns the connection to the kernel.
    pub(super) fn link(&self) -> &NetlinkSocket {
        &self.link
    }

    /// Returns the number by which the kernel refers to the interface.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Deletes the interface, with its addresses and routes.
    pub fn delete(&self) -> Result<(), NetlinkError> {
        let mut message = LinkMessage::default();
        message.header.index = self.index;
        self.ask("delete an interface", 0, RouteNetlinkMessage::DelLink(message))
    }

    /// Brings the interface up with an MTU.
    pub fn bring_up(&self, mtu: u16) -> Result<(), NetlinkError> {
        let mut message = LinkMessage::default();
        message.header.index = self.index;
        message.header.flags = LinkFlags::Up;
        message.header.change_mask = LinkFlags::Up;
        message.attributes.push(LinkAttribute::Mtu(mtu.into()));
        self.ask("bring an interface up", 0, RouteNetlinkMessage::SetLink(message))
    }

    /// Returns the addresses of the interface.
    pub fn addresses(&self) -> Result<BTreeSet<IpAddr>, NetlinkError> {
        list_addresses(&self.link, |index| index == self.index)
    }

    /// Adds an address to the interface. The same address again changes nothing.
    pub fn add_address(&self, address: IpNet) -> Result<(), NetlinkError> {
        let mut message = AddressMessage::default();
        message.header.index = self.index;
        message.header.prefix_len = address.prefix_len();
        message.header.family = family(address.addr());
        if address.addr().is_ipv6() {
            // Duplicate address detection delays listening on the address (RFC 4862, section 5.4). Here no other machine can have it.
            message.header.flags = AddressHeaderFlags::Nodad;
        }
        message.attributes.push(AddressAttribute::Local(address.addr()));
        message.attributes.push(AddressAttribute::Address(address.addr()));
        let flags = NLM_F_CREATE | NLM_F_REPLACE;
        self.ask("add an address", flags, RouteNetlinkMessage::NewAddress(message))
    }

    /// Removes an address from the interface. It succeeds if the address is absent.
    pub fn remove_address(&self, address: IpNet) -> Result<(), NetlinkError> {
        let mut message = AddressMessage::default();
        message.header.index = self.index;
        message.header.prefix_len = address.prefix_len();
        message.header.family = family(address.addr());
        message.attributes.push(AddressAttribute::Local(address.addr()));
        let removed = self.ask("remove an address", 0, RouteNetlinkMessage::DelAddress(message));
        ignore_errno(removed, rustix::io::Errno::ADDRNOTAVAIL)
    }

    /// Routes a prefix into the interface. The same prefix again changes nothing.
    pub fn add_route(&self, prefix: IpNet) -> Result<(), NetlinkError> {
        self.set_route(&KernelRoute { destination: prefix, metric: 0, source: None })
    }

    /// Adds a route into the interface. It atomically replaces a route with the same destination and metric, wherever that one led.
    pub fn set_route(&self, route: &KernelRoute) -> Result<(), NetlinkError> {
        let mut message = route.message();
        message.header.scope = if route.destination.addr().is_ipv4() { RouteScope::Link } else { RouteScope::Universe };
        message.header.kind = RouteType::Unicast;
        message.attributes.push(RouteAttribute::Oif(self.index));
        let flags = NLM_F_CREATE | NLM_F_REPLACE;
        self.ask("add a route", flags, RouteNetlinkMessage::NewRoute(message))
    }

    fn ask(&self, operation: &'static str, flags: u16, message: RouteNetlinkMessage) -> Result<(), NetlinkError> {
        exchange(&self.link, operation, flags, message).map(drop)
    }
}

/// A route of the main table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelRoute {
    /// The destination prefix.
    pub destination: IpNet,
    /// Of several routes to one destination, the kernel uses the one with the smallest metric. 0 leaves the choice to the kernel.
    pub metric: u32,
    /// The source address of this machine's packets that are not bound to an address.
    pub source: Option<IpAddr>,
}

impl KernelRoute {
    /// Drops all packets to the destination, unless a route with a smaller metric matches.
    pub fn set_blackhole(&self) -> Result<(), NetlinkError> {
        let link = NetlinkSocket::open(NETLINK_ROUTE)?;
        let mut message = self.message();
        message.header.kind = RouteType::BlackHole;
        let flags = NLM_F_CREATE | NLM_F_REPLACE;
        exchange(&link, "add a blackhole route", flags, RouteNetlinkMessage::NewRoute(message)).map(drop)
    }

    /// Removes the route, wherever it leads. It succeeds if the route is absent.
    pub fn remove(&self) -> Result<(), NetlinkError> {
        let link = NetlinkSocket::open(NETLINK_ROUTE)?;
        let mut message = self.message();
        message.header.protocol = RouteProtocol::Unspec;
        message.header.scope = RouteScope::NoWhere;
        message.header.kind = RouteType::Unspec;
        let removed = exchange(&link, "remove a route", 0, RouteNetlinkMessage::DelRoute(message)).map(drop);
        ignore_errno(removed, rustix::io::Errno::SRCH)
    }

    fn message(&self) -> RouteMessage {
        let mut message = RouteMessage::default();
        message.header.address_family = family(self.destination.addr());
        message.header.destination_prefix_length = self.destination.prefix_len();
        message.header.table = RouteHeader::RT_TABLE_MAIN;
        message.header.protocol = RouteProtocol::Static;
        message.header.kind = RouteType::Unicast;
        message.attributes.push(RouteAttribute::Destination(RouteAddress::from(self.destination.network())));
        if self.metric > 0 {
            message.attributes.push(RouteAttribute::Priority(self.metric));
        }
        if let Some(source) = self.source {
            message.attributes.push(RouteAttribute::PrefSource(RouteAddress::from(source)));
        }
        message
    }
}

/// Treats the errno `gone` as success.
fn ignore_errno(outcome: Result<(), NetlinkError>, gone: rustix::io::Errno) -> Result<(), NetlinkError> {
    match outcome {
        Err(error) if error.errno() == Some(gone.raw_os_error()) => Ok(()),
        other => other,
    }
}

/// Returns the names to try, in order.
fn names(template: &str) -> Vec<String> {
    /// More interfaces than any machine has.
    const MOST: usize = 4096;
    let count = if template.contains("%d") { MOST } else { 1 };
    (0..count).map(|number| template.replacen("%d", &number.to_string(), 1)).collect()
}

fn wireguard_link(name: &str) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.attributes.push(LinkAttribute::IfName(name.to_owned()));
    message.attributes.push(LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Wireguard)]));
    message
}

pub(super) fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

#[cfg(test)]
mod tests {
    use netlink_packet_core::Emitable;

    use super::*;
    use crate::netlink::encoding::attribute;

    /// `ifinfomsg` of `linux/rtnetlink.h`, then `IFLA_IFNAME` (3) and `IFLA_LINKINFO` (18) with `IFLA_INFO_KIND` (1).
    #[test]
    fn an_interface_request_is_encoded_as_in_the_header() {
        let message = wireguard_link("kw0");
        let mut bytes = vec![0; message.buffer_len()];
        message.emit(&mut bytes);
        let name = attribute(3, b"kw0\0");
        let info = attribute(18, &attribute(1, b"wireguard\0"));
        assert_eq!(bytes, [vec![0; 16], name, info].concat());
    }

    #[test]
    fn the_loopback_address_is_one_of_this_machine() {
        let addresses = local_addresses().unwrap();
        assert!(addresses.contains(&IpAddr::from([127, 0, 0, 1])), "{addresses:?}");
        assert!(!addresses.contains(&IpAddr::from([127, 0, 0, 2])), "{addresses:?}");
    }

    #[test]
    fn a_number_replaces_its_placeholder_in_a_name() {
        assert_eq!(names("kw0"), ["kw0"]);
        assert_eq!(names("wg%d")[..2], ["wg0", "wg1"]);
    }
}
