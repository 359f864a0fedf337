//! What a worker's key permits, and what it does not.

use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::Ordering;

use serde_json::json;

use crate::control_plane::echo;
use crate::daemon::{Gateway, Keys};
use crate::lan::{Lan, address};
use crate::support::wait_until;
use crate::worker::{RANGES, Worker, object};
use crate::{PATIENCE, SECOND, on_host};

const GATEWAY: u8 = 1;
/// The gateway of another cluster.
const ANOTHER: u8 = 2;
const HYPERVISOR: u8 = 20;

#[test]
fn a_worker_sends_as_itself() {
    /// The address of another worker, and that of one of its pods.
    const OTHERS: [&str; 2] = ["100.80.0.8", "10.244.8.1"];
    on_host("bounds::a_worker_sends_as_itself", || {
        let (lan, keys) = (Lan::new(), Keys::new());
        let mut gateway = Gateway::new(&lan, GATEWAY, &keys, &keys.authority());
        gateway.keep(&[7, 8, 9].map(object));
        gateway.start();
        let [worker, hears] = [7, 9].map(|number| Worker::new(&lan, number, &[(GATEWAY, gateway.key())], 1));
        hears.machine.ip(&["route", "add", "10.244.0.0/16", "dev", "kw0"]);
        let foreign = [&OTHERS[..], &["100.80.255.1"]].concat();
        for address in &foreign {
            worker.add_address(&format!("{address}/32"));
        }
        let inbox = hears.machine.within(|| UdpSocket::bind("100.80.0.9:7000").unwrap());
        inbox.set_read_timeout(Some(PATIENCE)).unwrap();
        let next_sender = || inbox.recv_from(&mut [0; 16]).unwrap().1.ip().to_string();
        let say_as = |address: &str| {
            let from = format!("{address}:0");
            let say = move || UdpSocket::bind(from).unwrap().send_to(b"hello", "100.80.0.9:7000").unwrap();
            worker.machine.within(say);
        };
        let are_there = || reach(&worker, "100.80.0.9:7001") == Reach::Refused;
        wait_until("both have a tunnel", PATIENCE, are_there);
        for address in foreign {
            say_as(address);
        }
        // A tunnel keeps the order: a packet that was sent earlier would arrive earlier.
        for own in ["100.80.0.7", "10.244.7.1"] {
            say_as(own);
            assert_eq!(next_sender(), own, "with another's address");
        }

        // Only the addresses in the objects keep a worker from using them.
        gateway.daemon.process().stop();
        gateway.change_kept(|objects| {
            objects.retain(|object| object["name"] != "w8");
            let own = objects.iter_mut().find(|object| object["name"] == "w7").unwrap();
            own["addresses"].as_array_mut().unwrap().push(json!(OTHERS[0]));
            own["podCIDRs"].as_array_mut().unwrap().push(json!("10.244.8.0/24"));
        });
        gateway.start();
        wait_until("both have a tunnel again", PATIENCE, are_there);
        for address in OTHERS {
            say_as(address);
            assert_eq!(next_sender(), address);
        }
    });
}

#[test]
fn a_worker_reaches_no_machine_and_no_other_cluster() {
    /// Addresses of another machine, of the gateway's machine, and of cloud metadata, and one of a machine within the VPN's range.
    const TARGETS: [&str; 4] = ["10.231.0.20", "198.51.100.1", "169.254.169.254", "100.80.200.20"];
    on_host("bounds::a_worker_reaches_no_machine_and_no_other_cluster", || {
        let (lan, keys) = (Lan::new(), Keys::new());
        let authority = keys.authority();
        let hypervisor = lan.machine(HYPERVISOR);
        hypervisor.ip(&["addr", "add", "100.80.200.20/32", "dev", "lo"]);
        let mut gateway = Gateway::new(&lan, GATEWAY, &keys, &authority);
        let machine = &gateway.daemon.machine;
        machine.ip(&["addr", "add", "198.51.100.1/32", "dev", "lo"]);
        machine.ip(&["addr", "add", "169.254.169.254/32", "dev", "lo"]);
        machine.ip(&["route", "add", "100.80.200.20/32", "via", &address(HYPERVISOR)]);
        let servers = [echo(machine, 7000), echo(&hypervisor, 7000)];
        gateway.keep(&[7, 9].map(object));
        gateway.start();
        // A worker can send any packet into its own end of the tunnel.
        let ranges = [&RANGES[..], &TARGETS].concat();
        let worker = Worker::with_ranges(&lan, 7, &[(GATEWAY, gateway.key())], 1, &ranges);
        for target in TARGETS {
            worker.machine.ip(&["route", "replace", target, "dev", "kw0", "src", "100.80.0.7"]);
        }
        let other = Worker::with_ranges(&lan, 9, &[(GATEWAY, gateway.key())], 1, &ranges);
        other.echo(7000);
        wait_until("another worker is reached", PATIENCE, || reach(&worker, "100.80.0.9:7000") == Reach::Open);
        for target in TARGETS {
            assert_eq!(reach(&worker, &format!("{target}:7000")), Reach::Silent, "{target}");
        }
        assert_eq!(reach(&worker, "100.80.255.1:7000"), Reach::Refused, "a gateway serves nobody in the VPN");

        // The packets did reach the gateway: with other bounds, it forwards them to the peer that has these addresses, which is a worker again.
        gateway.daemon.process().stop();
        let bounds = ["10.244.0.0/16", "10.231.0.0/24", "198.51.100.0/24", "169.254.0.0/16"];
        gateway.config["wireGuard"]["podCIDRs"] = json!(bounds);
        gateway.change_kept(|objects| {
            let claims = objects.iter_mut().find(|object| object["name"] == "w9").unwrap();
            claims["addresses"].as_array_mut().unwrap().push(json!(TARGETS[3]));
            let ranges = TARGETS[..3].iter().map(|target| json!(format!("{target}/32")));
            claims["podCIDRs"].as_array_mut().unwrap().extend(ranges);
        });
        for target in TARGETS {
            other.add_address(&format!("{target}/32"));
        }
        gateway.start();
        for target in TARGETS {
            let at = format!("{target}:7000");
            wait_until(target, PATIENCE, || reach(&worker, &at) == Reach::Open);
        }
        assert_eq!(servers.map(|count| count.load(Ordering::Relaxed)), [0, 0], "a machine was reached");

        // The gateway of another cluster has other peers.
        let mut another = Gateway::new(&lan, ANOTHER, &keys, &authority);
        another.keep(&[object(9)]);
        another.start();
        let astray = Worker::new(&lan, 8, &[(ANOTHER, another.key())], 1);
        assert_eq!(reach(&astray, "100.80.255.2:7000"), Reach::Silent, "another cluster's gateway answers");
        another.daemon.process().stop();
        another.keep(&[8, 9].map(object));
        another.start();
        wait_until("with a peer of that key: it answers", PATIENCE, || {
            reach(&astray, "100.80.255.2:7000") == Reach::Refused
        });
    });
}

/// The outcome of a connection attempt.
#[derive(Debug, PartialEq, Eq)]
enum Reach {
    Open,
    Refused,
    Silent,
}

fn reach(worker: &Worker, to: &str) -> Reach {
    let to: SocketAddr = to.parse().unwrap();
    worker.machine.within(move || match TcpStream::connect_timeout(&to, SECOND) {
        Ok(_) => Reach::Open,
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionRefused => Reach::Refused,
        Err(_) => Reach::Silent,
    })
}
