//! Routing of decrypted packets.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ipnet::IpNet;

use super::peer::SendContext;
use super::presence::PresenceReport;
use super::sessions::Sessions;
use super::{Core, PacketRoute, unused_index};
use crate::clock_reading::ClockReading;
use crate::introduction::{INTRODUCTION_PORT, IntroductionRequest, PeerIntroduction};
use crate::key::PublicKey;
use crate::output::{CoreOutput, HEADROOM};
use crate::packet;

impl Core {
    /// Delivers a packet that `from` sent, if `from` may send packets with this source address.
    pub(super) fn route(&mut self, from: PublicKey, buffer: Vec<u8>, now: ClockReading, out: &mut CoreOutput) {
        let source = packet::source(&buffer[HEADROOM..]).and_then(|source| self.allowed_ips.owner(source));
        let Some(source) = source.filter(|source| self.may_send(&from, source)) else {
            self.dropped.disallowed_source += 1;
            return out.recycle(buffer);
        };
        match &self.config.route {
            PacketRoute::Local => out.deliver(buffer),
            PacketRoute::Relay(own) => match packet::destination(&buffer[HEADROOM..]) {
                // A sibling forwards nothing to this end itself: a worker has a tunnel to each relay for that.
                Some(to) if own.contains(&to) && source == from => self.deliver(from, buffer, now, out),
                Some(to) if !own.contains(&to) => self.forward(from, to, buffer, now, out),
                Some(_) | None => self.drop_unroutable(buffer, out),
            },
        }
    }

    /// A peer sends from its own addresses. A sibling also sends packets of the peers that both relays have, but none of another sibling.
    fn may_send(&self, from: &PublicKey, source: &PublicKey) -> bool {
        source == from || (self.presence.is_sibling(from) && !self.presence.is_sibling(source))
    }

    /// Delivers a packet to this end, records the report of a sibling, or responds to another peer's request for introductions.
    fn deliver(&mut self, from: PublicKey, buffer: Vec<u8>, now: ClockReading, out: &mut CoreOutput) {
        let is_sibling = self.presence.is_sibling(&from);
        let packet = &buffer[HEADROOM..];
        if is_sibling && let Some(report) = PresenceReport::parse(packet) {
            let peers = &self.peers;
            self.presence.note(&from, &report, |peer| peers.contains_key(peer), now.elapsed);
        } else if !is_sibling && let Some((request, ends)) = introduction_request(packet) {
            self.introductions.note_request(from, request, now.elapsed);
            self.introduce(from, ends, now, out);
        } else {
            return out.deliver(buffer);
        }
        out.recycle(buffer);
    }

    /// Introduces the partners of a peer to it. `ends` are the addresses of this end and of the peer.
    fn introduce(&mut self, to: PublicKey, ends: (IpAddr, IpAddr), now: ClockReading, out: &mut CoreOutput) {
        let partners = self.introductions.partners(&to, now.elapsed);
        let introductions: Vec<PeerIntroduction> = partners
            .filter_map(|(public_key, mut candidates, port)| {
                let peer = self.peers.get(&public_key)?;
                // Where a NAT keeps the port, or there is none, the peer is reachable at the address from which its tunnel comes.
                let observed = peer.endpoint.map(|path| SocketAddr::new(path.remote.ip().to_canonical(), port));
                let new = observed.filter(|endpoint| !candidates.contains(endpoint));
                candidates.extend(new);
                Some(PeerIntroduction {
                    public_key,
                    allowed_ips: peer.config.allowed_ips.iter().copied().collect(),
                    candidates,
                })
            })
            .collect();
        for message in PeerIntroduction::encode(&introductions) {
            let packet = packet::udp_packet(INTRODUCTION_PORT, ends.0, ends.1, &message);
            self.send(to, &packet, now, out);
        }
    }

    /// Sends a packet of a peer on to another peer.
    fn forward(&mut self, from: PublicKey, to: IpAddr, mut buffer: Vec<u8>, now: ClockReading, out: &mut CoreOutput) {
        let packet = &mut buffer[HEADROOM..];
        let next = self.next_hop(&from, to, now.elapsed).filter(|_| packet::count_hop(packet));
        let Some((next, is_detour)) = next else {
            return self.drop_unroutable(buffer, out);
        };
        let is_from_sibling = self.presence.is_sibling(&from);
        self.forwarded.to_siblings += u64::from(is_detour);
        self.forwarded.from_siblings += u64::from(is_from_sibling);
        if !is_detour && !is_from_sibling {
            self.introductions.note_packet(from, next, now.elapsed);
        }
        self.send(next, packet, now, out);
        out.recycle(buffer);
    }

    /// Returns the peer to which a packet of `from` goes next, and whether it is a sibling that hears the owner of the address.
    ///
    /// A packet never returns to the peer that sent it, because two relays would only send it back and forth. A packet from a sibling goes to a peer
    /// and never to another sibling, so that no packet circles.
    fn next_hop(&self, from: &PublicKey, to: IpAddr, now: Duration) -> Option<(PublicKey, bool)> {
        let owner = self.allowed_ips.owner(to).filter(|owner| owner != from)?;
        if self.presence.is_sibling(from) {
            return (!self.presence.is_sibling(&owner)).then_some((owner, false));
        }
        if self.presence.is_alone() || self.peers.get(&owner).is_some_and(|peer| peer.is_heard(now)) {
            return Some((owner, false));
        }
        let sibling = self.presence.sibling_that_hears(&owner, now);
        Some(sibling.map_or((owner, false), |sibling| (sibling, true)))
    }

    fn drop_unroutable(&mut self, buffer: Vec<u8>, out: &mut CoreOutput) {
        self.dropped.unroutable += 1;
        out.recycle(buffer);
    }

    /// Sends each sibling with a session the report that is due.
    pub(super) fn report_presence(&mut self, now: ClockReading, out: &mut CoreOutput) {
        let PacketRoute::Relay(own) = &self.config.route else { return };
        let siblings: Vec<(PublicKey, IpAddr, IpAddr)> =
            self.presence.siblings().filter_map(|key| self.addresses(own, key)).collect();
        if siblings.is_empty() {
            return;
        }
        let workers = self.peers.iter().filter(|(key, _)| !self.presence.is_sibling(key));
        let heard: BTreeSet<PublicKey> =
            workers.filter(|(_, peer)| peer.is_heard(now.elapsed)).map(|(key, _)| *key).collect();
        let Some(report) = self.presence.report(heard, now.elapsed) else { return };
        let mtu = self.config.mtu;
        for (sibling, from, to) in siblings {
            for packet in report.packets(from, to, mtu) {
                self.send(sibling, &packet, now, out);
            }
        }
    }

    /// Returns the addresses of this end and of a sibling, if there is a session with it. Without one, a report would only wait.
    fn addresses(&self, own: &[IpAddr], sibling: &PublicKey) -> Option<(PublicKey, IpAddr, IpAddr)> {
        let peer = self.peers.get(sibling).filter(|peer| peer.has_session())?;
        let addresses = peer.config.allowed_ips.iter().map(IpNet::addr);
        let mut pairs = addresses.filter_map(|to| Some((*own.iter().find(|own| own.is_ipv4() == to.is_ipv4())?, to)));
        pairs.next().map(|(from, to)| (*sibling, from, to))
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

/// Parses a request for introductions. Returns it with the addresses of this end and of the peer.
fn introduction_request(packet: &[u8]) -> Option<(IntroductionRequest, (IpAddr, IpAddr))> {
    let payload = packet::udp_payload(packet, INTRODUCTION_PORT)?;
    let ends = (packet::destination(packet)?, packet::source(packet)?);
    Some((IntroductionRequest::parse(payload)?, ends))
}
