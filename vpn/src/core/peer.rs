//! One peer: its sessions, its endpoint, and the packets that wait for a handshake.

use std::collections::VecDeque;
use std::time::Duration;

use super::presence::is_recent;
use super::sessions::{DATA_OVERHEAD, HANDSHAKE_ROOM, LocalIdentity, SessionIndex, Sessions, UnansweredHandshake};
use crate::clock_reading::ClockReading;
use crate::limits::CoreLimits;
use crate::output::{CoreOutput, DatagramPath, VpnEvent};
use crate::peers::PeerConfig;

/// The longest life of a key (paper, section 6.1: Reject-After-Time).
const REJECT_AFTER_TIME: Duration = Duration::from_secs(180);
/// After this long without a message, a peer that has received something has replied or is gone: Keepalive-Timeout and Rekey-Timeout.
const SILENT_AFTER: Duration = Duration::from_secs(15);
/// Messages are padded to a multiple of this many bytes (paper, section 5.4.6).
const PADDING: usize = 16;

pub(super) struct PeerState {
    pub(super) config: PeerConfig,
    pub(super) endpoint: Option<DatagramPath>,
    /// Created when the first message is sent or received, so that a thousand silent peers cost only their configurations.
    pub(super) sessions: Option<Sessions>,
    /// Sessions under the previous preshared key. They carry packets until both ends have agreed on a new key.
    pub(super) retired: Option<Sessions>,
    staged: VecDeque<Vec<u8>>,
    staged_bytes: usize,
    last_traffic: Option<Duration>,
    /// The time of the first response to a handshake of the peer that the peer has not confirmed. It may not receive what this end sends.
    unconfirmed_since: Option<Duration>,
    /// The peer is new, or a message was sent or received since the last timer check.
    stirred: bool,
    pub(super) last_handshake: Option<Duration>,
    pub(super) last_received: Option<Duration>,
    pub(super) received_bytes: u64,
    pub(super) sent_bytes: u64,
    pub(super) dropped_packets: u64,
}

/// What a peer needs from its core to send.
pub(super) struct SendContext<'a> {
    pub(super) limits: &'a CoreLimits,
    pub(super) mtu: usize,
    pub(super) now: ClockReading,
    pub(super) out: &'a mut CoreOutput,
}

impl PeerState {
    pub(super) fn new(config: PeerConfig) -> Self {
        Self {
            endpoint: config.endpoint.map(DatagramPath::to),
            config,
            sessions: None,
            retired: None,
            staged: VecDeque::new(),
            staged_bytes: 0,
            last_traffic: None,
            unconfirmed_since: None,
            stirred: true,
            last_handshake: None,
            last_received: None,
            received_bytes: 0,
            sent_bytes: 0,
            dropped_packets: 0,
        }
    }

    /// Returns the sessions with this index, current or retired.
    pub(super) fn sessions_of(&mut self, index: SessionIndex) -> Option<&mut Sessions> {
        [&mut self.sessions, &mut self.retired].into_iter().flatten().find(|sessions| sessions.index == index)
    }

    /// Sends a packet. Without a key, it stages the packet and initiates a handshake.
    pub(super) fn send(&mut self, packet: &[u8], context: &mut SendContext<'_>) {
        let Some(path) = self.endpoint else {
            self.dropped_packets += 1;
            return;
        };
        if !self.seal(packet, path, context) {
            self.stage(packet, context.limits);
            self.initiate(path, context);
        }
    }

    /// Sends a message without a packet. Without a key, it initiates a handshake, which ends with such a message.
    fn send_keepalive(&mut self, context: &mut SendContext<'_>) {
        self.last_traffic = Some(context.now.elapsed);
        if let Some(path) = self.endpoint
            && !self.seal(&[], path, context)
        {
            self.initiate(path, context);
        }
    }

    /// Sends the staged packets while there is a key.
    pub(super) fn send_staged(&mut self, context: &mut SendContext<'_>) {
        let Some(path) = self.endpoint else { return };
        while let Some(packet) = self.staged.pop_front() {
            if !self.seal(&packet, path, context) {
                self.staged.push_front(packet);
                return;
            }
            self.staged_bytes -= packet.len();
        }
    }

    pub(super) fn drop_staged(&mut self) {
        self.dropped_packets += self.staged.len() as u64;
        self.staged.clear();
        self.staged_bytes = 0;
    }

    fn stage(&mut self, packet: &[u8], limits: &CoreLimits) {
        if self.staged_bytes + packet.len() > limits.staged_bytes {
            self.dropped_packets += 1;
            return;
        }
        self.staged_bytes += packet.len();
        self.staged.push_back(packet.to_vec());
    }

    /// Writes a handshake initiation, unless one is in flight.
    pub(super) fn initiate(&mut self, mut path: DatagramPath, context: &mut SendContext<'_>) {
        if self.is_silent(context.now.elapsed) {
            path.local = None;
            self.unbind();
        }
        let Some(sessions) = &mut self.sessions else {
            return;
        };
        let sent =
            context.out.write_datagram(path, HANDSHAKE_ROOM, |space| sessions.initiate(space)).map_or(0, <[u8]>::len);
        self.note_sent(sent, context.now);
    }

    /// Encrypts under the newest key. Returns `false` if there is none, or only a spent one.
    fn seal(&mut self, packet: &[u8], path: DatagramPath, context: &mut SendContext<'_>) -> bool {
        let present = self.sessions.as_mut().filter(|sessions| sessions.can_send());
        let Some(sessions) = present.or(self.retired.as_mut().filter(|old| old.can_send())) else {
            return false;
        };
        let padded = pad(packet, context);
        let packet = padded.as_deref().unwrap_or(packet);
        let room = (packet.len() + DATA_OVERHEAD).max(HANDSHAKE_ROOM);
        let mut last = 0;
        let sent = context.out.write_datagram(path, room, |space| {
            let (length, counter) = sessions.seal(packet, space)?;
            last = counter;
            Some(length)
        });
        let sent = sent.map(<[u8]>::len);
        if let Some(buffer) = padded {
            context.out.recycle(buffer);
        }
        let Some(sent) = sent else { return false };
        if last >= context.limits.reject_after_messages {
            context.out.retract_datagram();
            sessions.set_spent();
            return false;
        }
        self.note_sent(sent, context.now);
        if last >= context.limits.rekey_after_messages {
            self.initiate(path, context);
        }
        true
    }

    /// Counts a message that was sent.
    pub(super) fn note_sent(&mut self, bytes: usize, now: ClockReading) {
        if bytes > 0 {
            self.sent_bytes += bytes as u64;
            self.stirred = true;
            self.last_traffic = Some(now.elapsed);
        }
    }

    /// Counts an authenticated message and records its source as the peer's endpoint.
    pub(super) fn note_received(&mut self, bytes: usize, path: DatagramPath, context: &mut SendContext<'_>) {
        self.received_bytes += bytes as u64;
        self.last_received = Some(context.now.elapsed);
        self.stirred = true;
        self.last_traffic = Some(context.now.elapsed);
        let before = self.endpoint.replace(path);
        if before.is_none_or(|before| before.remote != path.remote) {
            context.out.events.push(VpnEvent::Roamed { peer: self.config.public_key, endpoint: path.remote });
        }
    }

    /// Records a response to a handshake of the peer.
    pub(super) fn note_response(&mut self, bytes: usize, now: ClockReading) {
        self.unconfirmed_since.get_or_insert(now.elapsed);
        self.note_sent(bytes, now);
    }

    /// Whether messages of the peer arrive, and nothing indicates that those of this end do not.
    pub(super) fn is_heard(&self, now: Duration) -> bool {
        let is_confirmed = self.unconfirmed_since.is_none_or(|since| is_recent(Some(since), now));
        is_confirmed && is_recent(self.last_received, now)
    }

    /// Whether there is a key under which to send.
    pub(super) fn has_session(&self) -> bool {
        self.endpoint.is_some() && self.sessions.as_ref().is_some_and(Sessions::can_send)
    }

    /// Records a completed handshake.
    pub(super) fn note_handshake(&mut self, context: &mut SendContext<'_>) {
        self.unconfirmed_since = None;
        self.last_handshake = Some(context.now.unix);
        context.out.events.push(VpnEvent::HandshakeCompleted(self.config.public_key));
    }

    /// Replaces the sessions after a change of the preshared key. The old sessions continue until there is a new key. Only handshakes use
    /// the new preshared key, as in the kernel. Returns sessions whose index is to be freed.
    pub(super) fn retire_sessions(&mut self, identity: &LocalIdentity, index: SessionIndex) -> Option<Sessions> {
        let before = self.sessions.replace(Sessions::new(identity, &self.config, index))?;
        if before.can_send() {
            return self.retired.replace(before);
        }
        Some(before)
    }

    /// Whether no timer of the peer can expire within a second or two.
    pub(super) fn is_idle(&self) -> bool {
        let asks = self.sessions.as_ref().is_some_and(Sessions::is_asking);
        !self.stirred && !asks
    }

    /// Runs timers that are due. Returns sessions that have expired, so that the caller frees their index.
    pub(super) fn tick(&mut self, context: &mut SendContext<'_>) -> Option<Sessions> {
        self.stirred = false;
        self.tick_sessions(context);
        if self.keepalive_is_due(context.now.elapsed) {
            self.send_keepalive(context);
        }
        let is_over = |old: &mut Sessions| old.age().is_none_or(|age| age > REJECT_AFTER_TIME);
        self.retired.take_if(is_over)
    }

    /// Whether the peer has not been heard for so long that a new handshake is due.
    fn is_silent(&self, now: Duration) -> bool {
        self.last_received.is_none_or(|last| now.saturating_sub(last) >= SILENT_AFTER)
    }

    /// Lets the operating system choose the source address until the peer is heard again. The address at which it was heard last may be that of an
    /// uplink that no longer leads to the peer. The kernel's WireGuard does the same.
    fn unbind(&mut self) {
        if let Some(path) = &mut self.endpoint {
            path.local = None;
        }
    }

    fn tick_sessions(&mut self, context: &mut SendContext<'_>) {
        let is_silent = self.is_silent(context.now.elapsed);
        let Some(sessions) = &mut self.sessions else {
            return;
        };
        let mut space = [0; HANDSHAKE_ROOM];
        let was_asking = sessions.is_asking();
        let message = sessions.tick(&mut space);
        if matches!(message, Ok(Some(HANDSHAKE_ROOM))) && (was_asking || is_silent) {
            self.unbind();
        }
        match (message, self.endpoint) {
            (Ok(Some(length)), Some(path)) => {
                context.out.write_datagram(path, length, |target| {
                    target.copy_from_slice(&space[..length]);
                    Some(length)
                });
                self.note_sent(length, context.now);
            }
            (Ok(_), _) => {}
            (Err(UnansweredHandshake), _) => {
                if !self.staged.is_empty() {
                    context.out.events.push(VpnEvent::Expired(self.config.public_key));
                }
                self.drop_staged();
            }
        }
    }

    pub(super) fn wants_keepalives(&self) -> bool {
        self.config.persistent_keepalive > 0 && self.endpoint.is_some()
    }

    fn keepalive_is_due(&self, now: Duration) -> bool {
        let interval = Duration::from_secs(self.config.persistent_keepalive.into());
        self.wants_keepalives() && self.last_traffic.is_none_or(|last| now.saturating_sub(last) >= interval)
    }

    /// Makes the next tick send a keepalive, if the peer has a keepalive interval.
    pub(super) fn schedule_keepalive(&mut self) {
        self.last_traffic = None;
    }
}

/// Returns a copy padded with zeroes to a multiple of 16, but never beyond the MTU. Returns `None` if the packet needs no padding.
fn pad(packet: &[u8], context: &mut SendContext<'_>) -> Option<Vec<u8>> {
    let length = packet.len().next_multiple_of(PADDING).min(context.mtu.max(packet.len()));
    if length == packet.len() {
        return None;
    }
    let mut buffer = context.out.take_scratch();
    buffer.extend_from_slice(packet);
    buffer.resize(length, 0);
    Some(buffer)
}
