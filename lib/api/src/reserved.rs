//! Addresses in the ranges of a cluster that are reserved for its API and gateways.

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// Returns the address of the Service `kubernetes` in a range of Services: the first one. kube-apiserver makes the same choice (`ServiceIPRange` of
/// `pkg/controlplane`).
#[must_use]
pub fn of_kubernetes_service(services: &IpNet) -> IpAddr {
    first(services)
}

/// Returns the address of the API in a range of the VPN: the first one. No worker and no gateway gets it.
///
/// The EndpointSlice of the Service `kubernetes` contains this address with port 6443, and each worker listens on it. Loopback and link-local
/// addresses are not allowed there. The serving certificate of every API server contains the address.
#[must_use]
pub fn of_api_on_workers(vpn: &IpNet) -> IpAddr {
    first(vpn)
}

/// The number of addresses after that of the API which are reserved for gateways.
pub const GATEWAYS: u32 = 15;

/// Returns the address of the gateway with this index in a range of the VPN. Addresses of gateways follow the address of the API. Returns `None`
/// for an index beyond the reserved addresses.
#[must_use]
pub fn of_gateway(vpn: &IpNet, index: u32) -> Option<IpAddr> {
    let number = (index < GATEWAYS).then(|| index.saturating_add(2))?;
    let address = match vpn.network() {
        IpAddr::V4(network) => Ipv4Addr::from_bits(network.to_bits().saturating_add(number)).into(),
        IpAddr::V6(network) => Ipv6Addr::from_bits(network.to_bits().saturating_add(number.into())).into(),
    };
    vpn.contains(&address).then_some(address)
}

/// Returns the address after that of the network itself, which is the Subnet-Router anycast address in IPv6 (RFC 4291, section 2.6.1).
fn first(range: &IpNet) -> IpAddr {
    match range.network() {
        IpAddr::V4(network) => Ipv4Addr::from_bits(network.to_bits().saturating_add(1)).into(),
        IpAddr::V6(network) => Ipv6Addr::from_bits(network.to_bits().saturating_add(1)).into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gateways_come_after_the_api() {
        let range = "100.80.0.0/16".parse().unwrap();
        let of = |index| of_gateway(&range, index).map(|address| address.to_string());
        assert_eq!([of(0), of(14), of(15)], [Some("100.80.0.2".to_owned()), Some("100.80.0.16".to_owned()), None]);
        assert_eq!(of_gateway(&"fd00:80::/64".parse().unwrap(), 1).unwrap().to_string(), "fd00:80::3");
    }

    #[test]
    fn the_first_address_is_the_one_after_the_networks_own() {
        for (range, expected) in [("100.80.0.0/16", "100.80.0.1"), ("fd00:80::/64", "fd00:80::1")] {
            let range = range.parse().unwrap();
            assert_eq!(of_api_on_workers(&range).to_string(), expected);
            assert_eq!(of_kubernetes_service(&range).to_string(), expected);
        }
    }
}
