//! Ports of a bridge that lead to another network namespace.

use std::net::IpAddr;
use std::os::fd::{AsRawFd, BorrowedFd};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, NLM_F_REPLACE};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{InfoData, InfoKind, InfoVeth, LinkAttribute, LinkFlags, LinkInfo, LinkMessage};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteType};

use super::interface::{Interface, family};
use super::{NetlinkError, exchange};

/// A pair of virtual Ethernet interfaces (`veth`): one is a port of a bridge, the other one is in another namespace.
#[derive(Debug, Clone, Copy)]
pub struct BridgePort<'a> {
    /// The name of the port.
    pub name: &'a str,
    /// The Ethernet address of the port. A bridge has the smallest address of its ports.
    pub address: [u8; 6],
    /// The name of the other end.
    pub end: &'a str,
    /// The network namespace of the other end.
    pub namespace: BorrowedFd<'a>,
    /// The MTU of both ends. A bridge has the smallest MTU of its ports.
    pub mtu: u16,
}

impl Interface {
    /// Adds a port to this bridge. The other end is not up yet.
    pub fn add_port(&self, port: &BridgePort<'_>) -> Result<(), NetlinkError> {
        let message = RouteNetlinkMessage::NewLink(port.message(self.index()));
        exchange(self.link(), "create a port of a bridge", NLM_F_CREATE | NLM_F_EXCL, message).map(drop)
    }

    /// Adds a default route through a gateway that the interface reaches.
    pub fn add_default_route(&self, gateway: IpAddr) -> Result<(), NetlinkError> {
        let mut message = RouteMessage::default();
        message.header.address_family = family(gateway);
        message.header.table = RouteHeader::RT_TABLE_MAIN;
        message.header.protocol = RouteProtocol::Static;
        message.header.kind = RouteType::Unicast;
        message.attributes.push(RouteAttribute::Gateway(RouteAddress::from(gateway)));
        message.attributes.push(RouteAttribute::Oif(self.index()));
        let flags = NLM_F_CREATE | NLM_F_REPLACE;
        exchange(self.link(), "add a default route", flags, RouteNetlinkMessage::NewRoute(message)).map(drop)
    }
}

impl BridgePort<'_> {
    fn message(&self, bridge: u32) -> LinkMessage {
        let mut end = LinkMessage::default();
        end.attributes = vec![
            LinkAttribute::IfName(self.end.to_owned()),
            LinkAttribute::Mtu(self.mtu.into()),
            LinkAttribute::NetNsFd(self.namespace.as_raw_fd()),
        ];
        let mut port = LinkMessage::default();
        port.header.flags = LinkFlags::Up;
        port.header.change_mask = LinkFlags::Up;
        port.attributes = vec![
            LinkAttribute::IfName(self.name.to_owned()),
            LinkAttribute::Address(self.address.to_vec()),
            LinkAttribute::Mtu(self.mtu.into()),
            LinkAttribute::Controller(bridge),
            LinkAttribute::LinkInfo(vec![
                LinkInfo::Kind(InfoKind::Veth),
                LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(end))),
            ]),
        ];
        port
    }
}
