//! Interfaces, their addresses and routes.

use std::net::IpAddr;

use ipnet::IpNet;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;

use super::{Link, NetlinkError, exchange};

/// An interface of this network namespace.
pub struct Interface {
    link: Link,
    index: u32,
}

impl Interface {
    /// Finds an interface by name.
    pub fn find(name: &str) -> Result<Self, NetlinkError> {
        let link = Link::open(NETLINK_ROUTE)?;
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.to_owned()));
        let answers = exchange(&link, "find an interface", 0, RouteNetlinkMessage::GetLink(message))?;
        let index = answers.iter().find_map(|answer| {
            if let RouteNetlinkMessage::NewLink(found) = answer { Some(found.header.index) } else { None }
        });
        let index = index.ok_or_else(|| NetlinkError::Missing(format!("interface {name}")))?;
        Ok(Self { link, index })
    }

    /// Makes an interface of the kernel's WireGuard. `EOPNOTSUPP` where it has none.
    pub(crate) fn create_wireguard(name: &str) -> Result<Self, NetlinkError> {
        let link = Link::open(NETLINK_ROUTE)?;
        let message = RouteNetlinkMessage::NewLink(wireguard_link(name));
        exchange(&link, "make a WireGuard interface", NLM_F_CREATE | NLM_F_EXCL, message)?;
        Self::find(name)
    }

    pub(crate) fn delete(&self) -> Result<(), NetlinkError> {
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

    /// Gives the interface an address; the same one again changes nothing.
    pub fn add_address(&self, address: IpNet) -> Result<(), NetlinkError> {
        let mut message = AddressMessage::default();
        message.header.index = self.index;
        message.header.prefix_len = address.prefix_len();
        message.header.family = family(address.addr());
        message.attributes.push(AddressAttribute::Local(address.addr()));
        message.attributes.push(AddressAttribute::Address(address.addr()));
        let flags = NLM_F_CREATE | NLM_F_REPLACE;
        self.ask("add an address", flags, RouteNetlinkMessage::NewAddress(message))
    }

    /// Routes a prefix into the interface; the same one again changes nothing.
    pub fn add_route(&self, prefix: IpNet) -> Result<(), NetlinkError> {
        let mut message = RouteMessage::default();
        message.header.address_family = family(prefix.addr());
        message.header.destination_prefix_length = prefix.prefix_len();
        message.header.table = RouteHeader::RT_TABLE_MAIN;
        message.header.protocol = RouteProtocol::Static;
        message.header.scope = if prefix.addr().is_ipv4() { RouteScope::Link } else { RouteScope::Universe };
        message.header.kind = RouteType::Unicast;
        message.attributes.push(RouteAttribute::Destination(RouteAddress::from(prefix.network())));
        message.attributes.push(RouteAttribute::Oif(self.index));
        let flags = NLM_F_CREATE | NLM_F_REPLACE;
        self.ask("add a route", flags, RouteNetlinkMessage::NewRoute(message))
    }

    fn ask(&self, operation: &'static str, flags: u16, message: RouteNetlinkMessage) -> Result<(), NetlinkError> {
        exchange(&self.link, operation, flags, message).map(drop)
    }
}

fn wireguard_link(name: &str) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.attributes.push(LinkAttribute::IfName(name.to_owned()));
    message.attributes.push(LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::Wireguard)]));
    message
}

fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}
