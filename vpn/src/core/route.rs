//! Routing of decrypted packets.

use super::peer::SendContext;
use super::sessions::Sessions;
use super::{Core, PacketRoute, unused_index};
use crate::clock_reading::ClockReading;
use crate::key::PublicKey;
use crate::output::{CoreOutput, HEADROOM};
use crate::packet;

impl Core {
    /// Delivers a packet that `from` sent, if the packet's source address belongs to `from`.
    pub(super) fn route(&mut self, from: PublicKey, mut buffer: Vec<u8>, now: ClockReading, out: &mut CoreOutput) {
        let packet = &mut buffer[HEADROOM..];
        let source = packet::source(packet).and_then(|source| self.allowed_ips.owner(source));
        if source != Some(from) {
            self.dropped.disallowed_source += 1;
            out.recycle(buffer);
            return;
        }
        let PacketRoute::Relay(own) = &self.config.route else {
            out.deliver(buffer);
            return;
        };
        let Some(destination) = packet::destination(packet) else {
            return;
        };
        if own.contains(&destination) {
            out.deliver(buffer);
            return;
        }
        match self.allowed_ips.owner(destination) {
            // A packet never returns to the peer that sent it: two relays would only send it back and forth.
            Some(owner) if owner != from && packet::count_hop(packet) => {
                self.send(owner, packet, now, out);
            }
            _ => self.dropped.unroutable += 1,
        }
        out.recycle(buffer);
    }

    pub(super) fn send(&mut self, to: PublicKey, packet: &[u8], now: ClockReading, out: &mut CoreOutput) {
        self.ensure_sessions(to);
        let mut context = SendContext { limits: &self.limits, mtu: self.config.mtu, now, out };
        if let Some(peer) = self.peers.get_mut(&to) {
            peer.send(packet, &mut context);
        }
    }

    pub(super) fn ensure_sessions(&mut self, key: PublicKey) {
        let (Some((identity, _)), Some(peer)) = (&self.own, self.peers.get_mut(&key)) else {
            return;
        };
        if peer.sessions.is_none() {
            let index = unused_index(&mut self.next_index, &self.by_index);
            self.by_index.insert(index, key);
            peer.sessions = Some(Sessions::new(identity, &peer.config, index));
        }
    }
}
