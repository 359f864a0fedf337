//! The addresses of the network namespace that the calling thread is in.

use std::{
    collections::BTreeSet,
    io,
    net::{IpAddr, Ipv6Addr},
};

use super::ports::read_where_present;

/// Reads the addresses of all interfaces. The set is empty if the kernel does not have the tables.
pub(super) fn read() -> io::Result<BTreeSet<IpAddr>> {
    let routes = read_where_present("/proc/thread-self/net/fib_trie")?;
    let of_interfaces = read_where_present("/proc/thread-self/net/if_inet6")?;
    Ok(of_ipv4(&routes).chain(of_ipv6(&of_interfaces)).collect())
}

/// The kernel has a route `host LOCAL` to each address. It stands below the line with the address.
fn of_ipv4(table: &str) -> impl Iterator<Item = IpAddr> {
    let pairs = table.lines().zip(table.lines().skip(1));
    pairs.filter_map(|(leaf, route)| {
        let address = leaf.trim().strip_prefix("|-- ")?;
        (route.trim() == "/32 host LOCAL").then(|| address.parse().ok()).flatten()
    })
}

/// Lines are `ADDRESS INDEX PREFIX SCOPE FLAGS NAME`, with numbers in hexadecimal. Addresses that come and go by themselves are left out: link-local ones,
/// which each new interface gets, and temporary ones (`IFA_F_TEMPORARY`, RFC 8981).
fn of_ipv6(table: &str) -> impl Iterator<Item = IpAddr> {
    table.lines().filter_map(|line| {
        let mut columns = line.split_ascii_whitespace();
        let bits = u128::from_str_radix(columns.next()?, 16).ok()?;
        let flags = u8::from_str_radix(columns.nth(3)?, 16).ok()?;
        let address = Ipv6Addr::from_bits(bits);
        (flags & 1 == 0 && !address.is_unicast_link_local()).then_some(IpAddr::V6(address))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUTES: &str = "\
Main:
  +-- 0.0.0.0/0 3 0 5
     |-- 0.0.0.0
        /0 universe UNICAST
     |-- 10.0.0.0
        /24 link UNICAST
Local:
  +-- 0.0.0.0/0 2 0 2
     +-- 10.0.0.0/24 2 0 2
        |-- 10.0.0.5
           /32 host LOCAL
        |-- 10.0.0.255
           /32 link BROADCAST
     +-- 127.0.0.0/8 2 0 2
           |-- 127.0.0.0
              /8 host LOCAL
           |-- 127.0.0.1
              /32 host LOCAL
";
    const INTERFACES: &str = "\
00000000000000000000000000000001 01 80 10 80       lo
20010db8000000000000000000000005 02 40 00 80     eth0
20010db80000000012345678abcdef01 02 40 00 01     eth0
fe80000000000000000000fffe000005 02 40 20 80     eth0
";

    #[test]
    fn local_addresses_of_both_families_are_found() {
        let text = |addresses: Vec<IpAddr>| addresses.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(text(of_ipv4(ROUTES).collect()), ["10.0.0.5", "127.0.0.1"]);
        assert_eq!(text(of_ipv6(INTERFACES).collect()), ["::1", "2001:db8::5"]);
        assert!(read().unwrap().contains(&IpAddr::from([127, 0, 0, 1])));
    }
}
