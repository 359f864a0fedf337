//! Whether a peer responds at an endpoint, without a change of the tunnel to it.
//!
//! The peer responds only to handshake initiations of peers that it knows. Without a packet under the new key, it changes neither the
//! endpoint nor the session of the tunnel. A peer keeps few such sessions, so that probes must be rarer than one in 20 seconds.

use boringtun::noise::{Tunn, TunnResult};
use boringtun::x25519;

use crate::key::{PrivateKey, PublicKey};

/// The length of the largest handshake message, in bytes.
const HANDSHAKE_ROOM: usize = 148;

/// One handshake that is only begun.
pub struct HandshakeProbe {
    tunn: Box<Tunn>,
    initiation: Vec<u8>,
}

impl HandshakeProbe {
    /// Begins a handshake with a peer. `index` identifies it and should be random. `None` if the keys cannot be used.
    #[must_use]
    pub fn new(own: &PrivateKey, peer: &PublicKey, index: u32) -> Option<Self> {
        let mut tunn = Box::new(Tunn::new(own.secret(), x25519::PublicKey::from(peer.0), None, None, index >> 8, None));
        let mut space = [0; HANDSHAKE_ROOM];
        let TunnResult::WriteToNetwork(message) = tunn.format_handshake_initiation(&mut space, false) else {
            return None;
        };
        let initiation = message.to_vec();
        Some(Self { tunn, initiation })
    }

    /// Returns the datagram to send.
    #[must_use]
    pub fn initiation(&self) -> &[u8] {
        &self.initiation
    }

    /// Whether a datagram proves that the peer received the initiation: its response, or its cookie while it is under load.
    pub fn is_response(&mut self, datagram: &[u8]) -> bool {
        let mut space = [0; HANDSHAKE_ROOM];
        let is_cookie = datagram.first() == Some(&3);
        match self.tunn.decapsulate(None, datagram, &mut space) {
            TunnResult::WriteToNetwork(_) => true,
            TunnResult::Done => is_cookie,
            TunnResult::Err(_) | TunnResult::WriteToTunnelV4(..) | TunnResult::WriteToTunnelV6(..) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;
    use crate::{
        Config, Core, CoreLimits, CoreOutput, DatagramPath, PacketRoute, PeerConfig, SystemClock, peers::PeerSet,
    };

    fn key(byte: u8) -> PrivateKey {
        PrivateKey::from_bytes([byte; 32])
    }

    /// A gateway that knows the worker with the key 1.
    fn gateway() -> Core {
        let config = Config { private_key: Some(key(9)), route: PacketRoute::Relay(Vec::new()), mtu: 1420 };
        let mut core = Core::new(config, CoreLimits::default(), 7, SystemClock.now());
        let peers: PeerSet = [PeerConfig::new(key(1).public())].into_iter().collect();
        core.set_peers(&peers, SystemClock.now());
        core
    }

    fn responses(core: &mut Core, datagram: &[u8]) -> Vec<Vec<u8>> {
        let mut out = CoreOutput::new();
        let path = DatagramPath::to(SocketAddr::from(([192, 0, 2, 1], 1000)));
        core.handle_datagram(path, datagram, SystemClock.now(), &mut out);
        out.datagrams().map(|(_, bytes)| bytes.to_vec()).collect()
    }

    #[test]
    fn a_gateway_responds_to_its_worker_and_keeps_its_endpoint() {
        let mut gateway = gateway();
        let mut probe = HandshakeProbe::new(&key(1), &key(9).public(), 0xabcd_1234).unwrap();
        let response = responses(&mut gateway, probe.initiation());
        assert_eq!(response.len(), 1);
        assert!(!probe.is_response(b"noise"));
        assert!(!probe.is_response(&vec![2; response[0].len()]));
        assert!(probe.is_response(&response[0]));
        assert!(gateway.stats().all(|peer| peer.endpoint.is_none() && peer.last_handshake.is_none()));
    }

    #[test]
    fn a_gateway_responds_to_no_stranger() {
        let probe = HandshakeProbe::new(&key(2), &key(9).public(), 1).unwrap();
        assert!(responses(&mut gateway(), probe.initiation()).is_empty());
    }
}
