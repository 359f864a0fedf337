//! Decides which addresses a control plane may connect to. Pure.
//!
//! A tenant chooses the names of its webhooks and what they resolve to. The decision is therefore about an address, never about a name.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

/// Why an address is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ForbiddenAddress {
    /// It is the machine itself.
    #[error("a loopback address")]
    Loopback,
    /// It is not an address, or one of the machine's own network.
    #[error("an unspecified address")]
    Unspecified,
    /// It is on the local link, where instance metadata is, too.
    #[error("a link-local address")]
    LinkLocal,
    /// It addresses several machines.
    #[error("a multicast or broadcast address")]
    Multicast,
    /// No machine has it (RFC 1112, section 4; RFC 6890).
    #[error("a reserved address")]
    Reserved,
    /// It contains another address, so that the connection would lead to an address that was not checked.
    #[error("an IPv4 address embedded in an IPv6 address")]
    Embedded,
    /// It serves a cloud's instance metadata outside of link-local addresses.
    #[error("an address of an instance metadata service")]
    Metadata,
    /// It belongs to the API server's machine, on which other programs listen.
    #[error("an address of the machine itself")]
    Own,
    /// It is in a range of the configuration.
    #[error("within the forbidden range {0}")]
    Range(IpNet),
}

/// Instance metadata without a link-local address: of Amazon, Alibaba and Azure.
const METADATA: [IpAddr; 3] = [
    IpAddr::V6(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254)),
    IpAddr::V4(Ipv4Addr::new(100, 100, 100, 200)),
    IpAddr::V4(Ipv4Addr::new(168, 63, 129, 16)),
];

/// Checks an address. `ranges` and the machine's `own` addresses are forbidden in addition.
pub(crate) fn check_address(address: IpAddr, ranges: &[IpNet], own: &BTreeSet<IpAddr>) -> Result<(), ForbiddenAddress> {
    match address {
        IpAddr::V4(address) => judge_v4(address)?,
        IpAddr::V6(address) => judge_v6(address)?,
    }
    if METADATA.contains(&address) {
        return Err(ForbiddenAddress::Metadata);
    }
    if own.contains(&address) {
        return Err(ForbiddenAddress::Own);
    }
    match ranges.iter().find(|range| range.contains(&address)) {
        Some(range) => Err(ForbiddenAddress::Range(*range)),
        None => Ok(()),
    }
}

fn judge_v4(address: Ipv4Addr) -> Result<(), ForbiddenAddress> {
    match address.octets() {
        [0, ..] => Err(ForbiddenAddress::Unspecified),
        [127, ..] => Err(ForbiddenAddress::Loopback),
        [169, 254, ..] => Err(ForbiddenAddress::LinkLocal),
        [224..=239, ..] | [255, 255, 255, 255] => Err(ForbiddenAddress::Multicast),
        [240..=255, ..] => Err(ForbiddenAddress::Reserved),
        _ => Ok(()),
    }
}

fn judge_v6(address: Ipv6Addr) -> Result<(), ForbiddenAddress> {
    match address.segments() {
        [0, 0, 0, 0, 0, 0, 0, 0] => Err(ForbiddenAddress::Unspecified),
        [0, 0, 0, 0, 0, 0, 0, 1] => Err(ForbiddenAddress::Loopback),
        // IPv4-compatible, -mapped and -translated; NAT64 (RFC 6052, RFC 8215), Teredo and 6to4.
        [0, 0, 0, 0, 0, 0 | 0xffff, ..]
        | [0, 0, 0, 0, 0xffff, 0, ..]
        | [0x64, 0xff9b, ..]
        | [0x2001, 0, ..]
        | [0x2002, ..] => Err(ForbiddenAddress::Embedded),
        [0xff00..=0xffff, ..] => Err(ForbiddenAddress::Multicast),
        // Site-local addresses (fec0::/10) are deprecated, but some networks still use them.
        [0xfe80..=0xfebf, ..] => Err(ForbiddenAddress::LinkLocal),
        [0xfec0..=0xfeff, ..] => Err(ForbiddenAddress::Reserved),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn verdict(address: &str, ranges: &[&str]) -> Result<(), ForbiddenAddress> {
        let ranges: Vec<IpNet> = ranges.iter().map(|range| range.parse().unwrap()).collect();
        check_address(address.parse().unwrap(), &ranges, &["192.0.2.9".parse().unwrap()].into())
    }

    #[test]
    fn each_kind_is_refused_for_its_reason() {
        for (addresses, reason) in [
            (&["127.0.0.1", "127.255.255.254", "::1"][..], ForbiddenAddress::Loopback),
            (&["0.0.0.0", "0.1.2.3", "::"], ForbiddenAddress::Unspecified),
            (&["169.254.169.254", "169.254.0.1", "fe80::1", "febf::1"], ForbiddenAddress::LinkLocal),
            (&["224.0.0.1", "239.255.255.255", "255.255.255.255", "ff02::1"], ForbiddenAddress::Multicast),
            (&["240.0.0.1", "255.255.255.254", "fec0::1"], ForbiddenAddress::Reserved),
            (
                &[
                    "::ffff:127.0.0.1",
                    "::ffff:192.0.2.1",
                    "::127.0.0.1",
                    "::ffff:0:127.0.0.1",
                    "64:ff9b::127.0.0.1",
                    "64:ff9b:1::a00:1",
                    "2002:7f00:1::",
                    "2001::1",
                ],
                ForbiddenAddress::Embedded,
            ),
            (&["192.0.2.9"], ForbiddenAddress::Own),
            (&["fd00:ec2::254", "100.100.100.200", "168.63.129.16"], ForbiddenAddress::Metadata),
        ] {
            for address in addresses {
                assert_eq!(verdict(address, &[]), Err(reason.clone()), "{address}");
            }
        }
    }

    #[test]
    fn ranges_of_the_configuration_are_refused_and_nothing_else() {
        let ranges = ["10.0.0.0/24", "fd12::/64"];
        assert_eq!(verdict("10.0.0.7", &ranges), Err(ForbiddenAddress::Range(ranges[0].parse().unwrap())));
        assert_eq!(verdict("fd12::7", &ranges), Err(ForbiddenAddress::Range(ranges[1].parse().unwrap())));
        for allowed in ["10.0.1.7", "192.168.0.1", "192.0.2.1", "2001:db8::1", "fd13::7"] {
            assert_eq!(verdict(allowed, &ranges), Ok(()), "{allowed}");
        }
        assert_eq!(verdict("10.0.0.7", &[]), Ok(()), "the range is what refused it");
    }

    proptest! {
        /// However an IPv4 address is embedded, a loopback address is refused.
        #[test]
        fn no_form_of_loopback_passes(last in any::<[u8; 3]>(), prefix in 0..6usize) {
            let inner = u128::from(u32::from(Ipv4Addr::new(127, last[0], last[1], last[2])));
            let forms = [
                inner,
                0xffff_u128 << 32 | inner,
                0xffff_u128 << 48 | inner,
                0x0064_ff9b_u128 << 96 | inner,
                0x2002_u128 << 112 | inner << 80,
                0x2001_u128 << 112 | (inner ^ 0xffff_ffff),
            ];
            prop_assert!(check_address(IpAddr::V6(Ipv6Addr::from(forms[prefix])), &[], &BTreeSet::new()).is_err());
        }

        #[test]
        fn an_address_within_a_forbidden_range_never_passes(address: IpAddr, length in 0..=32u8) {
            let range = IpNet::new(address, length).unwrap().trunc();
            prop_assert!(check_address(address, &[range], &BTreeSet::new()).is_err());
        }
    }
}
