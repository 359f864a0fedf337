//! Default routes of IPv6.

use std::{collections::BTreeSet, net::IpAddr};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_DUMP};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteProtocol, RouteScope, RouteType,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use rustix::net::{AddressFamily as SocketFamily, SocketType, netdevice::index_to_name, socket};

use super::{NetlinkError, NetlinkSocket, exchange};

/// One way of a default route of IPv6 in the main table.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DefaultRoute {
    /// The index of the interface.
    interface: u32,
    /// The router. `None` if the destination is on the link.
    pub gateway: Option<IpAddr>,
    metric: u32,
    /// Whether a router advertised it (RFC 4861).
    pub is_advertised: bool,
}

impl DefaultRoute {
    /// Returns all default routes of IPv6. Of a route over several routers, each is one.
    pub fn list() -> Result<BTreeSet<Self>, NetlinkError> {
        let link = NetlinkSocket::open(NETLINK_ROUTE)?;
        let mut message = RouteMessage::default();
        message.header.address_family = AddressFamily::Inet6;
        let answers = exchange(&link, "list routes", NLM_F_DUMP, RouteNetlinkMessage::GetRoute(message))?;
        let routes = answers.iter().filter_map(|answer| {
            if let RouteNetlinkMessage::NewRoute(route) = answer {
                is_default(route).then(|| ways(route))
            } else {
                None
            }
        });
        Ok(routes.flatten().collect())
    }

    /// Returns the name of the interface.
    pub fn interface(&self) -> std::io::Result<String> {
        Ok(index_to_name(socket(SocketFamily::INET6, SocketType::DGRAM, None)?, self.interface)?)
    }

    /// Adds the route again. It then stays until it is removed, whatever the router advertises.
    pub fn add(&self) -> Result<(), NetlinkError> {
        let link = NetlinkSocket::open(NETLINK_ROUTE)?;
        let mut message = RouteMessage::default();
        message.header.address_family = AddressFamily::Inet6;
        message.header.table = RouteHeader::RT_TABLE_MAIN;
        message.header.protocol = if self.is_advertised { RouteProtocol::Ra } else { RouteProtocol::Static };
        message.header.scope = RouteScope::Universe;
        message.header.kind = RouteType::Unicast;
        message.attributes.push(RouteAttribute::Oif(self.interface));
        message.attributes.push(RouteAttribute::Priority(self.metric));
        message.attributes.extend(self.gateway.map(|gateway| RouteAttribute::Gateway(RouteAddress::from(gateway))));
        exchange(&link, "add a default route", NLM_F_CREATE, RouteNetlinkMessage::NewRoute(message)).map(drop)
    }
}

fn is_default(route: &RouteMessage) -> bool {
    let header = &route.header;
    header.destination_prefix_length == 0
        && header.table == RouteHeader::RT_TABLE_MAIN
        && header.kind == RouteType::Unicast
}

fn ways(route: &RouteMessage) -> Vec<DefaultRoute> {
    let metric =
        find(
            &route.attributes,
            |attribute| {
                if let RouteAttribute::Priority(metric) = attribute { Some(*metric) } else { None }
            },
        );
    let way = |interface, attributes: &[RouteAttribute]| DefaultRoute {
        interface,
        gateway: find(attributes, gateway),
        metric: metric.unwrap_or_default(),
        is_advertised: route.header.protocol == RouteProtocol::Ra,
    };
    let hops = find(&route.attributes, |attribute| {
        if let RouteAttribute::MultiPath(hops) = attribute { Some(hops.clone()) } else { None }
    });
    let only =
        find(
            &route.attributes,
            |attribute| {
                if let RouteAttribute::Oif(interface) = attribute { Some(*interface) } else { None }
            },
        );
    let hops = hops.into_iter().flatten().map(|hop| way(hop.interface_index, &hop.attributes));
    hops.chain(only.map(|interface| way(interface, &route.attributes))).collect()
}

fn gateway(attribute: &RouteAttribute) -> Option<IpAddr> {
    if let RouteAttribute::Gateway(RouteAddress::Inet6(address)) = attribute {
        Some(IpAddr::V6(*address))
    } else {
        None
    }
}

fn find<T>(attributes: &[RouteAttribute], value: impl Fn(&RouteAttribute) -> Option<T>) -> Option<T> {
    attributes.iter().find_map(value)
}

#[cfg(test)]
mod tests {
    use netlink_packet_route::route::RouteNextHop;

    use super::*;

    #[test]
    fn each_router_of_a_route_is_one_way() {
        let routers = ["fe80::1", "fe80::2"].map(|router| router.parse::<IpAddr>().unwrap());
        let mut route = RouteMessage::default();
        route.header.protocol = RouteProtocol::Ra;
        route.header.table = RouteHeader::RT_TABLE_MAIN;
        route.header.kind = RouteType::Unicast;
        route.attributes.push(RouteAttribute::Priority(1024));
        let hops = routers.iter().zip(3..).map(|(router, interface)| {
            let mut hop = RouteNextHop::default();
            hop.interface_index = interface;
            hop.attributes.push(RouteAttribute::Gateway(RouteAddress::from(*router)));
            hop
        });
        route.attributes.push(RouteAttribute::MultiPath(hops.collect()));
        assert!(is_default(&route));
        let way =
            |interface, router| DefaultRoute { interface, gateway: Some(router), metric: 1024, is_advertised: true };
        assert_eq!(ways(&route), [way(3, routers[0]), way(4, routers[1])]);
    }
}
