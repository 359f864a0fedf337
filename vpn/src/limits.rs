//! Bounds that a core is built with.

/// Bounds that a core is built with. The defaults are the protocol's, or the kernel's where the protocol leaves them open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CoreLimits {
    /// From this counter on, each packet sent under a key asks for a new one (paper, section 6.1: 2^60).
    pub rekey_after_messages: u64,
    /// No packet goes out or is taken under a key with this counter or a higher one (paper, section 6.1: 2^64 - 2^13 - 1).
    pub reject_after_messages: u64,
    /// Handshake messages in one second, from anyone, after which a sender must prove its address by a cookie.
    /// Each costs about a tenth of a millisecond of one core before its sender is known.
    pub handshakes_per_second: u64,
    /// Handshake messages in one second from one proven address (IPv4) or /64 (IPv6) while there are too many.
    pub handshakes_per_source: u32,
    /// Bytes that wait for a peer's handshake; more are dropped.
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
