//! The largest segments of TCP through tunnels. Pods may have a larger MTU than the tunnels: those that are older than a change of it, and those of
//! another pod network. They then depend on ICMP, which networks and firewalls drop.

use super::{
    TABLE,
    encode::{Batch, EQUAL, POSTROUTING, REGISTER, attribute, expression, match_interface, match_output, number},
    matches::is_tcp_opening,
};

/// The hook, with the priority of changes of packets (`NF_IP_PRI_MANGLE`). All forwarded packets pass it, whichever program forwards them.
const MANGLE: (u32, i32) = (POSTROUTING, -150);
const CHAIN: &str = "mss-clamp";

/// Reduces the segment size that the ends of a connection announce to that of the route, if the connection uses a tunnel. The kernel considers both
/// directions of the route, and never increases the size.
pub(super) fn add_rules(batch: &mut Batch, tunnels: &str) {
    batch.add_chain(TABLE, CHAIN, "filter", MANGLE);
    for through in [match_interface(EQUAL, tunnels), match_output(EQUAL, tunnels)] {
        batch.add_rule(TABLE, CHAIN, &[through, is_tcp_opening(), set_segment_size()].concat());
    }
}

/// The statement `tcp option maxseg size set rt mtu` of nft.
fn set_segment_size() -> Vec<u8> {
    /// `NFT_RT_TCPMSS`, `NFT_BYTEORDER_HTON`, `NFT_EXTHDR_OP_TCPOPT`
    const SEGMENT_OF_ROUTE: u32 = 3;
    const TO_NETWORK: u32 = 1;
    const TCP_OPTION: u32 = 1;
    /// `TCPOPT_MAXSEG`, and the place of the size in it.
    const OPTION: u8 = 2;
    const OFFSET: u32 = 2;
    const LENGTH: u32 = 2;
    let load = [number(1, REGISTER), number(2, SEGMENT_OF_ROUTE)].concat();
    let swap = [number(1, REGISTER), number(2, REGISTER), number(3, TO_NETWORK), number(4, LENGTH), number(5, LENGTH)]
        .concat();
    let store =
        [attribute(2, &[OPTION]), number(3, OFFSET), number(4, LENGTH), number(6, TCP_OPTION), number(7, REGISTER)]
            .concat();
    [expression("rt", &load), expression("byteorder", &swap), expression("exthdr", &store)].concat()
}

#[cfg(test)]
mod tests {
    use rustix::thread::UnshareFlags;

    use super::*;
    use crate::{
        firewall::{commit, encode::IpFamily},
        isolated::{run, within},
    };

    #[test]
    fn connections_through_tunnels_get_the_segment_size_of_the_route() {
        within(UnshareFlags::NEWNET, || {
            for family in IpFamily::ALL {
                let mut batch = Batch::new(family);
                batch.add_table(TABLE);
                add_rules(&mut batch, "keelway*");
                commit("add the rules", batch).unwrap();
            }
            let rules = run("nft", &["-y", "list", "ruleset"]);
            let rule = |way: &str| format!("{way} \"keelway*\" tcp flags syn tcp option maxseg size set rt mtu");
            for way in ["iifname", "oifname"] {
                assert_eq!(rules.matches(&rule(way)).count(), 2, "{rules}");
            }
        });
    }
}
