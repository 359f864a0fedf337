//! Connections between machines, and from the host to machines.

use std::{
    fs::File,
    io,
    net::{SocketAddr, TcpListener, TcpStream},
    os::fd::AsFd,
    path::Path,
    process::Command,
    thread,
    time::Duration,
};

use keelway_api::Hypervisor;
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::owned_fleet::{peer, peer_at};

const PORT: u16 = 20_000;

/// A response arrives within microseconds. Without one, the packet was dropped.
const LIMIT: Duration = Duration::from_millis(500);

/// A network to dial from.
#[derive(Clone, Copy)]
pub(crate) enum Place<'a> {
    Host,
    Machine(&'a Hypervisor),
    /// The machine that listens on this socket.
    Socket(&'a Path),
}

impl Place<'_> {
    pub(crate) fn run<T: Send>(self, function: impl FnOnce() -> T + Send) -> T {
        let peer = match self {
            Place::Host => return function(),
            Place::Machine(machine) => peer(machine),
            Place::Socket(socket) => peer_at(socket),
        };
        let namespace = File::open(format!("/proc/{peer}/ns/net")).unwrap();
        let inside = || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            function()
        };
        thread::scope(|scope| scope.spawn(inside).join().unwrap())
    }

    pub(crate) fn reaches(self, address: &str) -> bool {
        let address = SocketAddr::new(address.parse().unwrap(), PORT);
        self.run(|| TcpStream::connect_timeout(&address, LIMIT)).is_ok()
    }

    /// Runs a command line in this network.
    pub(crate) fn shell(self, line: &str) {
        let output = self.run(|| Command::new("sh").args(["-ec", line]).output().unwrap());
        assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    }
}

/// Accepts connections on all addresses of a machine until the test ends.
pub(crate) fn serve(machine: &Hypervisor) {
    let listener = Place::Machine(machine).run(|| TcpListener::bind(("0.0.0.0", PORT)).unwrap());
    thread::spawn(move || -> io::Result<()> {
        loop {
            listener.accept()?;
        }
    });
}

pub(crate) fn private(machine: &Hypervisor) -> &str {
    &machine.spec.addresses.private[0]
}

pub(crate) fn public(machine: &Hypervisor) -> &str {
    &machine.spec.addresses.public[0]
}
