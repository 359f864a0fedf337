//! Rules for address ranges.

use crate::{
    cluster::PRIMARY_ADDRESSES,
    validated::{NODE_PORT_ADDRESSES, POD_SIZES, PrefixLengths, RESERVED, SERVICE_SIZES, SMALLEST_IPV6_MTU, VPN_SIZES},
};

use super::cel::{CelRule, list, rule};

const PODS: &str = "spec.network.podCIDRs";
const SERVICES: &str = "spec.network.serviceCIDRs";
const VPN: &str = "spec.vpn.cidrs";

pub(super) fn rules() -> Vec<CelRule> {
    let mut rules = Vec::new();
    for (path, sizes) in [(PODS, &POD_SIZES), (SERVICES, &SERVICE_SIZES), (VPN, &VPN_SIZES)] {
        rules.extend(of_list(path));
        rules.extend(of_range(&format!("{path}[]"), sizes));
    }
    let apart = [
        ("self.network.serviceCIDRs", "self.network.podCIDRs", "spec.network.serviceCIDRs", "pod"),
        ("self.vpn.cidrs", "self.network.podCIDRs", "spec.vpn.cidrs", "pod"),
        ("self.vpn.cidrs", "self.network.serviceCIDRs", "spec.vpn.cidrs", "Service"),
    ];
    rules.extend(apart.map(|(ones, others, field, of)| {
        let no_part = "!cidr(one).containsCIDR(other) && !cidr(other).containsCIDR(one)";
        rule(
            "spec",
            format!("{ones}.all(one, !isCIDR(one) || {others}.all(other, !isCIDR(other) || ({no_part})))"),
            format!(
                "{field}: a range overlaps a {of} range; choose ranges for pods, Services and the VPN that do not overlap"
            ),
        )
    }));
    rules.push(same_families());
    rules.push(mtu());
    rules.extend(node_port_addresses());
    rules
}

fn of_list(path: &str) -> [CelRule; 2] {
    let family = |index| format!("cidr(self[{index}]).ip().family()");
    [
        rule(
            path,
            "self.size() > 0",
            "must have at least one range; write one, or remove the field to use the default",
        ),
        rule(
            path,
            format!("self.size() != 2 || self.exists(one, !isCIDR(one)) || {} != {}", family(0), family(1)),
            "there is already a range of this address family; keep one range per family",
        ),
    ]
}

fn of_range(path: &str, sizes: &PrefixLengths) -> [CelRule; 4] {
    let PrefixLengths { v4, v6, holds } = sizes;
    let length = "cidr(self).prefixLength()";
    let within = |sizes: &core::ops::RangeInclusive<u8>| {
        format!("({length} >= {} && {length} <= {})", sizes.start(), sizes.end())
    };
    let is_v4 = "cidr(self).ip().family() == 4";
    let size = format!("({length} < ({is_v4} ? {} : {}) ? 'large' : 'small')", v4.start(), v6.start());
    let lengths = format!("({is_v4} ? '{} to {}' : '{} to {}')", v4.start(), v4.end(), v6.start(), v6.end());
    [
        rule(
            path,
            "isCIDR(self)",
            "\"{self}\" is not a range in CIDR notation; write a range such as 10.96.0.0/16 or fd00:96::/108",
        ),
        rule(
            path,
            "!isCIDR(self) || cidr(self) == cidr(self).masked()",
            "{self} has bits set beyond its prefix length; write the network address of the range",
        ),
        rule(
            path,
            format!(
                "!isCIDR(self) || {}.all(other, !cidr(other).containsCIDR(self) && !cidr(self).containsCIDR(other))",
                list(RESERVED)
            ),
            "{self} overlaps a range that is reserved for other uses; choose a private range (RFC 1918, RFC 6598, RFC 4193)",
        ),
        rule(
            path,
            format!("!isCIDR(self) || (cidr(self).ip().family() == 4 ? {} : {})", within(v4), within(v6)),
            format!("{{self}} is too {{{size}}}; use a prefix length from {{{lengths}}}: {holds}"),
        ),
    ]
}

fn node_port_addresses() -> Vec<CelRule> {
    let ranges = "self.addons.kubeProxy.nodePortAddresses";
    let families = [("IPv4", 4), ("IPv6", 6)].map(|(family, number)| {
        let is_of = format!("isCIDR(one) && cidr(one).ip().family() == {number}");
        rule(
            "spec",
            format!(
                "!has({ranges}) || {ranges}.size() == 0 || !{ranges}.all(one, isCIDR(one)) || !self.network.serviceCIDRs.exists(one, {is_of}) || {ranges}.exists(one, {is_of})"
            ),
            format!(
                "addons.kubeProxy.nodePortAddresses: has no range of {family}, so that NodePorts would be served at all addresses of {family}; add a range of {family}, because Services have one"
            ),
        )
    });
    let of_list = [
        rule(
            NODE_PORT_ADDRESSES,
            "self.size() > 0",
            "must not be empty; write a range, or remove the field to use all addresses",
        ),
        rule(
            NODE_PORT_ADDRESSES,
            format!("self.size() < 2 || !self.exists(one, one == '{PRIMARY_ADDRESSES}')"),
            format!("{PRIMARY_ADDRESSES} must be the only entry; remove it, or the ranges"),
        ),
        rule(
            format!("{NODE_PORT_ADDRESSES}[]"),
            format!("self == '{PRIMARY_ADDRESSES}' || isCIDR(self)"),
            format!(
                "\"{{self}}\" is not a range in CIDR notation; write a range such as 192.0.2.0/24, or {PRIMARY_ADDRESSES}"
            ),
        ),
    ];
    of_list.into_iter().chain(families).collect()
}

fn mtu() -> CelRule {
    let has_v6 = |ranges: &str| format!("self.{ranges}.exists(one, isCIDR(one) && cidr(one).ip().family() == 6)");
    let has_v6 = ["network.podCIDRs", "network.serviceCIDRs", "vpn.cidrs"].map(has_v6).join(" || ");
    rule(
        "spec",
        format!("!has(self.vpn.mtu) || self.vpn.mtu >= {SMALLEST_IPV6_MTU} || !({has_v6})"),
        format!(
            "vpn.mtu: must be at least {SMALLEST_IPV6_MTU} in a cluster with ranges of IPv6; write {SMALLEST_IPV6_MTU} or \
             more, or remove the ranges of IPv6"
        ),
    )
}

fn same_families() -> CelRule {
    let has = |ranges: &str, family: u8| {
        format!("self.network.{ranges}.exists(one, isCIDR(one) && cidr(one).ip().family() == {family})")
    };
    let sound =
        |ranges: &str| format!("(self.network.{ranges}.size() > 0 && self.network.{ranges}.all(one, isCIDR(one)))");
    let same = |family| format!("{} == {}", has("podCIDRs", family), has("serviceCIDRs", family));
    rule(
        "spec",
        format!(
            "has(self.fleet) || !{} || !{} || (({}) && ({}))",
            sound("podCIDRs"),
            sound("serviceCIDRs"),
            same(4),
            same(6)
        ),
        "network.serviceCIDRs: pods and Services must have ranges of the same address families; use IPv4, IPv6 or both for each",
    )
}
