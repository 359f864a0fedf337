//! Ranges of a cluster.

use core::net::IpAddr;

use ipnet::IpNet;

use crate::{cluster::NetworkSpec, fault::Fault, name::is_subdomain, tree::item};

use super::Faults;

const PODS: &str = "spec.network.podCIDRs";
const SERVICES: &str = "spec.network.serviceCIDRs";

/// The prefix lengths that a range may have.
struct Sizes {
    v4: core::ops::RangeInclusive<u8>,
    v6: core::ops::RangeInclusive<u8>,
}

/// kube-apiserver takes at most 20 bits of a service range (`validateServiceClusterIPRangeFlags`); below 16 addresses there is no room for its own.
const SERVICE_SIZES: Sizes = Sizes { v4: 12..=28, v6: 108..=124 };
/// Each node gets a /24 or a /64 of the pod range (`--node-cidr-mask-size-ipv4`, `-ipv6`), and kube-controller-manager divides it by at most 16 bits.
const POD_SIZES: Sizes = Sizes { v4: 8..=24, v6: 48..=64 };

/// The ranges of pods and of Services.
pub(super) fn ranges(network: &NetworkSpec, faults: &mut Faults) -> (Vec<IpNet>, Vec<IpNet>) {
    let pods = list(PODS, &network.pod_cidrs, &POD_SIZES, faults);
    let services = list(SERVICES, &network.service_cidrs, &SERVICE_SIZES, faults);
    check_overlap(&pods, &services, faults);
    let whole = pods.len() == network.pod_cidrs.len() && services.len() == network.service_cidrs.len();
    let has = |ranges: &[(usize, IpNet)], v4| ranges.iter().any(|(_, net)| is_v4(net) == v4);
    let same = [true, false].into_iter().all(|v4| has(&pods, v4) == has(&services, v4));
    if whole && !pods.is_empty() && !services.is_empty() && !same {
        faults.add(
            SERVICES,
            "pods and Services have ranges of different families",
            "give both a range of IPv4, of IPv6, or of each",
        );
    }
    let nets = |ranges: Vec<(usize, IpNet)>| ranges.into_iter().map(|(_, net)| net).collect();
    (nets(pods), nets(services))
}

fn list(field: &str, texts: &[String], sizes: &Sizes, faults: &mut Faults) -> Vec<(usize, IpNet)> {
    if texts.is_empty() {
        faults.add(field, "there is no range", "give one, or leave the field out for the default");
    }
    let mut ranges: Vec<(usize, IpNet)> = Vec::new();
    for (index, text) in texts.iter().enumerate() {
        let field = item(field, index);
        let Some(net) = faults.take(range(&field, text, sizes)) else {
            continue;
        };
        if ranges.iter().any(|(_, other)| is_v4(other) == is_v4(&net)) {
            faults.add(&field, "a second range of the same family", "keep one range per family");
        }
        ranges.push((index, net));
    }
    ranges
}

fn range(field: &str, text: &str, sizes: &Sizes) -> Result<IpNet, Fault> {
    let Ok(net) = text.parse::<IpNet>() else {
        return Err(Fault::of(
            field,
            format!("{text:?} is no range of addresses"),
            "write it as 10.96.0.0/16 or fd00:96::/108",
        ));
    };
    if net.trunc() != net {
        return Err(Fault::of(field, format!("{net} has bits set after its prefix"), format!("write {}", net.trunc())));
    }
    let first = net.network();
    if first.is_loopback() || first.is_multicast() || first.is_unspecified() || is_link_local(first) {
        return Err(Fault::of(
            field,
            format!("{net} is reserved for other uses"),
            "take a private range (RFC 1918, RFC 4193)",
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
        format!("take a prefix length from {} to {}", allowed.start(), allowed.end()),
    ))
}

fn is_v4(net: &IpNet) -> bool {
    matches!(net, IpNet::V4(_))
}

fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

fn check_overlap(pods: &[(usize, IpNet)], services: &[(usize, IpNet)], faults: &mut Faults) {
    for (at, service) in services {
        for (_, pod) in pods {
            if pod.contains(service) || service.contains(pod) {
                faults.add(
                    &item(SERVICES, *at),
                    format!("{service} overlaps the pod range {pod}"),
                    "give pods and Services ranges apart from each other",
                );
            }
        }
    }
}

/// The DNS domain of a cluster.
pub(super) fn check_domain(domain: &str, faults: &mut Faults) {
    if !is_subdomain(domain) {
        faults.add(
            "spec.network.dnsDomain",
            format!("{domain:?} is no DNS domain"),
            "write lowercase labels joined by dots, such as cluster.local",
        );
    }
}
