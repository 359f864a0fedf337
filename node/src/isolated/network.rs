//! Machines of a test that have only a network.

use std::{
    io::Read,
    net::{SocketAddr, TcpListener, TcpStream},
    sync::mpsc::{Sender, channel},
    thread,
    time::Duration,
};

use rustix::thread::{Pid, UnshareFlags, gettid};
use socket2::{Domain, Protocol, Socket, Type};

use super::run;

/// How long a connection may take. All machines are on this one.
const ANSWER: Duration = Duration::from_millis(400);

type NetworkTask = Box<dyn FnOnce() + Send>;

/// A machine: a thread in a network namespace of its own, which ends with the value.
pub(crate) struct NetworkMachine {
    tasks: Sender<NetworkTask>,
    thread: Pid,
}

impl NetworkMachine {
    pub(crate) fn new() -> Self {
        let (started, thread) = channel();
        let (tasks, received) = channel::<NetworkTask>();
        thread::spawn(move || {
            #[expect(
                deprecated,
                reason = "its successor is unsafe for the sake of UnshareFlags::FILES, which is not passed"
            )]
            rustix::thread::unshare(UnshareFlags::NEWNET).unwrap();
            run("ip", &["link", "set", "lo", "up"]);
            started.send(gettid()).unwrap();
            for task in &received {
                task();
            }
        });
        Self { tasks, thread: thread.recv().unwrap() }
    }

    /// Runs a function on the machine.
    pub(crate) fn within<T: Send + 'static>(&self, function: impl FnOnce() -> T + Send + 'static) -> T {
        let (done, result) = channel();
        self.tasks.send(Box::new(move || done.send(function()).unwrap())).unwrap();
        result.recv().unwrap()
    }

    /// Runs a shell script on the machine, which must succeed.
    pub(crate) fn shell(&self, script: &str) -> String {
        let script = script.to_owned();
        self.within(move || run("sh", &["-ec", &script]))
    }

    /// Connects this machine to another one with a cable: the names of both ends, and their addresses.
    pub(crate) fn connect(&self, (own, own_address): (&str, &str), other: &Self, (name, address): (&str, &str)) {
        let thread = other.thread.as_raw_nonzero();
        self.shell(&format!("ip link add {own} type veth peer name {name} netns {thread}"));
        self.shell(&format!("ip address add {own_address} dev {own}; ip link set {own} up"));
        other.shell(&format!("ip address add {address} dev {name}; ip link set {name} up"));
    }

    /// Listens at all addresses of this family.
    pub(crate) fn listen(&self, port: u16) -> TcpListener {
        self.within(move || TcpListener::bind(("0.0.0.0", port)).unwrap())
    }

    /// Whether the machine can connect to the address.
    pub(crate) fn reaches(&self, address: &str) -> bool {
        let address: SocketAddr = address.parse().unwrap();
        self.within(move || TcpStream::connect_timeout(&address, ANSWER).is_ok())
    }

    /// Whether the address of IPv4 answers an echo request of ICMP.
    pub(crate) fn pings(&self, address: &str) -> bool {
        /// The type, the code, the checksum, an identifier and a number (RFC 792).
        const REQUEST: [u8; 8] = [8, 0, 0xf7, 0xfd, 0, 1, 0, 1];
        /// The type of a reply follows the header of IPv4.
        const REPLY: (usize, u8) = (20, 0);
        let address = SocketAddr::new(address.parse().unwrap(), 0);
        self.within(move || {
            let socket = Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::ICMPV4)).unwrap();
            socket.set_read_timeout(Some(ANSWER)).unwrap();
            socket.send_to(&REQUEST, &address.into()).unwrap();
            let mut buffer = [0; 64];
            (&socket).read(&mut buffer).is_ok_and(|length| length > REPLY.0 && buffer[REPLY.0] == REPLY.1)
        })
    }
}
