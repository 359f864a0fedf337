//! A peer's keys and handshakes: one `Tunn`, and the state that `Tunn` does not expose.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use boringtun::noise::rate_limiter::RateLimiter;
use boringtun::noise::{Tunn, TunnResult};
use boringtun::x25519;

use crate::key::PrivateKey;
use crate::peers::PeerConfig;

/// The upper 24 bits of a peer's session indices on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct SessionIndex(pub(super) u32);

impl SessionIndex {
    /// Returns the index of a receiver field. Its lower 8 bits count the peer's sessions.
    pub(super) fn of_session(receiver: u32) -> Self {
        Self(receiver >> 8)
    }
}

/// The length of the largest handshake message, in bytes. Any call may need this much space for a reply.
pub(super) const HANDSHAKE_ROOM: usize = 148;
/// The bytes that a data message adds to its packet.
pub(super) const DATA_OVERHEAD: usize = 32;

/// The position of the counter in a data message.
const COUNTER: std::ops::Range<usize> = 8..16;

/// This end's key pair, as the sessions of each peer use it.
pub(super) struct LocalIdentity {
    pub(super) secret: x25519::StaticSecret,
    pub(super) public: x25519::PublicKey,
    /// A limiter without a limit: [`super::admission::Admission`] decides on a message before sessions receive it.
    admitted: Arc<RateLimiter>,
}

impl LocalIdentity {
    pub(super) fn new(private_key: &PrivateKey) -> Self {
        let secret = private_key.secret();
        let public = x25519::PublicKey::from(&secret);
        Self { admitted: Arc::new(RateLimiter::new(&public, u64::MAX)), secret, public }
    }
}

/// The result of a message for these sessions.
pub(super) enum ReceiveOutcome {
    /// A packet of this many bytes, at the start of `space`.
    Packet(usize),
    /// An authenticated message without a packet.
    Keepalive,
    /// A reply of this many bytes that must be sent.
    Reply(usize),
    /// The message could not be authenticated.
    Refused,
}

pub(super) struct Sessions {
    pub(super) index: SessionIndex,
    tunn: Box<Tunn>,
    /// There is a key to send under. Only [`Sessions::tick`] resets this.
    established: bool,
    /// The key to send under has reached its last counter.
    spent: bool,
    /// An initiation is in flight. `Tunn` repeats it until the peer replies or the attempt times out.
    asking: bool,
    /// The session under which the peer last sent.
    confirmed: Option<u32>,
}

impl Sessions {
    pub(super) fn new(identity: &LocalIdentity, peer: &PeerConfig, index: SessionIndex) -> Self {
        let tunn = Tunn::new(
            identity.secret.clone(),
            x25519::PublicKey::from(peer.public_key.0),
            peer.preshared_key.as_ref().map(|key| *key.as_bytes()),
            // Keepalives belong to the peer, so that their interval can change without a new Tunn.
            None,
            index.0,
            Some(Arc::clone(&identity.admitted)),
        );
        Self { index, tunn: Box::new(tunn), established: false, spent: false, asking: false, confirmed: None }
    }

    /// Replaces the key pair of this end and drops all session keys.
    pub(super) fn adopt(&mut self, identity: &LocalIdentity) {
        self.tunn.set_static_private(identity.secret.clone(), identity.public, Some(Arc::clone(&identity.admitted)));
        self.established = false;
        self.spent = false;
        self.asking = false;
        self.confirmed = None;
    }

    /// Whether an initiation of this end waits for its response.
    pub(super) fn is_asking(&self) -> bool {
        self.asking
    }

    pub(super) fn can_send(&self) -> bool {
        self.established && !self.spent
    }

    /// Encrypts a packet under the current key. An empty packet is a keepalive. Returns length and counter.
    pub(super) fn seal(&mut self, packet: &[u8], space: &mut [u8]) -> Option<(usize, u64)> {
        let TunnResult::WriteToNetwork(message) = self.tunn.encapsulate(packet, space) else {
            return None;
        };
        Some((message.len(), counter(message)?))
    }

    /// Writes a handshake initiation, unless one is in flight.
    pub(super) fn initiate(&mut self, space: &mut [u8]) -> Option<usize> {
        self.asking = true;
        written(&self.tunn.format_handshake_initiation(space, false))
    }

    /// Marks the current key as used up.
    pub(super) fn set_spent(&mut self) {
        self.spent = true;
    }

    /// Handles any message for these sessions.
    pub(super) fn open(&mut self, from: IpAddr, message: &[u8], space: &mut [u8]) -> ReceiveOutcome {
        match self.tunn.decapsulate(Some(from), message, space) {
            TunnResult::Done => ReceiveOutcome::Keepalive,
            TunnResult::WriteToNetwork(reply) => ReceiveOutcome::Reply(reply.len()),
            TunnResult::WriteToTunnelV4(packet, _) | TunnResult::WriteToTunnelV6(packet, _) => {
                ReceiveOutcome::Packet(packet.len())
            }
            TunnResult::Err(_) => ReceiveOutcome::Refused,
        }
    }

    /// Records that the peer has proven to hold the session's keys. Returns `true` the first time.
    pub(super) fn confirm(&mut self, receiver: u32) -> bool {
        self.established = true;
        // The low byte counts sessions and wraps. Late packets of the previous session confirm nothing new.
        let is_newer = |before: u32| (1..0x80).contains(&(receiver.wrapping_sub(before) & 0xff));
        let first = self.confirmed.is_none_or(is_newer);
        if first {
            self.confirmed = Some(receiver);
            self.spent = false;
            self.asking = false;
        }
        first
    }

    /// Runs timers: resends, keepalives, rekeying and expiry. Returns `Err` if the peer has not replied for too long.
    pub(super) fn tick(&mut self, space: &mut [u8]) -> Result<Option<usize>, UnansweredHandshake> {
        let result = self.tunn.update_timers(space);
        let outcome = if matches!(result, TunnResult::Err(_)) {
            self.asking = false;
            Err(UnansweredHandshake)
        } else {
            let message = written(&result);
            self.asking |= message == Some(HANDSHAKE_ROOM);
            Ok(message)
        };
        self.established = self.tunn.time_since_last_handshake().is_some();
        outcome
    }

    /// Returns the time since the current key was agreed on.
    pub(super) fn age(&self) -> Option<Duration> {
        self.tunn.time_since_last_handshake()
    }
}

/// The peer does not reply, and the keys are wiped.
pub(super) struct UnansweredHandshake;

/// Returns the counter of a data message.
pub(super) fn counter(message: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(message.get(COUNTER)?.try_into().ok()?))
}

fn written(result: &TunnResult<'_>) -> Option<usize> {
    if let TunnResult::WriteToNetwork(message) = result { Some(message.len()) } else { None }
}
