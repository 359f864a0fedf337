//! Decides which peers a relay introduces to each other: those that send each other packets through it, and that both ask for introductions. Pure.
//!
//! All state is soft. A request expires unless the peer repeats it, and a pair expires unless the relay sees packets between both, or one of both
//! keeps the other. A restarted relay therefore learns everything again.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use crate::introduction::{IntroductionRequest, MOST_INTRODUCTIONS};
use crate::key::PublicKey;

/// How long a request counts. Peers repeat it every two seconds.
const REQUESTED_FOR: Duration = Duration::from_secs(10);
/// How long two peers count as partners after a packet.
const PARTNERS_FOR: Duration = Duration::from_secs(60);
/// Packets of the same two peers are recorded once in this time.
const RECORD_EVERY: Duration = Duration::from_secs(1);

/// The peers that ask for introductions.
#[derive(Debug, Default)]
pub(super) struct Introductions {
    requests: BTreeMap<PublicKey, RequestingPeer>,
    /// The last recorded packet. Most packets follow one of the same two peers.
    last: Option<(PublicKey, PublicKey, Duration)>,
}

#[derive(Debug)]
struct RequestingPeer {
    request: IntroductionRequest,
    at: Duration,
    /// The partners, each with the time of the last packet.
    partners: BTreeMap<PublicKey, Duration>,
}

impl Introductions {
    /// Records a request.
    pub(super) fn note_request(&mut self, from: PublicKey, request: IntroductionRequest, now: Duration) {
        let kept = request.kept.clone();
        let new = RequestingPeer { request: IntroductionRequest::default(), at: now, partners: BTreeMap::new() };
        let peer = self.requests.entry(from).or_insert(new);
        (peer.request, peer.at) = (request, now);
        for partner in kept {
            self.note_pair(from, partner, now);
        }
    }

    /// Records a packet from one peer to another.
    pub(super) fn note_packet(&mut self, from: PublicKey, to: PublicKey, now: Duration) {
        let is_known = |(last_from, last_to, at): (PublicKey, PublicKey, Duration)| {
            last_from == from && last_to == to && now.saturating_sub(at) < RECORD_EVERY
        };
        if self.requests.is_empty() || self.last.is_some_and(is_known) {
            return;
        }
        self.last = Some((from, to, now));
        self.note_pair(from, to, now);
    }

    /// Makes two peers partners, unless one of them does not ask for introductions, or has enough partners.
    fn note_pair(&mut self, a: PublicKey, b: PublicKey, now: Duration) {
        let pairs = [(a, b), (b, a)];
        let has_room = |(one, other): &(PublicKey, PublicKey)| {
            self.requests.get_mut(one).is_some_and(|peer| peer.has_room_for(other, now))
        };
        if a == b || !pairs.iter().all(has_room) {
            return;
        }
        for (one, other) in pairs {
            if let Some(peer) = self.requests.get_mut(&one) {
                peer.partners.insert(other, now);
            }
        }
    }

    /// Returns the partners of a peer, each with its endpoints in its own networks, and its port.
    pub(super) fn partners(
        &self,
        of: &PublicKey,
        now: Duration,
    ) -> impl Iterator<Item = (PublicKey, Vec<SocketAddr>, u16)> {
        let own = self.requests.get(of);
        let partners = own.into_iter().flat_map(|peer| &peer.partners);
        let recent = partners.filter(move |(_, at)| now.saturating_sub(**at) < PARTNERS_FOR);
        recent.filter_map(move |(key, _)| {
            // A partner that has lost the relay may still be connected directly.
            let is_kept = own.is_some_and(|peer| peer.request.kept.contains(key));
            let partner = self.requests.get(key)?;
            (is_kept || now.saturating_sub(partner.at) < REQUESTED_FOR).then_some(())?;
            let port = partner.request.port;
            let endpoints = partner.request.addresses.iter().map(|address| SocketAddr::new(*address, port));
            Some((*key, endpoints.collect(), port))
        })
    }

    /// Forgets a peer that was removed.
    pub(super) fn remove(&mut self, peer: &PublicKey) {
        self.requests.remove(peer);
        for other in self.requests.values_mut() {
            other.partners.remove(peer);
        }
    }
}

impl RequestingPeer {
    fn has_room_for(&mut self, partner: &PublicKey, now: Duration) -> bool {
        if self.partners.contains_key(partner) || self.partners.len() < MOST_INTRODUCTIONS {
            return true;
        }
        self.partners.retain(|_, at| now.saturating_sub(*at) < PARTNERS_FOR);
        self.partners.len() < MOST_INTRODUCTIONS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const NOW: Duration = Duration::from_secs(1000);

    fn key(number: u8) -> PublicKey {
        PublicKey([number; 32])
    }

    fn request(port: u16, kept: &[u8]) -> IntroductionRequest {
        IntroductionRequest {
            port,
            addresses: vec!["192.168.1.7".parse().unwrap()],
            kept: kept.iter().map(|peer| key(*peer)).collect(),
        }
    }

    fn asked_by(peers: &[u8]) -> Introductions {
        let mut introductions = Introductions::default();
        for peer in peers {
            introductions.note_request(key(*peer), request(u16::from(*peer), &[]), NOW);
        }
        introductions
    }

    fn partners(introductions: &Introductions, of: u8, now: Duration) -> Vec<u8> {
        introductions.partners(&key(of), now).map(|(partner, ..)| partner.0[0]).collect()
    }

    #[test]
    fn two_peers_with_packets_between_them_are_introduced_to_each_other() {
        let mut introductions = asked_by(&[1, 2, 3]);
        assert!(partners(&introductions, 1, NOW).is_empty());
        introductions.note_packet(key(1), key(2), NOW);
        assert_eq!((partners(&introductions, 1, NOW), partners(&introductions, 2, NOW)), (vec![2], vec![1]));
        assert!(partners(&introductions, 3, NOW).is_empty());
        let (_, endpoints, port) = introductions.partners(&key(1), NOW).next().unwrap();
        assert_eq!((endpoints, port), (vec!["192.168.1.7:2".parse().unwrap()], 2));
    }

    #[test]
    fn a_peer_that_requests_no_introductions_gets_none() {
        let mut introductions = asked_by(&[1]);
        introductions.note_packet(key(1), key(2), NOW);
        introductions.note_packet(key(1), key(1), NOW);
        assert!(partners(&introductions, 1, NOW).is_empty());
        assert!(partners(&introductions, 2, NOW).is_empty());
    }

    #[test]
    fn a_request_expires_and_a_pair_expires_unless_one_of_both_keeps_it() {
        let mut introductions = asked_by(&[1, 2]);
        introductions.note_packet(key(1), key(2), NOW);
        assert!(partners(&introductions, 1, NOW + REQUESTED_FOR).is_empty(), "the other one stopped asking");
        introductions.note_request(key(1), request(1, &[2]), NOW + REQUESTED_FOR);
        assert_eq!(partners(&introductions, 1, NOW + REQUESTED_FOR), [2], "it has lost the relay only");
        for second in (5..120).step_by(5) {
            introductions.note_request(key(1), request(1, &[]), NOW + SECOND * second);
            introductions.note_request(key(2), request(2, &[1]), NOW + SECOND * second);
        }
        let now = NOW + SECOND * 115;
        assert_eq!(partners(&introductions, 1, now), [2]);
        for second in (120..180).step_by(5) {
            introductions.note_request(key(1), request(1, &[]), NOW + SECOND * second);
            introductions.note_request(key(2), request(2, &[]), NOW + SECOND * second);
        }
        assert!(partners(&introductions, 1, now + PARTNERS_FOR).is_empty());
    }

    #[test]
    fn a_peer_has_a_bounded_number_of_partners() {
        let all: Vec<u8> = (0..40).collect();
        let mut introductions = asked_by(&all);
        for other in 1..40 {
            introductions.note_packet(key(0), key(other), NOW);
        }
        assert_eq!(partners(&introductions, 0, NOW).len(), MOST_INTRODUCTIONS);
        assert!(partners(&introductions, 39, NOW).is_empty(), "both ends of a pair or none");
        let later = NOW + PARTNERS_FOR;
        introductions.note_request(key(39), request(39, &[]), later);
        introductions.note_packet(key(0), key(39), later);
        assert_eq!(partners(&introductions, 0, later), [39]);
    }

    #[test]
    fn a_removed_peer_is_forgotten() {
        let mut introductions = asked_by(&[1, 2]);
        introductions.note_packet(key(1), key(2), NOW);
        introductions.remove(&key(2));
        introductions.note_request(key(2), request(2, &[]), NOW);
        assert!(partners(&introductions, 1, NOW).is_empty());
        assert!(partners(&introductions, 2, NOW).is_empty());
    }
}
