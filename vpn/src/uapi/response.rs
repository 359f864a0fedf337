//! Responses to a client.

use std::fmt::Write as _;

use crate::key::{PresharedKey, PrivateKey};
use crate::peers::PeerSet;
use crate::stats::PeerStats;

/// The state of a device, as `get=1` returns it.
pub(crate) struct DeviceState<'a> {
    pub(crate) private_key: Option<&'a PrivateKey>,
    pub(crate) listen_port: u16,
    pub(crate) fwmark: u32,
    pub(crate) peers: &'a PeerSet,
    pub(crate) stats: Vec<PeerStats>,
}

impl DeviceState<'_> {
    /// Writes the response, without the errno at its end.
    pub(crate) fn render(&self) -> String {
        let mut text = String::new();
        if let Some(key) = self.private_key {
            line(&mut text, "private_key", key.to_hex());
        }
        line(&mut text, "listen_port", self.listen_port);
        if self.fwmark != 0 {
            line(&mut text, "fwmark", self.fwmark);
        }
        for stats in &self.stats {
            self.render_peer(&mut text, stats);
        }
        text
    }

    fn render_peer(&self, text: &mut String, stats: &PeerStats) {
        let Some(peer) = self.peers.get(&stats.public_key) else {
            return;
        };
        line(text, "public_key", peer.public_key.to_hex());
        let preshared_key = peer.preshared_key.as_ref();
        line(text, "preshared_key", preshared_key.map_or_else(|| "0".repeat(64), PresharedKey::to_hex));
        line(text, "protocol_version", 1);
        if let Some(endpoint) = stats.endpoint {
            line(text, "endpoint", endpoint);
        }
        let handshake = stats.last_handshake.unwrap_or_default();
        line(text, "last_handshake_time_sec", handshake.as_secs());
        line(text, "last_handshake_time_nsec", handshake.subsec_nanos());
        line(text, "tx_bytes", stats.sent_bytes);
        line(text, "rx_bytes", stats.received_bytes);
        line(text, "persistent_keepalive_interval", peer.persistent_keepalive);
        for prefix in &peer.allowed_ips {
            line(text, "allowed_ip", prefix);
        }
    }
}

fn line(text: &mut String, key: &str, value: impl std::fmt::Display) {
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{key}={value}");
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::key::PublicKey;
    use crate::peers::PeerConfig;

    #[test]
    fn a_device_reads_as_documented() {
        let mut peer = PeerConfig::new(PublicKey([0xab; 32]));
        peer.persistent_keepalive = 25;
        peer.allowed_ips = ["10.0.0.1/32", "fd00::1/128"].map(|prefix| prefix.parse().unwrap()).into();
        let peers: PeerSet = [peer].into_iter().collect();
        let private_key = PrivateKey::from_bytes([0x11; 32]);
        let state = DeviceState {
            private_key: Some(&private_key),
            listen_port: 51820,
            fwmark: 0x10,
            peers: &peers,
            stats: vec![PeerStats {
                public_key: PublicKey([0xab; 32]),
                endpoint: Some("[2001:db8::1]:51820".parse().unwrap()),
                last_handshake: Some(Duration::new(1_800_000_000, 5)),
                last_received: None,
                received_bytes: 7,
                sent_bytes: 8,
                dropped_packets: 0,
            }],
        };
        let expected = format!(
            "private_key=10{}51\nlisten_port=51820\nfwmark=16\npublic_key={}\npreshared_key={}\nprotocol_version=1\n\
             endpoint=[2001:db8::1]:51820\nlast_handshake_time_sec=1800000000\nlast_handshake_time_nsec=5\ntx_bytes=8\nrx_bytes=7\n\
             persistent_keepalive_interval=25\nallowed_ip=10.0.0.1/32\nallowed_ip=fd00::1/128\n",
            "11".repeat(30),
            "ab".repeat(32),
            "0".repeat(64),
        );
        assert_eq!(state.render(), expected);
    }
}
