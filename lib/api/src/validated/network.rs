//! Address ranges of a cluster.

use ipnet::IpNet;

use super::FaultCollector;
use crate::{
    cluster::{ClusterSpec, PRIMARY_ADDRESSES},
    fault::Fault,
    name::is_subdomain,
    tree::item,
};

const PODS: &str = "spec.network.podCIDRs";
const SERVICES: &str = "spec.network.serviceCIDRs";
const VPN: &str = "spec.vpn.cidrs";
const MTU: &str = "spec.vpn.mtu";
/// The addresses of NodePorts.
pub(crate) const NODE_PORT_ADDRESSES: &str = "spec.addons.kubeProxy.nodePortAddresses";
/// The smallest MTU of a VPN: a path with the smallest MTU of IPv6, without the 80 bytes of WireGuard.
pub(crate) const SMALLEST_MTU: u16 = 1200;
/// The smallest MTU over which IPv6 works (RFC 8200, section 5).
pub(crate) const SMALLEST_IPV6_MTU: u16 = 1280;
/// The largest MTU of a VPN: a path with the MTU of Ethernet, without the 80 bytes of WireGuard.
pub(crate) const LARGEST_MTU: u16 = 1420;

/// The allowed prefix lengths of a range, and the reason for them.
pub(crate) struct PrefixLengths {
    pub(crate) v4: core::ops::RangeInclusive<u8>,
    pub(crate) v6: core::ops::RangeInclusive<u8>,
    pub(crate) holds: &'static str,
}

/// kube-apiserver supports at most 20 bits of a service range (`validateServiceClusterIPRangeFlags`). Fewer than 16 addresses are not enough for its
/// own.
pub(crate) const SERVICE_SIZES: PrefixLengths =
    PrefixLengths { v4: 12..=28, v6: 108..=124, holds: "every Service gets an address from it" };
/// Each node gets a /24 or a /64 of the pod range (`--node-cidr-mask-size-ipv4`, `-ipv6`). kube-controller-manager divides the range by at most 16
/// bits.
pub(crate) const POD_SIZES: PrefixLengths =
    PrefixLengths { v4: 8..=24, v6: 48..=64, holds: "every node gets a /24 or /64 from it" };
/// An address is not reused for 30 days after its worker left, by default, so a range needs more addresses than there are workers at a time.
pub(crate) const VPN_SIZES: PrefixLengths = PrefixLengths {
    v4: 8..=24,
    v6: 48..=112,
    holds: "the API, every gateway and every worker get an address from it, and a worker's address stays reserved for 30 days after it leaves",
};

/// Networks that no range may overlap: "this network", loopback, link-local, multicast and broadcast (IANA's special-purpose address registries).
pub(crate) const RESERVED: [&str; 9] = [
    "0.0.0.0/8",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "224.0.0.0/4",
    "255.255.255.255/32",
    "::/128",
    "::1/128",
    "fe80::/10",
    "ff00::/8",
];

/// The ranges of a cluster.
pub(super) struct ClusterRanges {
    pub(super) pods: Vec<IpNet>,
    pub(super) services: Vec<IpNet>,
    pub(super) vpn: Vec<IpNet>,
}

/// Checks the addresses of NodePorts, as kube-proxy does (`validateKubeProxyNodePortAddress`). It serves NodePorts at all addresses of a family without a
/// range (`NewNodePortAddresses`), so each family of Services needs one.
pub(super) fn check_node_port_addresses(addresses: &[String], services: &[IpNet], faults: &mut FaultCollector) {
    if addresses.is_empty() {
        faults.add(NODE_PORT_ADDRESSES, "must not be empty", "write a range, or remove the field to use all addresses");
    }
    if addresses.len() > 1 && addresses.iter().any(|address| address == PRIMARY_ADDRESSES) {
        faults.add(
            NODE_PORT_ADDRESSES,
            format!("{PRIMARY_ADDRESSES} must be the only entry"),
            "remove it, or the ranges",
        );
    }
    for (index, address) in addresses.iter().enumerate() {
        if address != PRIMARY_ADDRESSES && address.parse::<IpNet>().is_err() {
            faults.add(
                &item(NODE_PORT_ADDRESSES, index),
                format!("{address:?} is not a range in CIDR notation"),
                format!("write a range such as 192.0.2.0/24, or {PRIMARY_ADDRESSES}"),
            );
        }
    }
    let ranges: Vec<IpNet> = addresses.iter().filter_map(|address| address.parse().ok()).collect();
    if ranges.is_empty() || ranges.len() < addresses.len() {
        return;
    }
    let is_absent = |v4| services.iter().any(|net| is_v4(net) == v4) && !ranges.iter().any(|net| is_v4(net) == v4);
    for (family, _) in [("IPv4", true), ("IPv6", false)].into_iter().filter(|(_, v4)| is_absent(*v4)) {
        faults.add(
            NODE_PORT_ADDRESSES,
            format!("has no range of {family}, so that NodePorts would be served at all addresses of {family}"),
            format!("add a range of {family}, because Services have one"),
        );
    }
}

/// Validates the ranges of pods, of Services and of the VPN.
pub(super) fn ranges(spec: &ClusterSpec, faults: &mut FaultCollector) -> ClusterRanges {
    let (network, vpn) = (&spec.network, &spec.vpn);
    let pods = list(PODS, &network.pod_cidrs, &POD_SIZES, faults);
    let services = list(SERVICES, &network.service_cidrs, &SERVICE_SIZES, faults);
    let workers = list(VPN, &vpn.cidrs, &VPN_SIZES, faults);
    check_overlap((SERVICES, &services), ("pod", &pods), faults);
    check_overlap((VPN, &workers), ("pod", &pods), faults);
    check_overlap((VPN, &workers), ("Service", &services), faults);
    let whole = pods.len() == network.pod_cidrs.len() && services.len() == network.service_cidrs.len();
    let has = |ranges: &[(usize, IpNet)], v4| ranges.iter().any(|(_, net)| is_v4(net) == v4);
    let same = [true, false].into_iter().all(|v4| has(&pods, v4) == has(&services, v4));
    // A fleet has no pods, so Services of any family are fine.
    if !spec.is_fleet() && whole && !pods.is_empty() && !services.is_empty() && !same {
        faults.add(
            SERVICES,
            "pods and Services must have ranges of the same address families",
            "use IPv4, IPv6 or both for each",
        );
    }
    let nets = |ranges: Vec<(usize, IpNet)>| ranges.into_iter().map(|(_, net)| net).collect();
    ClusterRanges { pods: nets(pods), services: nets(services), vpn: nets(workers) }
}

/// Validates the MTU of the VPN of a cluster with these ranges.
pub(super) fn check_mtu(mtu: Option<u16>, ranges: [&Vec<IpNet>; 3], faults: &mut FaultCollector) {
    let Some(mtu) = mtu else { return };
    let has_v6 = ranges.into_iter().flatten().any(|range| !is_v4(range));
    if !(SMALLEST_MTU..=LARGEST_MTU).contains(&mtu) {
        faults.add(
            MTU,
            format!("must be from {SMALLEST_MTU} to {LARGEST_MTU}, not {mtu}"),
            "remove the field to use the default",
        );
    } else if has_v6 && mtu < SMALLEST_IPV6_MTU {
        faults.add(
            MTU,
            format!("must be at least {SMALLEST_IPV6_MTU} in a cluster with ranges of IPv6, not {mtu}"),
            format!("write {SMALLEST_IPV6_MTU} or more, or remove the ranges of IPv6"),
        );
    }
}

fn list(field: &str, texts: &[String], sizes: &PrefixLengths, faults: &mut FaultCollector) -> Vec<(usize, IpNet)> {
    if texts.is_empty() {
        faults.add(field, "must have at least one range", "write one, or remove the field to use the default");
    }
    let mut ranges: Vec<(usize, IpNet)> = Vec::new();
    for (index, text) in texts.iter().enumerate() {
        let field = item(field, index);
        let Some(net) = faults.take(range(&field, text, sizes)) else {
            continue;
        };
        if ranges.iter().any(|(_, other)| is_v4(other) == is_v4(&net)) {
            faults.add(&field, "there is already a range of this address family", "keep one range per family");
        }
        ranges.push((index, net));
    }
    ranges
}

fn range(field: &str, text: &str, sizes: &PrefixLengths) -> Result<IpNet, Fault> {
    let Ok(net) = text.parse::<IpNet>() else {
        return Err(Fault::of(
            field,
            format!("{text:?} is not a range in CIDR notation"),
            "write a range such as 10.96.0.0/16 or fd00:96::/108",
        ));
    };
    if net.trunc() != net {
        return Err(Fault::of(
            field,
            format!("{net} has bits set beyond its prefix length"),
            format!("write {}", net.trunc()),
        ));
    }
    if RESERVED.iter().filter_map(|reserved| reserved.parse().ok()).any(|reserved| overlap(&net, &reserved)) {
        return Err(Fault::of(
            field,
            format!("{net} overlaps a range that is reserved for other uses"),
            "choose a private range (RFC 1918, RFC 6598, RFC 4193)",
        ));
    }
    let allowed = if is_v4(&net) { &sizes.v4 } else { &sizes.v6 };
    if allowed.contains(&net.prefix_len()) {
        return Ok(net);
    }
    let size = if net.prefix_len() < *allowed.start() { "large" } else { "small" };
    Err(Fault::of(
        field,
        format!("{net} is too {size}"),
        format!("use a prefix length from {} to {}: {}", allowed.start(), allowed.end(), sizes.holds),
    ))
}

fn is_v4(net: &IpNet) -> bool {
    matches!(net, IpNet::V4(_))
}

fn overlap(one: &IpNet, other: &IpNet) -> bool {
    one.contains(other) || other.contains(one)
}

/// Checks the ranges of one field against those of another. `of` names the other field.
fn check_overlap(
    (field, ranges): (&str, &[(usize, IpNet)]),
    (of, others): (&str, &[(usize, IpNet)]),
    faults: &mut FaultCollector,
) {
    for (at, net) in ranges {
        for (_, other) in others.iter().filter(|(_, other)| overlap(net, other)) {
            faults.add(
                &item(field, *at),
                format!("{net} overlaps the {of} range {other}"),
                "choose ranges for pods, Services and the VPN that do not overlap",
            );
        }
    }
}

/// Checks the DNS domain of a cluster.
pub(super) fn check_domain(domain: &str, faults: &mut FaultCollector) {
    if !is_subdomain(domain) {
        faults.add(
            "spec.network.dnsDomain",
            format!("{domain:?} is not a DNS domain"),
            "write lowercase labels joined by dots, such as cluster.local",
        );
    }
}
