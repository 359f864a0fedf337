//! The bounds of a core.

/// The bounds of a core. The defaults are the protocol's, or the kernel's where the protocol defines none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoreLimits {
    /// From this counter on, each packet sent under a key requests a new key (paper, section 6.1: 2^60).
    pub rekey_after_messages: u64,
    /// A key neither sends nor accepts packets with this counter or a higher one (paper, section 6.1: 2^64 - 2^13 - 1).
    pub reject_after_messages: u64,
    /// Handshake messages per second, from all senders. Beyond them, a sender must prove its address with a cookie.
    /// Each message costs about a tenth of a millisecond of one core before its sender is known.
    pub handshakes_per_second: u64,
    /// Handshake messages per second from one proven address (IPv4) or /64 (IPv6), while there are too many in total.
    pub handshakes_per_source: u32,
    /// Bytes that may wait for a peer's handshake. Further packets are dropped.
    pub staged_bytes: usize,
}

impl Default for CoreLimits {
    fn default() -> Self {
        Self {
            rekey_after_messages: 1 << 60,
            reject_after_messages: u64::MAX - (1 << 13),
            handshakes_per_second: 500,
            handshakes_per_source: 50,
            staged_bytes: 128 * 1024,
        }
    }
}
