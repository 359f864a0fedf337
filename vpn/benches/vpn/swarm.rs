//! Many peers in one process, as far as their handshakes.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use keelway_vpn::{Clock, Config, Core, Limits, Output, Path, PeerConfig, PrivateKey, PublicKey, Route};

use crate::support::Namespace;

pub(crate) struct Swarm {
    keys: Vec<PrivateKey>,
}

impl Swarm {
    pub(crate) fn new(count: usize) -> Self {
        let key = |number: usize| {
            let mut bytes = [9; 32];
            bytes[8..16].copy_from_slice(&(number as u64).to_le_bytes());
            PrivateKey::from_bytes(bytes)
        };
        Self { keys: (0..count).map(key).collect() }
    }

    /// Sections of a file for each of them.
    pub(crate) fn config(&self) -> String {
        let mut text = String::new();
        for (number, key) in (0u32..).zip(&self.keys) {
            let address = IpAddr::from((0x0a40_0000 + number).to_be_bytes());
            let _ = write!(text, "[Peer]\nPublicKey = {}\nAllowedIPs = {address}/32\n", key.public());
        }
        text
    }

    /// One initiation of each.
    pub(crate) fn initiations(&self, to: &str, server: PublicKey) -> Vec<Vec<u8>> {
        let to = to.parse().expect("an address");
        self.keys.iter().map(|key| begin(key, to, server).1).collect()
    }

    /// Makes a session for each of them, all from one address.
    pub(crate) fn shake_hands(&self, from: &Namespace, to: &str, server: PublicKey) {
        let to: SocketAddr = to.parse().expect("an address");
        let keys = self.keys.clone();
        from.within(move || {
            let socket = UdpSocket::bind("0.0.0.0:0").expect("a socket");
            socket.set_read_timeout(Some(Duration::from_millis(500))).expect("a timeout");
            for key in &keys {
                shake(&socket, key, to, server);
            }
        });
    }
}

fn begin(key: &PrivateKey, to: SocketAddr, server: PublicKey) -> (Core, Vec<u8>) {
    let now = Clock.now();
    let config = Config { private_key: Some(key.clone()), route: Route::Local, mtu: 1420 };
    let mut core = Core::new(config, Limits::default(), 1, now);
    let mut peer = PeerConfig::new(server);
    peer.endpoint = Some(to);
    peer.persistent_keepalive = 1;
    core.set_peers(&[peer].into_iter().collect(), now);
    let mut out = Output::new();
    core.poll_timers(now, &mut out);
    let initiation = out.datagrams().next().expect("an initiation").1.to_vec();
    (core, initiation)
}

/// One handshake. Under load there are cookies instead of answers, until the next second.
fn shake(socket: &UdpSocket, key: &PrivateKey, to: SocketAddr, server: PublicKey) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while Instant::now() < deadline {
        let (mut core, initiation) = begin(key, to, server);
        socket.send_to(&initiation, to).expect("send");
        let mut buffer = [0; 2048];
        let Ok(length) = socket.recv(&mut buffer) else {
            continue;
        };
        let mut out = Output::new();
        core.handle_datagram(Path::to(to), &buffer[..length], Clock.now(), &mut out);
        if core.stats().all(|peer| peer.last_handshake.is_some()) {
            for (_, datagram) in out.datagrams() {
                socket.send_to(datagram, to).expect("send");
            }
            return;
        }
    }
    panic!("no handshake in time");
}
