//! A network between two ends that loses, doubles and reorders datagrams.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use super::namespace::Namespace;

/// What the network does with a datagram.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    Deliver,
    Lose,
    Double,
    /// Delays the datagram until this many later ones overtake it.
    Hold(u64),
}

/// Forwards datagrams between its last sender and port 51820 of the same machine.
pub struct Network {
    stopping: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Network {
    /// The address at which it listens: the right side of a chain's first link.
    pub const ADDRESS: &str = "10.231.0.2:7000";

    /// Starts the network in `namespace`. The arguments of `judge` are whether a datagram goes to the server, and its bytes.
    pub fn start(namespace: &Namespace, judge: impl FnMut(bool, &[u8]) -> Fate + Send + 'static) -> Self {
        let stopping = Arc::new(AtomicBool::new(false));
        let stop = Arc::clone(&stopping);
        let (ready, listening) = std::sync::mpsc::channel();
        let thread = namespace.run(move || {
            let socket = UdpSocket::bind(Self::ADDRESS).unwrap();
            socket.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
            ready.send(()).unwrap();
            Forwarder { socket, client: None, held: None, judge }.run(&stop);
        });
        listening.recv().unwrap();
        Self { stopping, thread: Some(thread) }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Forwarder<J> {
    socket: UdpSocket,
    client: Option<SocketAddr>,
    /// A delayed datagram, its destination, and the number of datagrams that still have to overtake it.
    held: Option<(Vec<u8>, SocketAddr, u64)>,
    judge: J,
}

impl<J: FnMut(bool, &[u8]) -> Fate> Forwarder<J> {
    fn run(&mut self, stop: &AtomicBool) {
        let mut buffer = vec![0; 65536];
        while !stop.load(Ordering::Acquire) {
            match self.socket.recv_from(&mut buffer) {
                Ok((length, from)) => self.forward(&buffer[..length], from),
                Err(_) => self.release(u64::MAX),
            }
        }
    }

    fn forward(&mut self, bytes: &[u8], from: SocketAddr) {
        let server: SocketAddr = "10.231.0.2:51820".parse().unwrap();
        let is_to_server = from != server;
        if is_to_server {
            self.client = Some(from);
        }
        let Some(to) = (if is_to_server { Some(server) } else { self.client }) else { return };
        match (self.judge)(is_to_server, bytes) {
            Fate::Lose => {}
            Fate::Hold(overtakers) if self.held.is_none() => self.held = Some((bytes.to_vec(), to, overtakers)),
            Fate::Double => {
                let _ = self.socket.send_to(bytes, to);
                let _ = self.socket.send_to(bytes, to);
            }
            Fate::Deliver | Fate::Hold(_) => drop(self.socket.send_to(bytes, to)),
        }
        self.release(1);
    }

    /// Counts this many overtaking datagrams. After the last one, sends the delayed datagram.
    fn release(&mut self, overtakers: u64) {
        if let Some((_, _, left)) = &mut self.held {
            *left = left.saturating_sub(overtakers);
        }
        if let Some((bytes, to, _)) = self.held.take_if(|(_, _, left)| *left == 0) {
            let _ = self.socket.send_to(&bytes, to);
        }
    }
}
