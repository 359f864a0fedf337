//! What a stranger who only connects to an ingress can do to the disks of machines.

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

/// How many connections the stranger makes; another number in `KEELWAY_CONNECTIONS` is for those who change this test.
const MANY: u64 = 1_000_000;
/// At once.
const THREADS: usize = 4;
/// By how much all that Keelway has on the disk of a machine may grow.
const MOST: u64 = 100 << 20;
/// How long one connection may be without an answer.
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

/// What became of connections.
#[derive(Debug, Default)]
struct Tally {
    made: AtomicU64,
    /// By an API server, on those that said something.
    answered: AtomicU64,
    refused: AtomicU64,
}

/// Makes so many connections. Of three, one says what is no TLS and waits for the answer, and two are broken off at once.
fn flood(ingress: SocketAddr, many: u64) -> Tally {
    let (next, tally) = (AtomicU64::new(0), Tally::default());
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= many {
                        return;
                    }
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
    // A stranger whom haproxy turns away has not shown anything.
    let made = tally.made.load(Ordering::Relaxed) > many * 9 / 10;
    assert!(made && tally.answered.load(Ordering::Relaxed) > many / 4, "{tally:?}");
    tally
}

/// Returns whether somebody answered.
fn connect(ingress: SocketAddr, number: u64) -> std::io::Result<bool> {
    let mut stream = TcpStream::connect_timeout(&ingress, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut answer = Vec::new();
    if number.is_multiple_of(3) {
        let _ = stream.write_all(b"GET / HTTP/1.0\r\n\r\n").and_then(|()| stream.read_to_end(&mut answer));
    }
    // Each end by a reset leaves this side's port free for the next one.
    set_socket_linger(&stream, Some(Duration::ZERO))?;
    Ok(answer.starts_with(b"HTTP/1.0 400 "))
}

/// All that Keelway and its components have on the disk of a machine, logs included.
fn on_disk(machine: &TestMachine) -> u64 {
    ["/var/lib/keelway", "/var/log/keelway"].into_iter().map(|path| size(&machine.path(path))).sum()
}

fn size(path: &Path) -> u64 {
    let counted = Command::new("du").args(["-s", "-B1"]).arg(path).output().unwrap();
    let text = String::from_utf8(counted.stdout).unwrap();
    // A file that goes meanwhile makes it fail, and counts for nothing.
    text.split('\t').next().unwrap().parse().unwrap()
}

fn serves(plane: &TestControlPlane<'_>) {
    deadline::until("the API serves", deadline::KUBERNETES, || {
        plane.kubectl.run(&["get", "--raw", "/readyz"]).code() == 0
    });
}
