//! Many peers in one process, of which each only makes handshakes, and floods of initiations from strangers.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use keelway_vpn::{
    Config, Core, CoreLimits, CoreOutput, DatagramPath, PacketRoute, PeerConfig, PrivateKey, PublicKey, SystemClock,
};

use super::namespace::Namespace;

pub struct Swarm {
    keys: Vec<PrivateKey>,
}

impl Swarm {
    pub fn new(count: usize) -> Self {
        let key = |number: usize| {
            let mut bytes = [9; 32];
            bytes[8..16].copy_from_slice(&(number as u64).to_le_bytes());
            PrivateKey::from_bytes(bytes)
        };
        Self { keys: (0..count).map(key).collect() }
    }

    /// Returns the sections of a configuration file for all peers.
    pub fn config(&self) -> String {
        let mut text = String::new();
        for (number, key) in (0u32..).zip(&self.keys) {
            let address = IpAddr::from((0x0a40_0000 + number).to_be_bytes());
            let _ = write!(text, "[Peer]\nPublicKey = {}\nAllowedIPs = {address}/32\n", key.public());
        }
        text
    }

    /// Returns one initiation of each peer.
    pub fn initiations(&self, to: &str, server: PublicKey) -> Initiations {
        let to = to.parse().unwrap();
        Initiations(self.keys.iter().map(|key| begin(key, to, server).1).collect())
    }

    /// Establishes a session for each peer, all from one address.
    pub fn shake_hands(&self, from: &Namespace, to: &str, server: PublicKey) {
        let to: SocketAddr = to.parse().unwrap();
        let keys = self.keys.clone();
        from.within(move || {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
            for key in &keys {
                shake(&socket, key, to, server);
            }
        });
    }
}

/// Initiations that are valid. Only their senders are strangers.
pub struct Initiations(Vec<Vec<u8>>);

impl Initiations {
    /// Sends the initiations from `namespace` in a loop, `rate` a second.
    pub fn flood(self, namespace: &Namespace, to: &str, rate: u32) -> Flood {
        let to: SocketAddr = to.parse().unwrap();
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
        let (until, count) = (Arc::clone(&stop), Arc::clone(&sent));
        let cookies = Arc::new(AtomicU32::new(0));
        let found = Arc::clone(&cookies);
        let thread = namespace.run(move || {
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
            let started = Instant::now();
            while !until.load(Ordering::Acquire) {
                let due = started.elapsed().as_micros() * u128::from(rate) / 1_000_000;
                while u128::from(count.load(Ordering::Relaxed)) < due {
                    let at = count.fetch_add(1, Ordering::Relaxed) as usize % self.0.len();
                    let _ = socket.send_to(&self.0[at], to);
                }
                // Cookies arrive here. The wait for one is the pause between bursts.
                if socket.recv(&mut [0; 64]).is_ok() {
                    found.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        Flood { stop, sent, cookies, thread }
    }
}

/// A running flood.
pub struct Flood {
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU32>,
    cookies: Arc<AtomicU32>,
    thread: JoinHandle<()>,
}

impl Flood {
    /// Returns the number of initiations sent so far.
    pub fn sent(&self) -> u32 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Returns the number of datagrams received so far. A stranger receives cookies only, and only under load.
    pub fn cookies(&self) -> u32 {
        self.cookies.load(Ordering::Relaxed)
    }

    pub fn stop(self) {
        self.stop.store(true, Ordering::Release);
        self.thread.join().unwrap();
    }
}

fn begin(key: &PrivateKey, to: SocketAddr, server: PublicKey) -> (Core, Vec<u8>) {
    let now = SystemClock.now();
    let config = Config { private_key: Some(key.clone()), route: PacketRoute::Local, mtu: 1420 };
    let mut core = Core::new(config, CoreLimits::default(), 1, now);
    let mut peer = PeerConfig::new(server);
    peer.endpoint = Some(to);
    peer.persistent_keepalive = 1;
    core.set_peers(&[peer].into_iter().collect(), now);
    let mut out = CoreOutput::new();
    core.poll_timers(now, &mut out);
    let initiation = out.datagrams().next().unwrap().1.to_vec();
    (core, initiation)
}

/// Completes one handshake. Under load, the responses are cookies until the next second.
fn shake(socket: &UdpSocket, key: &PrivateKey, to: SocketAddr, server: PublicKey) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while Instant::now() < deadline {
        let (mut core, initiation) = begin(key, to, server);
        socket.send_to(&initiation, to).unwrap();
        let mut buffer = [0; 2048];
        let Ok(length) = socket.recv(&mut buffer) else {
            continue;
        };
        let mut out = CoreOutput::new();
        core.handle_datagram(DatagramPath::to(to), &buffer[..length], SystemClock.now(), &mut out);
        if core.stats().all(|peer| peer.last_handshake.is_some()) {
            for (_, datagram) in out.datagrams() {
                socket.send_to(datagram, to).unwrap();
            }
            return;
        }
    }
    panic!("no handshake in time");
}
