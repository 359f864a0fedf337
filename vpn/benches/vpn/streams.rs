//! One TCP stream for some time.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::support::{Namespace, connect};

/// Receives one stream.
pub(crate) struct Receiver {
    /// The address at which it listens.
    pub(crate) address: SocketAddr,
    thread: JoinHandle<f64>,
}

impl Receiver {
    pub(crate) fn start(namespace: &Namespace, address: IpAddr) -> Self {
        let (ready, listening) = mpsc::channel();
        let thread = namespace.run(move || {
            let listener = TcpListener::bind(SocketAddr::new(address, 0)).unwrap();
            ready.send(listener.local_addr().unwrap()).unwrap();
            let (mut stream, _) = listener.accept().unwrap();
            let started = Instant::now();
            drain(&mut stream) / started.elapsed().as_secs_f64()
        });
        Self { address: listening.recv().unwrap(), thread }
    }

    /// Returns the speed from the first byte to the last, in Gbit/s.
    pub(crate) fn speed(self) -> f64 {
        self.thread.join().unwrap() * 8.0 / 1e9
    }
}

fn drain(stream: &mut impl Read) -> f64 {
    let mut chunk = vec![0; 256 * 1024];
    let mut total = 0.0;
    while let Ok(length @ 1..) = stream.read(&mut chunk) {
        total += length as f64;
    }
    total
}

/// Sends for this time. Returns the speed that the receiver measures, in Gbit/s.
pub(crate) fn stream(from: &Namespace, to: &Namespace, address: IpAddr, time: Duration) -> f64 {
    let receiver = Receiver::start(to, address);
    let target = receiver.address;
    from.within(move || {
        let mut stream = connect(target);
        let chunk = vec![7; 128 * 1024];
        let started = Instant::now();
        while started.elapsed() < time {
            stream.write_all(&chunk).unwrap();
        }
    });
    receiver.speed()
}
