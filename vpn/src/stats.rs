//! What is known and counted.

use std::net::SocketAddr;
use std::time::Duration;

use crate::key::PublicKey;

/// What is known of a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerStats {
    /// Whose statistics they are.
    pub public_key: PublicKey,
    /// Where the peer is now.
    pub endpoint: Option<SocketAddr>,
    /// When keys were last agreed on, since the Unix epoch.
    pub last_handshake: Option<Duration>,
    /// When the peer was last heard, on the clock of [`crate::ClockReading::elapsed`]; the kernel does not tell.
    pub last_received: Option<Duration>,
    /// Bytes of authenticated messages, headers of the protocol included.
    pub received_bytes: u64,
    /// Bytes of messages sent, headers of the protocol included.
    pub sent_bytes: u64,
    /// Packets for the peer that were given up: nowhere to send to, or too many before a handshake.
    pub dropped_packets: u64,
}

/// What was dropped without being any peer's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DropCounts {
    /// Datagrams that no peer can be shown to have sent.
    pub unauthenticated: u64,
    /// Handshake messages answered by a cookie (counted in `unauthenticated` too).
    pub under_load: u64,
    /// Packets whose source is not among their sender's allowed IPs.
    pub disallowed_source: u64,
    /// Packets whose destination is nobody's.
    pub unroutable: u64,
}
