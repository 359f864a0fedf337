//! Bytes arrive as they were sent, at any MTU and on a bad network.

use std::net::{SocketAddr, UdpSocket};

use super::{MEGABYTE, PATIENCE, SECOND, left, on_host, ours, right};
use crate::support::{End, Fate, Namespace, Network, Noise, chain, probe, theirs, transfer, v4, v6, wait_until};

/// An MTU of the outer network that fits any tunnel packet.
const JUMBO: u32 = 9216;

fn with_mtu(mut end: End, mtu: u16) -> End {
    end.mtu = mtu;
    end
}

#[test]
fn large_transfers_arrive_as_they_were_at_any_mtu() {
    on_host("transfers::large_transfers_arrive_as_they_were_at_any_mtu", || {
        let [a, b] = chain(JUMBO);
        for mtu in [576, 1280, 1420, 8920] {
            let _left = ours(&a, &with_mtu(left(""), mtu));
            let _right = ours(&b, &with_mtu(right(""), mtu));
            transfer(&a, &b, v4(2), 400 * MEGABYTE);
            if mtu >= 1280 {
                transfer(&b, &a, v6(1), 400 * MEGABYTE);
            }
        }
    });
}

#[test]
fn outer_packets_may_be_fragmented() {
    on_host("transfers::outer_packets_may_be_fragmented", || {
        let [a, b] = chain(1500);
        let _left = ours(&a, &with_mtu(left(""), 8920));
        let _right = ours(&b, &with_mtu(right(""), 8920));
        transfer(&a, &b, v4(2), 20 * MEGABYTE);
    });
}

#[test]
fn an_mtu_that_changes_is_followed_while_bytes_flow() {
    on_host("transfers::an_mtu_that_changes_is_followed_while_bytes_flow", || {
        let [a, b] = chain(JUMBO);
        let one = ours(&a, &left(""));
        let two = ours(&b, &right(""));
        let set = |mtu: &str| {
            a.ip(&["link", "set", &one.interface, "mtu", mtu]);
            b.ip(&["link", "set", &two.interface, "mtu", mtu]);
        };
        std::thread::scope(|scope| {
            let transferring = scope.spawn(|| transfer(&a, &b, v4(2), 400 * MEGABYTE));
            for mtu in ["8920", "576", "1420", "1280"].iter().cycle() {
                if transferring.is_finished() {
                    break;
                }
                set(mtu);
            }
        });
        for mtu in ["8920", "576", "1420"] {
            set(mtu);
            transfer(&a, &b, v4(2), 20 * MEGABYTE);
        }
    });
}

/// Loses one datagram in twenty, doubles one, and delays one until up to nine later ones overtake it.
fn bad() -> impl FnMut(bool, &[u8]) -> Fate + Send {
    let mut noise = Noise::new(5);
    move |_, _| match noise.next() % 20 {
        0 => Fate::Lose,
        1 => Fate::Hold(noise.next() % 10),
        2 => Fate::Double,
        _ => Fate::Deliver,
    }
}

fn through_network() -> End {
    End::new(1).peer(2, "10.232.0.2/32, fd32::2/128", &format!("Endpoint = {}", Network::ADDRESS))
}

#[test]
fn transfers_survive_loss_and_reordering() {
    on_host("transfers::transfers_survive_loss_and_reordering", || {
        let [a, b] = chain(JUMBO);
        let _network = Network::start(&b, bad());
        for mtu in [576, 1280, 1420, 8920] {
            let _left = ours(&a, &with_mtu(through_network(), mtu));
            let _right = ours(&b, &with_mtu(right(""), mtu));
            transfer(&a, &b, v4(2), 10 * MEGABYTE);
            if mtu >= 1280 {
                transfer(&a, &b, v6(2), 10 * MEGABYTE);
            }
        }
    });
}

#[test]
fn transfers_with_wireguard_go_survive_loss_and_reordering() {
    on_host("transfers::transfers_with_wireguard_go_survive_loss_and_reordering", || {
        let [a, b] = chain(JUMBO);
        let _network = Network::start(&b, bad());
        let _left = ours(&a, &through_network());
        let _right = theirs(&b, &right(""));
        transfer(&a, &b, v4(2), 10 * MEGABYTE);
        transfer(&b, &a, v4(1), 10 * MEGABYTE);
    });
}

/// Sends numbered messages, sixteen at a time. The next ones follow once these have arrived, so that no queue on the way is ever full.
/// Returns the numbers in the order of their arrival.
fn send_numbers(from: &Namespace, to: &Namespace, count: u32) -> Vec<u32> {
    let receiver = to.within(|| UdpSocket::bind(SocketAddr::new(v4(2), 0)).unwrap());
    let target = receiver.local_addr().unwrap();
    let sender = from.within(|| UdpSocket::bind("0.0.0.0:0").unwrap());
    let mut arrived = Vec::new();
    let take = |patience, arrived: &mut Vec<u32>| {
        receiver.set_read_timeout(Some(patience)).unwrap();
        let mut bytes = [0; 4];
        receiver.recv(&mut bytes).is_ok_and(|_| {
            arrived.push(u32::from_be_bytes(bytes));
            true
        })
    };
    for batch in (0..count).collect::<Vec<_>>().chunks(16) {
        for number in batch {
            sender.send_to(&number.to_be_bytes(), target).unwrap();
        }
        let complete = |arrived: &[u32]| batch.iter().all(|number| arrived.contains(number));
        while !complete(&arrived) {
            if !take(PATIENCE, &mut arrived) {
                return arrived;
            }
        }
    }
    while take(SECOND, &mut arrived) {}
    arrived
}

/// Two of three datagrams arrive twice. Each third one is delayed until up to seven later ones overtake it.
#[test]
fn repeated_and_reordered_packets_of_wireguard_go_arrive_once() {
    on_host("transfers::repeated_and_reordered_packets_of_wireguard_go_arrive_once", || {
        for we_receive in [true, false] {
            let [a, b] = chain(1500);
            let mut number = 0;
            let _network = Network::start(&b, move |_, _| {
                number += 1;
                if number % 3 == 0 { Fate::Hold(number % 8) } else { Fate::Double }
            });
            let (near, far) = (through_network(), right(""));
            let _ends =
                if we_receive { (theirs(&a, &near), ours(&b, &far)) } else { (ours(&a, &near), theirs(&b, &far)) };
            // If wireguard-go receives two responses, it may begin its session twice with the same keys. Its first packets then repeat counters and
            // are lost, as they are between two wireguard-go.
            wait_until("a way through", SECOND * 20, || probe(&a, &b, v4(2), SECOND / 2).is_some());
            let arrived = send_numbers(&a, &b, 2000);
            assert!(!arrived.is_sorted(), "they come out of order");
            let times = |number: &u32| arrived.iter().filter(|other| *other == number).count();
            let wrong: Vec<(u32, usize)> =
                (0..2000).map(|number| (number, times(&number))).filter(|(_, times)| *times != 1).collect();
            assert!(wrong.is_empty(), "each arrives once; these came so many times: {wrong:?}");
        }
    });
}
