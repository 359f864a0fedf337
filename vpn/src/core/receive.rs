//! Handling of datagrams from the network, by message type.

use boringtun::noise::Packet;
use boringtun::noise::handshake::parse_handshake_anon;

use super::Core;
use super::admission::AdmissionDecision;
use super::peer::SendContext;
use super::sessions::{self, HANDSHAKE_ROOM, ReceiveOutcome, SessionIndex};
use crate::clock_reading::ClockReading;
use crate::key::PublicKey;
use crate::output::{CoreOutput, DatagramPath, HEADROOM};

impl Core {
    pub(super) fn handle_data(
        &mut self,
        path: DatagramPath,
        receiver: u32,
        datagram: &[u8],
        now: ClockReading,
        out: &mut CoreOutput,
    ) -> Option<()> {
        let index = SessionIndex::of_session(receiver);
        let Some(key) = self.by_index.get(&index).copied() else {
            self.request_session(path, now, out);
            return None;
        };
        if sessions::counter(datagram)? >= self.limits.reject_after_messages {
            return None;
        }
        let peer = self.peers.get_mut(&key)?;
        let sessions = peer.sessions_of(index)?;
        let mut buffer = out.take_buffer(datagram.len().max(HANDSHAKE_ROOM));
        let opened = sessions.open(path.remote.ip(), datagram, &mut buffer[HEADROOM..]);
        let length = match opened {
            ReceiveOutcome::Packet(length) => Some(length),
            ReceiveOutcome::Keepalive => None,
            ReceiveOutcome::Reply(_) | ReceiveOutcome::Refused => {
                out.recycle(buffer);
                return None;
            }
        };
        let is_new = sessions.confirm(receiver);
        let mut context = SendContext { limits: &self.limits, mtu: self.config.mtu, now, out };
        peer.note_received(datagram.len(), path, &mut context);
        if is_new {
            peer.note_handshake(&mut context);
            peer.send_staged(&mut context);
            self.unmet.retain(|_, unmet| *unmet != key);
        }
        match length {
            Some(length) => {
                buffer.truncate(HEADROOM + length);
                self.route(key, buffer, now, out);
            }
            None => out.recycle(buffer),
        }
        Some(())
    }

    /// Asks a peer for a session after data arrived for a session that this end does not have.
    ///
    /// An end that was restarted receives such packets. If they come from the configured endpoint of a peer with which this end never had a
    /// session, it sends that peer an initiation at once. Otherwise the peer would notice only after 15 seconds. The packet proves nothing,
    /// so its only effect is one initiation, to that peer, while none is in flight.
    fn request_session(&mut self, path: DatagramPath, now: ClockReading, out: &mut CoreOutput) {
        let Some(key) = self.unmet.get(&path.remote).copied() else {
            return;
        };
        self.ensure_sessions(key);
        let mut context = SendContext { limits: &self.limits, mtu: self.config.mtu, now, out };
        if let Some(peer) = self.peers.get_mut(&key) {
            peer.initiate(DatagramPath::to(path.remote), &mut context);
        }
    }

    pub(super) fn handle_initiation(
        &mut self,
        path: DatagramPath,
        datagram: &[u8],
        now: ClockReading,
        out: &mut CoreOutput,
    ) -> Option<()> {
        let initiation = self.admit(path, datagram, now, out)?;
        let (identity, _) = self.own.as_ref()?;
        let Packet::HandshakeInit(initiation) = initiation else {
            return None;
        };
        let claim = parse_handshake_anon(&identity.secret, &identity.public, &initiation).ok()?;
        let key = PublicKey(claim.peer_static_public);
        self.ensure_sessions(key);
        let peer = self.peers.get_mut(&key)?;
        let sessions = peer.sessions.as_mut()?;
        let response =
            out.write_datagram(path, HANDSHAKE_ROOM, |space| match sessions.open(path.remote.ip(), datagram, space) {
                ReceiveOutcome::Reply(length) => Some(length),
                ReceiveOutcome::Packet(_) | ReceiveOutcome::Keepalive | ReceiveOutcome::Refused => None,
            });
        let sent = response?.len();
        // The endpoint is not learned yet: after a restart, an attacker can replay an initiation, but not the first packet under the new
        // key. This end loses nothing, because it has nothing to send before that packet.
        peer.received_bytes += datagram.len() as u64;
        peer.note_response(sent, now);
        Some(())
    }

    pub(super) fn handle_response(
        &mut self,
        path: DatagramPath,
        receiver: u32,
        datagram: &[u8],
        now: ClockReading,
        out: &mut CoreOutput,
    ) -> Option<()> {
        let index = SessionIndex::of_session(receiver);
        let key = self.by_index.get(&index).copied()?;
        self.admit(path, datagram, now, out)?;
        let peer = self.peers.get_mut(&key)?;
        let sessions = peer.sessions_of(index)?;
        let keepalive =
            out.write_datagram(path, HANDSHAKE_ROOM, |space| match sessions.open(path.remote.ip(), datagram, space) {
                ReceiveOutcome::Reply(length) => Some(length),
                ReceiveOutcome::Packet(_) | ReceiveOutcome::Keepalive | ReceiveOutcome::Refused => None,
            });
        let sent = keepalive?.len();
        sessions.confirm(receiver);
        let mut context = SendContext { limits: &self.limits, mtu: self.config.mtu, now, out };
        peer.note_received(datagram.len(), path, &mut context);
        peer.note_sent(sent, now);
        peer.note_handshake(&mut context);
        peer.send_staged(&mut context);
        self.unmet.retain(|_, unmet| *unmet != key);
        Some(())
    }

    pub(super) fn handle_cookie(&mut self, path: DatagramPath, receiver: u32, datagram: &[u8]) -> Option<()> {
        let index = SessionIndex::of_session(receiver);
        let key = self.by_index.get(&index)?;
        let sessions = self.peers.get_mut(key)?.sessions_of(index)?;
        let mut space = [0; HANDSHAKE_ROOM];
        match sessions.open(path.remote.ip(), datagram, &mut space) {
            ReceiveOutcome::Keepalive => Some(()),
            ReceiveOutcome::Packet(_) | ReceiveOutcome::Reply(_) | ReceiveOutcome::Refused => None,
        }
    }

    /// Admits a handshake message, or replies with a cookie.
    fn admit<'a>(
        &mut self,
        path: DatagramPath,
        datagram: &'a [u8],
        now: ClockReading,
        out: &mut CoreOutput,
    ) -> Option<Packet<'a>> {
        let (_, admission) = self.own.as_mut()?;
        let mut admitted = None;
        let cookie = out.write_datagram(path, HANDSHAKE_ROOM, |space| {
            match admission.decide(path.remote.ip(), datagram, now.elapsed, space) {
                AdmissionDecision::Admit(packet) => {
                    admitted = Some(packet);
                    None
                }
                AdmissionDecision::Cookie(length) => Some(length),
                AdmissionDecision::Refuse => None,
            }
        });
        if cookie.is_some() {
            self.dropped.under_load += 1;
        }
        admitted
    }
}
