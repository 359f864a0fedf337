//! Large transfers between ends that a network with a smaller MTU connects. The network drops fragments, and the messages by which routers report
//! their MTU.

use std::net::{SocketAddr, UdpSocket};
use std::process::Command;

use super::{MEGABYTE, SECOND, on_host, ours};
use crate::support::{End, Namespace, Running, chain, reach, transfer, v4, v6};

/// The bytes of WireGuard and the headers outside of it: UDP and IPv4, or IPv6.
const AROUND: [u32; 2] = [60, 80];
/// Drops fragments, and ICMP about packets that are too large.
const BLACK_HOLE: &str = "table inet blackhole {
    chain fragments {
        type filter hook prerouting priority -450;
        ip frag-off & 0x3fff != 0 drop
        exthdr frag exists drop
    }
    chain reports {
        type filter hook output priority 0;
        icmp type destination-unreachable drop
        icmpv6 type packet-too-big drop
    }
}";

/// Two ends with a router between them.
struct NarrowPath {
    ends: [Namespace; 3],
    is_v6: bool,
}

impl NarrowPath {
    /// All links have an MTU of 1500, except for the router's own ends of them.
    fn new(mtu: u32, is_v6: bool) -> Self {
        let ends: [Namespace; 3] = chain(1500);
        let [a, router, b] = &ends;
        for link in ["left", "right"] {
            router.ip(&["link", "set", link, "mtu", &mtu.to_string()]);
        }
        for setting in ["net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"] {
            inside(router, "sysctl", &["-qw", setting]);
        }
        for (end, route) in [(a, "10.231.1.0/24 via 10.231.0.2"), (b, "10.231.0.0/24 via 10.231.1.1")] {
            end.ip(&[&["route", "add"][..], &route.split(' ').collect::<Vec<_>>()].concat());
        }
        for (end, route) in [(a, "fd31:1::/64 via fd31:0::2"), (b, "fd31:0::/64 via fd31:1::1")] {
            end.ip(&[&["-6", "route", "add"][..], &route.split(' ').collect::<Vec<_>>()].concat());
        }
        Self { ends, is_v6 }
    }

    /// The network drops fragments and reports.
    fn with_black_hole(self) -> Self {
        for namespace in &self.ends {
            inside(namespace, "nft", &[BLACK_HOLE]);
        }
        self
    }

    /// Starts both ends with this MTU.
    fn tunnel(&self, mtu: u16) -> [Running; 2] {
        let endpoint = if self.is_v6 { "[fd31:1::2]:51820" } else { "10.231.1.2:51820" };
        let end = |number: u8, peer: u8, more: &str| End {
            mtu,
            ..End::new(number).peer(peer, &format!("10.232.0.{peer}/32, fd32::{peer}/128"), more)
        };
        let [a, _, b] = &self.ends;
        let ends = [ours(a, &end(1, 2, &format!("Endpoint = {endpoint}"))), ours(b, &end(2, 1, ""))];
        reach(a, b, v4(2));
        ends
    }

    /// Transfers in both directions, over the inner families that the MTU allows.
    fn transfers(&self, mtu: u16) {
        let [a, _, b] = &self.ends;
        transfer(a, b, v4(2), 20 * MEGABYTE);
        transfer(b, a, v4(1), 20 * MEGABYTE);
        if mtu >= 1280 {
            transfer(a, b, v6(2), 20 * MEGABYTE);
            transfer(b, a, v6(1), 20 * MEGABYTE);
        }
    }

    /// Whether a message of this size, with its headers inside the tunnel, arrives.
    fn passes(&self, packet: usize) -> bool {
        let [a, _, b] = &self.ends;
        let receiver = b.within(|| UdpSocket::bind(SocketAddr::new(v4(2), 0)).unwrap());
        receiver.set_read_timeout(Some(SECOND)).unwrap();
        let target = receiver.local_addr().unwrap();
        a.within(move || {
            let sender = UdpSocket::bind("0.0.0.0:0").unwrap();
            sender.send_to(&vec![7; packet - 28], target).unwrap();
        });
        receiver.recv(&mut [0; 2048]).is_ok()
    }
}

fn inside(namespace: &Namespace, program: &str, arguments: &[&str]) {
    let status = Command::new("ip").args(["netns", "exec", namespace.name(), program]).args(arguments).status();
    assert!(status.unwrap().success(), "{program} {arguments:?}");
}

#[test]
fn large_transfers_pass_networks_that_drop_fragments_and_reports() {
    on_host("paths::large_transfers_pass_networks_that_drop_fragments_and_reports", || {
        for (mtu, inner) in [(1280, 1200), (1400, 1280), (1492, 1280), (1500, 1280)] {
            for is_v6 in [false, true] {
                let path = NarrowPath::new(mtu, is_v6).with_black_hole();
                let _ends = path.tunnel(inner);
                path.transfers(inner);
            }
        }
    });
}

/// The twin of the test above: with the MTU of earlier releases, packets are lost.
#[test]
fn a_tunnel_that_is_too_large_for_its_path_loses_packets() {
    on_host("paths::a_tunnel_that_is_too_large_for_its_path_loses_packets", || {
        for (is_v6, around) in [(false, AROUND[0]), (true, AROUND[1])] {
            let path = NarrowPath::new(1400, is_v6).with_black_hole();
            let _ends = path.tunnel(1420);
            let fits = usize::try_from(1400 - around).unwrap();
            assert!(path.passes(fits / 16 * 16), "{fits}");
            assert!(!path.passes(1420));
        }
    });
}
