//! Decides which handshake messages are computed: those of senders that know this end's key and, under load, own their address.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::Duration;

use boringtun::noise::rate_limiter::RateLimiter;
use boringtun::noise::{Packet, TunnResult};
use boringtun::x25519;

use crate::limits::CoreLimits;

/// The largest number of sources that are counted in one second. Each has proven its address, so further sources must wait.
const MOST_SOURCES: usize = 4096;

const WINDOW: Duration = Duration::from_secs(1);

/// The first gate for handshake messages: cheap checks before the expensive one.
pub(super) struct Admission {
    cookies: RateLimiter,
    limit: u64,
    limit_per_source: u32,
    window_start: Duration,
    in_window: u64,
    sources: HashMap<IpAddr, u32>,
}

/// The decision on a handshake message.
pub(super) enum AdmissionDecision<'a> {
    /// Compute the handshake.
    Admit(Packet<'a>),
    /// Send the sender a cookie of this many bytes instead.
    Cookie(usize),
    /// Drop the message.
    Refuse,
}

impl Admission {
    pub(super) fn new(public_key: &x25519::PublicKey, limits: &CoreLimits) -> Self {
        Self {
            cookies: RateLimiter::new(public_key, limits.handshakes_per_second),
            limit: limits.handshakes_per_second,
            limit_per_source: limits.handshakes_per_source,
            window_start: Duration::ZERO,
            in_window: 0,
            sources: HashMap::new(),
        }
    }

    /// Decides what to do with a handshake message. It writes a cookie to `reply`.
    pub(super) fn decide<'a>(
        &mut self,
        from: IpAddr,
        message: &'a [u8],
        now: Duration,
        reply: &mut [u8],
    ) -> AdmissionDecision<'a> {
        self.turn_window(now);
        match self.cookies.verify_packet(Some(from), message, reply) {
            Ok(packet) => {
                self.in_window += 1;
                if self.in_window > self.limit && !self.admit_source(from) {
                    return AdmissionDecision::Refuse;
                }
                AdmissionDecision::Admit(packet)
            }
            Err(TunnResult::WriteToNetwork(cookie)) => {
                self.in_window += 1;
                AdmissionDecision::Cookie(cookie.len())
            }
            Err(_) => AdmissionDecision::Refuse,
        }
    }

    fn turn_window(&mut self, now: Duration) {
        if now.saturating_sub(self.window_start) >= WINDOW {
            self.window_start = now;
            self.in_window = 0;
            self.sources.clear();
            self.cookies.reset_count();
        }
    }

    fn admit_source(&mut self, from: IpAddr) -> bool {
        let source = match from {
            IpAddr::V4(_) => from,
            IpAddr::V6(address) => IpAddr::from((u128::from(address) >> 64 << 64).to_be_bytes()),
        };
        if self.sources.len() >= MOST_SOURCES && !self.sources.contains_key(&source) {
            return false;
        }
        let count = self.sources.entry(source).or_default();
        *count += 1;
        *count <= self.limit_per_source
    }
}
