//! Large transfers between ends that a network with a smaller MTU connects. Some networks drop fragments, and the messages by which routers report
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
}";
const NO_REPORTS: &str = "table inet noreports {
    chain reports {
        type filter hook output priority 0;
        icmp type destination-unreachable drop
        icmpv6 type packet-too-big drop
    }
}";
/// Counts fragments. Nothing has put them together yet.
const COUNTER: &str = "table inet seen {
    chain fragments {
        type filter hook prerouting priority -450;
        ip frag-off & 0x3fff != 0 counter
        exthdr frag exists counter
    }
}";

/// Two ends with two routers between them.
struct NarrowPath {
    ends: [Namespace; 4],
    is_v6: bool,
}

impl NarrowPath {
    /// The link between the routers has this MTU, and the other ones 1500.
    fn new(mtu: u32, is_v6: bool) -> Self {
        let ends: [Namespace; 4] = chain(1500);
        let [a, near, far, b] = &ends;
        near.ip(&["link", "set", "right", "mtu", &mtu.to_string()]);
        far.ip(&["link", "set", "left", "mtu", &mtu.to_string()]);
        for router in [near, far] {
            for setting in ["net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1"] {
                inside(router, "sysctl", &["-qw", setting]);
            }
        }
        for (from, link, via) in [(a, 2, "0::2"), (near, 2, "1::2"), (far, 0, "1::1"), (b, 0, "2::1")] {
            let v4 = format!("10.231.{}", via.replace("::", "."));
            from.ip(&["route", "add", &format!("10.231.{link}.0/24"), "via", &v4]);
            from.ip(&["-6", "route", "add", &format!("fd31:{link}::/64"), "via", &format!("fd31:{via}")]);
        }
        Self { ends, is_v6 }
    }

    /// The network drops fragments and reports.
    fn with_black_hole(self) -> Self {
        self.filtered(BLACK_HOLE).filtered(NO_REPORTS)
    }

    fn filtered(self, rules: &str) -> Self {
        for namespace in &self.ends {
            inside(namespace, "nft", &[rules]);
        }
        self
    }

    /// Whether fragments have arrived at the second end.
    fn has_fragments(&self) -> bool {
        let mut list = Command::new("ip");
        list.args(["netns", "exec", self.ends[3].name(), "nft", "list", "table", "inet", "seen"]);
        let listed = String::from_utf8(list.output().unwrap().stdout).unwrap();
        listed.lines().any(|line| line.contains("counter packets") && !line.contains("counter packets 0 "))
    }

    /// Starts both ends with this MTU.
    fn tunnel(&self, mtu: u16) -> [Running; 2] {
        let endpoint = if self.is_v6 { "[fd31:2::2]:51820" } else { "10.231.2.2:51820" };
        let end = |number: u8, peer: u8, more: &str| End {
            mtu,
            ..End::new(number).peer(peer, &format!("10.232.0.{peer}/32, fd32::{peer}/128"), more)
        };
        let [a, .., b] = &self.ends;
        let ends = [ours(a, &end(1, 2, &format!("Endpoint = {endpoint}"))), ours(b, &end(2, 1, ""))];
        reach(a, b, v4(2));
        ends
    }

    /// Transfers in both directions, over the inner families that the MTU allows.
    fn transfers(&self, mtu: u16) {
        let [a, .., b] = &self.ends;
        transfer(a, b, v4(2), 20 * MEGABYTE);
        transfer(b, a, v4(1), 20 * MEGABYTE);
        if mtu >= 1280 {
            transfer(a, b, v6(2), 20 * MEGABYTE);
            transfer(b, a, v6(1), 20 * MEGABYTE);
        }
    }

    /// Whether a message of this size, with its headers inside the tunnel, arrives.
    fn passes(&self, packet: usize) -> bool {
        let [a, .., b] = &self.ends;
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

/// The router of IPv4 makes fragments. That of IPv6 reports its MTU, and the sender makes them.
#[test]
fn a_tunnel_that_is_too_large_for_its_path_sends_fragments() {
    on_host("paths::a_tunnel_that_is_too_large_for_its_path_sends_fragments", || {
        for is_v6 in [false, true] {
            let path = NarrowPath::new(1400, is_v6).filtered(COUNTER);
            let _ends = path.tunnel(1420);
            path.transfers(1420);
            assert!(path.has_fragments(), "IPv6: {is_v6}");
        }
    });
}

/// The twin of the test above: no router reports its MTU.
#[test]
fn only_senders_of_ipv6_depend_on_reports() {
    on_host("paths::only_senders_of_ipv6_depend_on_reports", || {
        for is_v6 in [false, true] {
            let path = NarrowPath::new(1400, is_v6).filtered(NO_REPORTS);
            let _ends = path.tunnel(1420);
            assert_eq!(path.passes(1420), !is_v6);
        }
    });
}
