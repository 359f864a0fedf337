//! The disk space that a client without credentials can use up by connecting to an ingress.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    path::Path,
    process::Command,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use keelway_e2e::{TestControlPlane, TestFleet, TestMachine, deadline, host::on_own_host};
use rustix::net::sockopt::set_socket_linger;

use crate::life;

/// The number of connections. `KEELWAY_CONNECTIONS` overrides it while this test is changed.
const MANY: u64 = 1_000_000;
/// The number of concurrent connections.
const THREADS: usize = 4;
/// The most connections in a second. An ingress rejects more than 20,000 new ones within ten seconds from one source.
const RATE: u32 = 1_900;
/// The most by which Keelway's files on the disk of a machine may grow.
const MOST: u64 = 100 << 20;
/// The time limit for each connection.
const PATIENCE: Duration = Duration::from_secs(10);

#[test]
#[ignore = "soak: 1,000,000 connections to an ingress"]
fn connections_of_a_stranger_fill_no_disk() {
    on_own_host("flood::connections_of_a_stranger_fill_no_disk", scenario);
}

fn scenario() {
    let mut world = TestFleet::new("e2eflood");
    let made = world.create_two();
    let plane = life::born(&world.keelway, &made, &[]);
    let machines = [plane.public(), plane.private()];
    let before = machines.map(on_disk);
    let begun = Instant::now();
    let many = std::env::var("KEELWAY_CONNECTIONS").map_or(MANY, |many| many.parse().unwrap());
    let tally = flood(plane.ingress(), many);
    println!("{} s for {many} connections: {tally:?}", begun.elapsed().as_secs());
    for (machine, before) in machines.into_iter().zip(before) {
        let grown = on_disk(machine).saturating_sub(before);
        println!("{:>7} KiB more on {}", grown >> 10, machine.name());
        assert!(grown < MOST, "{} grew by {grown} bytes", machine.name());
    }
    serves(&plane);
}

/// The number of connections by their outcome.
#[derive(Debug, Default)]
struct Tally {
    made: AtomicU64,
    /// Connections on which the API server sent a response.
    answered: AtomicU64,
    refused: AtomicU64,
}

/// Opens this many connections. Of each three, one sends plain HTTP and waits for the response, and two are reset immediately.
fn flood(ingress: SocketAddr, many: u64) -> Tally {
    let (next, tally, begun) = (AtomicU64::new(0), Tally::default(), Instant::now());
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= many {
                        return;
                    }
                    let due = Duration::from_secs_f64(u32::try_from(number).map_or(0.0, f64::from) / f64::from(RATE));
                    thread::park_timeout(due.saturating_sub(begun.elapsed()));
                    let (made, answered) = match connect(ingress, number) {
                        Ok(answered) => (&tally.made, answered),
                        Err(_) => (&tally.refused, false),
                    };
                    made.fetch_add(1, Ordering::Relaxed);
                    tally.answered.fetch_add(answered.into(), Ordering::Relaxed);
                }
            });
        }
    });
    // If haproxy rejected the connections, the test would show nothing.
    let made = tally.made.load(Ordering::Relaxed) > many * 9 / 10;
    assert!(made && tally.answered.load(Ordering::Relaxed) > many / 4, "{tally:?}");
    tally
}

/// Returns whether the API server sent a response.
fn connect(ingress: SocketAddr, number: u64) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect_timeout(&ingress, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut answer = Vec::new();
    if number.is_multiple_of(3) {
        let _ = stream.write_all(b"GET / HTTP/1.0\r\n\r\n").and_then(|()| stream.read_to_end(&mut answer));
    }
    // A reset frees the local port for the next connection.
    set_socket_linger(&stream, Some(Duration::ZERO))?;
    Ok(answer.starts_with(b"HTTP/1.0 400 "))
}

/// Returns the size of everything that Keelway and its components store on the disk of a machine, including logs.
fn on_disk(machine: &TestMachine) -> u64 {
    ["/var/lib/keelway", "/var/log/keelway"].into_iter().map(|path| size(&machine.path(path))).sum()
}

fn size(path: &Path) -> u64 {
    let counted = Command::new("du").args(["-s", "-B1"]).arg(path).output().unwrap();
    let text = String::from_utf8(counted.stdout).unwrap();
    // `du` fails if a file is removed while it runs. Such a file is not counted.
    text.split('\t').next().unwrap().parse().unwrap()
}

fn serves(plane: &TestControlPlane<'_>) {
    deadline::until("the API serves", deadline::KUBERNETES, || {
        plane.kubectl.run(&["get", "--raw", "/readyz"]).code() == 0
    });
}
