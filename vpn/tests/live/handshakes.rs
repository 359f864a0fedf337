//! Handshakes with wireguard-go: from either side, by time, by messages, after moves and restarts.

use std::time::SystemTime;

use super::{MEGABYTE, SECOND, left, on_host, ours, ours_with, right};
use crate::support::{
    End, Running, chain, dump, handshakes, probe, public_key, reach, run, theirs, transfer, v4, v6, wait_until,
};

fn unix_now() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}

#[test]
fn both_ends_open_a_tunnel_with_wireguard_go() {
    on_host("handshakes::both_ends_open_a_tunnel_with_wireguard_go", || {
        let [a, b] = chain(1500);
        let preshared = "PresharedKey = FpCyhws9cxwWoV4xELtfJvjJN+zQVRPISllRWgeopVE=\n";
        for we_initiate in [true, false] {
            let (mine, other) = if we_initiate {
                (ours(&a, &left(preshared)), theirs(&b, &right(preshared)))
            } else {
                (ours(&b, &right(preshared)), theirs(&a, &left(preshared)))
            };
            reach(&a, &b, v4(2));
            reach(&a, &b, v6(2));
            transfer(&a, &b, v4(2), 20 * MEGABYTE);
            transfer(&b, &a, v6(1), 20 * MEGABYTE);
            let (endpoint, handshake, received, sent) = dump(&mine.interface, if we_initiate { 2 } else { 1 });
            assert!(endpoint.starts_with("10.231.0."), "{endpoint}");
            assert!(unix_now() - handshake < 60, "a Unix time, not an age");
            assert!(received > 20_000_000 && sent > 20_000_000);
            drop(other);
        }
    });
}

#[test]
fn the_outer_network_may_be_ipv6() {
    on_host("handshakes::the_outer_network_may_be_ipv6", || {
        let [a, b] = chain(1500);
        let left = End::new(1).peer(2, "10.232.0.2/32", "Endpoint = [fd31:0::2]:51820");
        let _mine = ours(&a, &left);
        let _other = theirs(&b, &right(""));
        transfer(&a, &b, v4(2), 20 * MEGABYTE);
    });
}

#[test]
fn a_key_that_is_spent_by_messages_is_renewed_with_wireguard_go() {
    on_host("handshakes::a_key_that_is_spent_by_messages_is_renewed_with_wireguard_go", || {
        let [a, b] = chain(1500);
        let mine = ours_with(&a, &left(""), &["--rekey-after-messages", "1000", "--reject-after-messages", "2000"]);
        let _other = theirs(&b, &right(""));
        for keys in 2..=5 {
            // About 1,080 packets. wireguard-go ignores an initiation within 20 ms of the last one, so that the test waits for each key.
            transfer(&a, &b, v4(2), 1_500_000);
            wait_until("another key", SECOND * 20, || handshakes(&mine) >= keys);
        }
    });
}

/// This sends probes for more than two minutes, the lifetime of a key.
#[test]
fn a_key_that_is_old_is_renewed_with_wireguard_go() {
    on_host("handshakes::a_key_that_is_old_is_renewed_with_wireguard_go", || {
        let [a, b] = chain(1500);
        let [c, d] = chain(1500);
        let mine = ours(&a, &left(""));
        let _their_end = theirs(&b, &right(""));
        let _my_end = ours(&d, &right(""));
        let theirs = theirs(&c, &left(""));
        reach(&a, &b, v4(2));
        reach(&c, &d, v4(2));
        let first = dump(&theirs.interface, 2).1;
        let mut lost = 0;
        wait_until("new keys on both tunnels", SECOND * 150, || {
            lost += usize::from(probe(&a, &b, v4(2), SECOND * 5).is_none());
            lost += usize::from(probe(&c, &d, v4(2), SECOND * 5).is_none());
            handshakes(&mine) > 1 && dump(&theirs.interface, 2).1 > first
        });
        assert_eq!(lost, 0, "no probe is lost over it");
    });
}

#[test]
fn keepalives_arrive_from_either_side() {
    on_host("handshakes::keepalives_arrive_from_either_side", || {
        let [a, b] = chain(1500);
        let other = theirs(&b, &right(""));
        let mine = ours(&a, &left("PersistentKeepalive = 1"));
        wait_until("a handshake", SECOND * 10, || dump(&other.interface, 1).1 > 0);
        let received = |running: &Running, peer| dump(&running.interface, peer).2;
        let before = received(&other, 1);
        wait_until("our keepalives", SECOND * 5, || received(&other, 1) >= before + 64);
        let key = public_key(2).to_string();
        run("wg", &["set", &mine.interface, "peer", &key, "persistent-keepalive", "0"]);
        let key = public_key(1).to_string();
        run("wg", &["set", &other.interface, "peer", &key, "persistent-keepalive", "1"]);
        let before = received(&mine, 2);
        wait_until("their keepalives", SECOND * 5, || received(&mine, 2) >= before + 64);
    });
}

#[test]
fn a_peer_that_moves_is_followed_and_so_are_we() {
    on_host("handshakes::a_peer_that_moves_is_followed_and_so_are_we", || {
        for we_move in [true, false] {
            let [a, b] = chain(1500);
            let (mine, other) = if we_move {
                (ours(&a, &left("")), theirs(&b, &right("")))
            } else {
                (ours(&b, &right("")), theirs(&a, &left("")))
            };
            reach(&a, &b, v4(2));
            a.ip(&["addr", "del", "10.231.0.1/24", "dev", "right"]);
            a.ip(&["addr", "add", "10.231.0.77/24", "dev", "right"]);
            reach(&a, &b, v4(2));
            let watcher = if we_move { &other } else { &mine };
            assert!(dump(&watcher.interface, 1).0.starts_with("10.231.0.77:"));
            reach(&b, &a, v4(1));
        }
    });
}

/// Nothing arrives from the first address or there.
const OLD_UPLINK: &str = "table ip old {
    chain i { type filter hook prerouting priority 0; ip saddr 10.231.0.1 drop; }
    chain o { type filter hook output priority 0; ip daddr 10.231.0.1 drop; }
}";

/// The old address stays on its interface.
#[test]
fn the_source_address_follows_the_uplink() {
    on_host("handshakes::the_source_address_follows_the_uplink", || {
        let [a, b] = chain(1500);
        let (_mine, other) = (ours(&a, &left("")), theirs(&b, &right("")));
        reach(&a, &b, v4(2));
        assert!(dump(&other.interface, 1).0.starts_with("10.231.0.1:"));
        a.ip(&["addr", "add", "10.231.0.77/24", "dev", "right"]);
        a.ip(&["route", "replace", "10.231.0.0/24", "dev", "right", "src", "10.231.0.77"]);
        b.within(|| run("nft", &[OLD_UPLINK]));
        // Nothing arrives for 15 s before a handshake begins, and the first one may still leave from the old address.
        wait_until("the other end responds", SECOND * 60, || probe(&a, &b, v4(2), SECOND).is_some());
        assert!(dump(&other.interface, 1).0.starts_with("10.231.0.77:"));
    });
}

#[test]
fn a_restarted_end_is_back_at_the_others_next_packet() {
    on_host("handshakes::a_restarted_end_is_back_at_the_others_next_packet", || {
        let [a, b] = chain(1500);
        let known = right("Endpoint = 10.231.0.1:51820");
        let mine = ours(&b, &known);
        let _other = theirs(&a, &left(""));
        reach(&a, &b, v4(2));
        drop(mine);
        let mine = ours(&b, &known);
        // The first packet is under a key that this end has lost. It makes this end start a handshake.
        let _lost = probe(&a, &b, v4(2), SECOND / 5);
        wait_until("a new key", SECOND * 2, || handshakes(&mine) > 0);
        assert!(probe(&a, &b, v4(2), SECOND).is_some());
    });
}
