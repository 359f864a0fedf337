//! The memory that clients without credentials can use up in an agent by connecting.

use std::{
    io::{ErrorKind, Write},
    net::{SocketAddr, TcpStream},
};

use keelway_e2e::{TestControlPlane, TestMachine, process};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The number of connections that stay open.
const MANY: usize = 10_000;
/// The limit for the agent's peak memory, in KiB.
const MOST: u64 = 100 << 10;
/// The start of a TLS record of 16 KiB (RFC 8446, 5.1) that is never completed.
const BEGINNING: [u8; 5] = [22, 3, 1, 0x40, 0];

/// The agent continues to serve the driver, and its memory stays below the limit.
pub(crate) fn take_nothing(plane: &TestControlPlane<'_>) {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).unwrap();
    let machine = plane.private();
    let address: SocketAddr = machine.document.spec.endpoint.address().unwrap().parse().unwrap();
    let silent = machine.within(|| begin(address, MANY / 2, &[]));
    answers(plane);
    let halting = machine.within(|| begin(address, MANY / 2, &[&BEGINNING[..], &[0; 12 << 10]].concat()));
    answers(plane);
    assert_eq!(silent.len() + halting.len(), MANY);
    let most = most_resident(machine);
    println!("{most:>7} KiB at most of the agent, with {MANY} connections of strangers");
    assert!(most < MOST, "{most} KiB");
}

/// Opens connections and sends these bytes on each.
fn begin(address: SocketAddr, count: usize, says: &[u8]) -> Vec<TcpStream> {
    let begin = |_| {
        let mut stream = TcpStream::connect(address).unwrap();
        // The agent may have closed this connection already in favour of a newer one.
        if let Err(error) = stream.write_all(says) {
            assert!(matches!(error.kind(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe), "{error}");
        }
        stream
    };
    (0..count).map(begin).collect()
}

fn answers(plane: &TestControlPlane<'_>) {
    let planned = plane.keelway.run(&["plan", "--exit-code"], &plane.text).succeeded();
    assert!(planned.stderr.is_empty(), "{}", planned.stderr);
}

fn most_resident(machine: &TestMachine) -> u64 {
    let text = process::status(machine.agent_pid(), "VmHWM").unwrap();
    text.trim_end_matches(" kB").trim().parse().unwrap()
}
