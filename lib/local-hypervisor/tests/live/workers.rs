//! Machines for workers, in the public network and behind NATs.

use std::{
    io::ErrorKind,
    net::{SocketAddr, UdpSocket},
    time::Duration,
};

use keelway_local_hypervisor::{
    LinkState, LocalHypervisorError, PowerState, WorkerMachine, WorkerRequest, WorkersRequest, create_worker,
    destroy_workers, forget, link_workers, power_workers, renumber, workers,
};

use crate::{
    found::{difference, facts},
    host::on_own_host,
    owned_fleet::{OwnedFleet, file_at, named},
    reach::{Place, public, serve},
};

/// How long to wait for a packet that has to arrive.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long to wait for a packet that must not arrive.
const NOTHING: Duration = Duration::from_millis(500);
/// A port on which no machine listens.
const PORT: u16 = 20_001;

fn request(owned: &OwnedFleet, name: &str, behind: &[&str]) -> WorkerRequest {
    WorkerRequest {
        fleet: owned.fleet().clone(),
        name: name.to_owned(),
        behind: behind.iter().map(|nat| (*nat).to_owned()).collect(),
        search: owned.request.search.clone(),
        launcher: owned.request.launcher.clone(),
    }
}

async fn create(owned: &OwnedFleet, name: &str, behind: &[&str]) -> WorkerMachine {
    create_worker(&request(owned, name, behind), &|_| {}).await.unwrap()
}

fn socket(place: Place<'_>, address: &str) -> UdpSocket {
    let socket = place.run(|| UdpSocket::bind(address).unwrap());
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    socket
}

/// Sends a packet, and returns the source address that the receiver observes.
fn seen_as(from: &UdpSocket, at: &UdpSocket, to: SocketAddr) -> SocketAddr {
    from.send_to(b"hello", to).unwrap();
    at.recv_from(&mut [0; 16]).unwrap().1
}

fn arrives(from: &UdpSocket, to: SocketAddr, at: &UdpSocket) -> bool {
    from.send_to(b"hello", to).unwrap();
    at.set_read_timeout(Some(NOTHING)).unwrap();
    let answer = at.recv_from(&mut [0; 16]);
    at.set_read_timeout(Some(PATIENCE)).unwrap();
    match answer {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::WouldBlock);
            false
        }
    }
}

#[test]
fn workers_have_the_requested_position() {
    on_own_host("workers::workers_have_the_requested_position", async || {
        let owned = OwnedFleet::new("workers");
        let found = facts(owned.fleet().name());
        let nowhere = create_worker(&request(&owned, "w1", &[]), &|_| {}).await;
        assert!(matches!(nowhere, Err(LocalHypervisorError::NoFleet { .. })), "{nowhere:?}");
        let machines = owned.create(1, 0).await;
        serve(&machines[0]);
        let gate = named(&machines, "public-1");
        let alone = facts(owned.fleet().name());

        let w1 = create(&owned, "w1", &["nat-a"]).await;
        let w2 = create(&owned, "w2", &["nat-b", "nat-c"]).await;
        let w3 = create(&owned, "w3", &[]).await;
        assert_eq!((w1.address, w1.address), (w2.address, [192, 168, 1, 2].into()));
        assert_eq!(w3.address, w3.public_address);
        assert_eq!(create(&owned, "w1", &["nat-a"]).await, w1, "once more changes nothing");
        assert_eq!(workers(owned.fleet()).unwrap(), [w1.clone(), w2.clone(), w3.clone()]);

        let to = format!("{}:{PORT}", public(gate)).parse().unwrap();
        let server = socket(Place::Machine(gate), &format!("0.0.0.0:{PORT}"));
        for worker in [&w1, &w2, &w3] {
            let place = Place::Socket(&worker.socket);
            assert!(place.reaches(public(gate)), "{}", worker.name);
            let seen = seen_as(&socket(place, "0.0.0.0:0"), &server, to);
            assert_eq!(seen.ip(), worker.public_address, "{}", worker.name);
        }
        forgetful(&owned, &w1, &server, to).await;
        moving(&owned, &w2, &server, to).await;
        nobody_comes_in(&w1);
        own_directories(&w1, &w3);
        unplugged(&owned, &w1, &server, to).await;
        powerless(&owned, &w1, &server, to).await;

        destroy_workers(owned.fleet(), &["w1".to_owned(), "w2".to_owned(), "w3".to_owned()], &|_| {}).await.unwrap();
        assert_eq!(workers(owned.fleet()).unwrap(), []);
        Place::Host.shell("ip route flush 192.168.1.0/24");
        // The kernel needs a moment to assign the host's own IPv6 link-local address.
        let mut left = difference(&alone, &facts(owned.fleet().name()));
        left.retain(|fact| !fact.contains("fe80"));
        assert!(left.is_empty(), "{left:?}");
        create(&owned, "w4", &["nat-a"]).await;
        owned.destroy().await;
        assert_eq!(difference(&found, &facts(owned.fleet().name())), Vec::<String>::new());
    });
}

/// After a NAT has dropped its mappings, no packet reaches the worker until the worker sends again.
async fn forgetful(owned: &OwnedFleet, worker: &WorkerMachine, server: &UdpSocket, to: SocketAddr) {
    let client = socket(Place::Socket(&worker.socket), "0.0.0.0:0");
    let seen = seen_as(&client, server, to);
    assert!(arrives(server, seen, &client));
    forget(owned.fleet(), "nat-a", &|_| {}).await.unwrap();
    assert!(!arrives(server, seen, &client));
    let again = seen_as(&client, server, to);
    assert!(arrives(server, again, &client));
    let unknown = forget(owned.fleet(), "nat-x", &|_| {}).await;
    assert!(matches!(unknown, Err(LocalHypervisorError::NoNat { .. })), "{unknown:?}");
}

/// Each NAT of a series gets another address in turn. The worker is reachable again after it has sent a packet.
async fn moving(owned: &OwnedFleet, worker: &WorkerMachine, server: &UdpSocket, to: SocketAddr) {
    let client = socket(Place::Socket(&worker.socket), "0.0.0.0:0");
    let seen = seen_as(&client, server, to);
    for nat in ["nat-b", "nat-c"] {
        renumber(owned.fleet(), nat, &|_| {}).await.unwrap();
        assert!(!arrives(server, seen, &client), "{nat}");
    }
    let again = seen_as(&client, server, to);
    assert_ne!(again.ip(), seen.ip());
    assert_eq!(again.ip(), workers(owned.fleet()).unwrap()[1].public_address);
    assert!(arrives(server, again, &client));
}

/// The worker is unreachable from outside, also with a route to it. Without the rule of the NAT, the route is enough.
fn nobody_comes_in(worker: &WorkerMachine) {
    let (host, place) = (Place::Host, Place::Socket(&worker.socket));
    let inside = socket(place, &format!("0.0.0.0:{PORT}"));
    let outside = socket(host, "0.0.0.0:0");
    let to = SocketAddr::new(worker.address.into(), PORT);
    host.shell(&format!("ip route add 192.168.1.0/24 via {}", worker.public_address));
    assert!(!arrives(&outside, to, &inside));
    place.shell("ip route show default | grep -q 'via 192.168.1.1'");
}

fn own_directories(one: &WorkerMachine, other: &WorkerMachine) {
    for directory in ["/etc", "/opt", "/usr/local/bin", "/var/lib", "/run"] {
        let name = format!("{directory}/of-a-worker");
        std::fs::write(file_at(&one.socket, &name), "x").unwrap();
        assert!(!file_at(&other.socket, &name).exists() && !std::path::Path::new(&name).exists(), "{name}");
    }
}

/// A worker without a link sends nothing. It keeps its addresses and its route.
async fn unplugged(owned: &OwnedFleet, worker: &WorkerMachine, server: &UdpSocket, to: SocketAddr) {
    let client = socket(Place::Socket(&worker.socket), "0.0.0.0:0");
    let names = [worker.name.clone()];
    link_workers(owned.fleet(), &names, LinkState::Down, &|_| {}).await.unwrap();
    assert!(!arrives(&client, to, server));
    link_workers(owned.fleet(), &names, LinkState::Up, &|_| {}).await.unwrap();
    // The kernel needs a moment to detect the link. Packets before that are lost.
    assert!((0..60).any(|_| arrives(&client, to, server)), "nothing comes out");
    let unknown = link_workers(owned.fleet(), &["w9".to_owned()], LinkState::Down, &|_| {}).await;
    assert!(matches!(unknown, Err(LocalHypervisorError::NoWorker { .. })), "{unknown:?}");
}

/// A worker without power has no process, no link and no `/run`. With power, its disk and its address are as before.
async fn powerless(owned: &OwnedFleet, worker: &WorkerMachine, server: &UdpSocket, to: SocketAddr) {
    let file = |name: &str| file_at(&worker.socket, name);
    for name in ["/run/gone", "/etc/stays", "/var/lib/stays"] {
        std::fs::write(file(name), "x").unwrap();
    }
    let request = WorkersRequest {
        fleet: owned.fleet().clone(),
        names: vec![worker.name.clone()],
        search: owned.request.search.clone(),
        launcher: owned.request.launcher.clone(),
    };
    power_workers(&request, PowerState::Off, &|_| {}).await.unwrap();
    assert!(!worker.socket.exists());
    let down = link_workers(owned.fleet(), &request.names, LinkState::Up, &|_| {}).await;
    assert!(matches!(down, Err(LocalHypervisorError::WorkerDown { .. })), "{down:?}");
    power_workers(&request, PowerState::On, &|_| {}).await.unwrap();
    assert!(file("/etc/stays").exists() && file("/var/lib/stays").exists() && !file("/run/gone").exists());
    assert_eq!(create(owned, &worker.name, &["nat-a"]).await, *worker, "it is where it was");
    let place = Place::Socket(&worker.socket);
    assert_eq!(seen_as(&socket(place, "0.0.0.0:0"), server, to).ip(), worker.public_address);
}
