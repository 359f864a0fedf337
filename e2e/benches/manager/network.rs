//! A bridge on the host of the benchmark, and the networks of the machines behind it.

use std::{
    net::Ipv4Addr,
    process::{Command, Stdio},
};

use keelway_e2e::fake_machine::FakeNetwork;
use rustix::process::Pid;

/// The private network of the machines. The host's address is in it.
const PRIVATE: [u8; 2] = [10, 1];
const HOST: Ipv4Addr = Ipv4Addr::new(10, 1, 255, 254);
const PUBLIC: [u8; 3] = [203, 0, 113];

/// The addresses of a machine.
#[derive(Clone, Copy)]
pub(crate) struct Addresses {
    pub(crate) private: Ipv4Addr,
    pub(crate) public: Option<Ipv4Addr>,
}

impl Addresses {
    pub(crate) fn of(number: usize, is_public: bool) -> Self {
        let [high, low] = u16::try_from(number + 1).unwrap().to_be_bytes();
        let [first, second] = PRIVATE;
        Self {
            private: Ipv4Addr::new(first, second, high, low),
            public: is_public.then(|| public(u8::try_from(number + 1).unwrap())),
        }
    }
}

/// Creates the bridge, which is the host's end of all networks.
pub(crate) fn bridge() {
    ip("link add machines type bridge");
    ip("link set machines up");
    ip(&format!("address add {HOST}/16 dev machines"));
    ip(&format!("route add {}/24 dev machines src {HOST}", public(0)));
}

fn public(host: u8) -> Ipv4Addr {
    let [first, second, third] = PUBLIC;
    Ipv4Addr::new(first, second, third, host)
}

/// Moves the calling thread, and the threads that it creates later, into a network with only these addresses.
pub(crate) fn enter(addresses: Addresses) {
    let Addresses { private, public } = addresses;
    let all = [Some(private), public].into_iter().flatten().map(Into::into);
    FakeNetwork::New(all.collect()).enter().unwrap();
}

/// Connects the network of a thread to the bridge. Called on the host.
pub(crate) fn plug(number: usize, thread: Pid) {
    ip(&format!("link add m{number} type veth peer name eth0 netns {}", thread.as_raw_pid()));
    ip(&format!("link set m{number} master machines up"));
}

/// Configures the machine's end of that connection. Called in the network of the machine.
pub(crate) fn plugged(addresses: Addresses) {
    ip("link set eth0 up");
    ip(&format!("route add default dev eth0 src {}", addresses.private));
}

fn ip(words: &str) {
    let status = Command::new("ip").args(words.split(' ')).stdin(Stdio::null()).status().unwrap();
    assert!(status.success(), "ip {words}: {status}");
}
