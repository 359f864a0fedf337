//! Data through tunnels.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};

use super::{namespace::Namespace, process::wait_until};

/// Pseudo-random bytes that cannot be compressed or predicted (xorshift64*).
pub struct Noise(u64);

impl Noise {
    pub fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let next = self.next().to_le_bytes();
            chunk.copy_from_slice(&next[..chunk.len()]);
        }
    }
}

const CHUNK: usize = 256 * 1024;

/// Sends pseudo-random bytes. Returns their digest.
pub fn send_noise(stream: &mut impl Write, bytes: usize) -> io::Result<Vec<u8>> {
    let mut noise = Noise::new(bytes as u64);
    let mut digest = Sha256::new();
    let mut chunk = vec![0; CHUNK];
    let mut left = bytes;
    while left > 0 {
        let length = left.min(CHUNK);
        noise.fill(&mut chunk[..length]);
        digest.update(&chunk[..length]);
        stream.write_all(&chunk[..length])?;
        left -= length;
    }
    Ok(digest.finalize().to_vec())
}

/// Receives until the end of the stream. Returns the number of bytes and their digest.
pub fn receive(stream: &mut impl Read) -> io::Result<(usize, Vec<u8>)> {
    let mut digest = Sha256::new();
    let mut chunk = vec![0; CHUNK];
    let mut total = 0;
    loop {
        let length = stream.read(&mut chunk)?;
        if length == 0 {
            return Ok((total, digest.finalize().to_vec()));
        }
        digest.update(&chunk[..length]);
        total += length;
    }
}

const PATIENCE: Duration = Duration::from_secs(120);

/// Sends random bytes over TCP from one namespace to an address of the other. Fails unless they arrive unchanged. Returns how long that took.
pub fn transfer(from: &Namespace, to: &Namespace, address: IpAddr, bytes: usize) -> Duration {
    let (ready, listening) = std::sync::mpsc::channel();
    let receiver = to.run(move || {
        let listener = TcpListener::bind(SocketAddr::new(address, 0)).unwrap();
        ready.send(listener.local_addr().unwrap()).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        receive(&mut stream).unwrap()
    });
    let target = listening.recv_timeout(PATIENCE).unwrap();
    let started = Instant::now();
    let sent = from.within(move || {
        let mut stream = connect(target);
        send_noise(&mut stream, bytes).unwrap()
    });
    let (total, arrived) = receiver.join().unwrap();
    assert_eq!(total, bytes);
    assert_eq!(arrived, sent, "other bytes arrived than were sent");
    started.elapsed()
}

pub fn connect(target: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect_timeout(&target, Duration::from_secs(30)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// Sends one small message to an echo server. Returns the time until the response, or `None` if none arrives within `patience`.
pub fn probe(from: &Namespace, to: &Namespace, address: IpAddr, patience: Duration) -> Option<Duration> {
    let echo = to.within(move || UdpSocket::bind(SocketAddr::new(address, 0)).unwrap());
    let target = echo.local_addr().unwrap();
    echo.set_read_timeout(Some(patience)).unwrap();
    let answering = std::thread::spawn(move || {
        let mut buffer = [0; 64];
        if let Ok((length, from)) = echo.recv_from(&mut buffer) {
            let _ = echo.send_to(&buffer[..length], from);
        }
    });
    let took = from.within(move || {
        let any: IpAddr = if target.is_ipv4() { [0, 0, 0, 0].into() } else { [0u16; 8].into() };
        let socket = UdpSocket::bind(SocketAddr::new(any, 0)).unwrap();
        socket.set_read_timeout(Some(patience)).unwrap();
        let started = Instant::now();
        socket.send_to(b"probe", target).ok()?;
        socket.recv(&mut [0; 64]).ok().map(|_| started.elapsed())
    });
    answering.join().unwrap();
    took
}

/// Waits until a message is answered. Single messages may be lost while both ends begin a session at once.
pub fn reach(from: &Namespace, to: &Namespace, address: IpAddr) {
    wait_until(&format!("an answer of {address}"), Duration::from_secs(30), || {
        probe(from, to, address, Duration::from_secs(2)).is_some()
    });
}
