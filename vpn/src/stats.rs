//! Statistics and counters.

use std::net::SocketAddr;
use std::time::Duration;

use crate::key::PublicKey;

/// The statistics of a peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerStats {
    /// The peer of these statistics.
    pub public_key: PublicKey,
    /// The current endpoint of the peer.
    pub endpoint: Option<SocketAddr>,
    /// The time of the last handshake, since the Unix epoch.
    pub last_handshake: Option<Duration>,
    /// The time of the last message from the peer, on the clock of [`crate::ClockReading::elapsed`]. The kernel does not report it.
    pub last_received: Option<Duration>,
    /// Bytes of authenticated messages, including the protocol's headers.
    pub received_bytes: u64,
    /// Bytes of messages sent, including the protocol's headers.
    pub sent_bytes: u64,
    /// Packets for the peer that were dropped: no endpoint was known, or too many waited for a handshake.
    pub dropped_packets: u64,
}

/// What a relay and its siblings do for each other.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SiblingStats {
    /// Siblings that report which peers they hear.
    pub reporting: usize,
    /// Packets of peers that were sent to a sibling.
    pub packets_to: u64,
    /// Packets of peers that siblings sent.
    pub packets_from: u64,
}

/// Counts of dropped packets and datagrams that belong to no peer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DropCounts {
    /// Datagrams that no peer provably sent.
    pub unauthenticated: u64,
    /// Handshake messages that were answered with a cookie (also counted in `unauthenticated`).
    pub under_load: u64,
    /// Packets whose source is not among their sender's allowed IPs.
    pub disallowed_source: u64,
    /// Packets whose destination belongs to no peer.
    pub unroutable: u64,
}
