//! Too many handshakes, and cookies.

use std::sync::mpsc;
use std::time::Instant;

use super::{MEGABYTE, SECOND, left, on_host, ours, ours_with, right};
use crate::support::{
    End, Fate, Network, Swarm, chain, dump, handshakes, public_key, reach, theirs, transfer, v4, wait_until,
};

/// Initiations a second in a flood.
const RATE: u32 = 10_000;
/// Initiations a second with which a busy processor keeps up, also if it computes a response to each.
const SLOW: u32 = 4_000;
const COOKIE: u8 = 3;
const INITIATION: u8 = 1;

#[test]
fn wireguard_go_proves_its_address_under_load() {
    on_host("load::wireguard_go_proves_its_address_under_load", || {
        let [a, b] = chain(1500);
        let mine = ours_with(&b, &right(""), &["--handshakes-per-second", "0"]);
        let other = theirs(&a, &left("PersistentKeepalive = 1"));
        wait_until("a handshake with a cookie", SECOND * 20, || handshakes(&mine) > 0);
        // The cookie costs one retry, after five seconds.
        reach(&a, &b, v4(2));
        assert!(dump(&other.interface, 2).1 > 0);
    });
}

/// wireguard-go is under load once a hundred handshakes wait. That takes many more initiations than it can compute.
#[test]
fn we_prove_our_address_to_a_wireguard_go_under_load() {
    on_host("load::we_prove_our_address_to_a_wireguard_go_under_load", || {
        let [a, b] = chain(1500);
        let (tell, told) = mpsc::channel();
        let _network = Network::start(&b, move |to_server, bytes| {
            if !to_server && bytes[0] == COOKIE {
                let _ = tell.send("a cookie");
            }
            if to_server && bytes[0] == INITIATION && bytes[132..148] != [0; 16] {
                let _ = tell.send("a proof");
            }
            Fate::Deliver
        });
        let other = theirs(&b, &right(""));
        let strangers = Swarm::new(200).initiations("10.231.0.2:51820", public_key(2));
        let flood = strangers.flood(&a, "10.231.0.2:51820", RATE * 20);
        let peer = format!("Endpoint = {}\nPersistentKeepalive = 1", Network::ADDRESS);
        wait_until("load", SECOND * 60, || flood.cookies() > 0);
        let start = || ours(&a, &End::new(1).peer(2, "10.232.0.2/32", &peer));
        // If wireguard-go is not under load at that moment, it responds without a cookie, and the test starts again.
        let mut mine = None;
        wait_until("a cookie", SECOND * 60, || {
            drop(mine.take());
            while told.try_recv().is_ok() {}
            mine = Some(start());
            told.recv_timeout(SECOND * 2) == Ok("a cookie")
        });
        let mine = mine.unwrap();
        assert_eq!(told.recv_timeout(SECOND * 60), Ok("a proof"));
        wait_until("a handshake by a cookie", SECOND * 60, || handshakes(&mine) > 0);
        flood.stop();
        // The other side has completed the handshake once it receives the first packet of the session.
        wait_until("the handshake on the other side", SECOND * 60, || dump(&other.interface, 1).1 > 0);
    });
}

#[test]
fn a_flood_of_strangers_handshakes_stops_no_peer() {
    on_host("load::a_flood_of_strangers_handshakes_stops_no_peer", || {
        let [a, b] = chain(1500);
        let _left = ours(&a, &left(""));
        let mine = ours(&b, &right(""));
        reach(&a, &b, v4(2));
        let memory = mine.process.memory();
        let strangers = Swarm::new(200).initiations("10.231.0.2:51820", public_key(2));
        let flood = strangers.flood(&a, "10.231.0.2:51820", RATE);
        transfer(&a, &b, v4(2), 100 * MEGABYTE);
        wait_until("a second of the flood", SECOND * 30, || flood.sent() >= RATE);
        flood.stop();
        assert!(mine.process.memory() < memory + 4_000_000, "memory is bounded");
        assert_eq!(handshakes(&mine), 1, "a stranger has no handshake");
        reach(&a, &b, v4(2));
    });
}

#[test]
fn a_flood_of_strangers_handshakes_costs_a_bounded_share_of_a_processor() {
    on_host("load::a_flood_of_strangers_handshakes_costs_a_bounded_share_of_a_processor", || {
        let [a, b] = chain(1500);
        let flooded = |options: &[&str]| {
            let mine = ours_with(&b, &right(""), options);
            let flood =
                Swarm::new(200).initiations("10.231.0.2:51820", public_key(2)).flood(&a, "10.231.0.2:51820", SLOW);
            wait_until("the flood", SECOND * 30, || flood.sent() >= SLOW / 4);
            let (started, before) = (Instant::now(), mine.process.cpu());
            wait_until("two seconds of the flood", SECOND * 30, || flood.sent() >= SLOW * 9 / 4);
            let share = mine.process.cpu().saturating_sub(before).as_secs_f64() / started.elapsed().as_secs_f64();
            let cookies = flood.cookies();
            flood.stop();
            (share, cookies)
        };
        let ((bounded, cookies), (unbounded, without)) =
            (flooded(&[]), flooded(&["--handshakes-per-second", "1000000"]));
        println!(
            "{SLOW} handshakes a second of strangers: {bounded:.3} of a processor, without a bound {unbounded:.3}"
        );
        assert!(bounded < 0.5, "{bounded}, without a bound {unbounded}");
        assert!(cookies > 0 && without == 0, "cookies instead of computations: {cookies}, without a bound {without}");
    });
}
