//! The peers to which gateways introduce this worker. Pure: time is an argument.

use std::{collections::BTreeMap, time::Duration};

use keelway_vpn::{PeerIntroduction, PublicKey};
use tokio::time::Instant;

/// A peer that a gateway no longer mentions is kept for this long, because a message may be lost.
const MENTIONED_FOR: Duration = Duration::from_secs(5);
/// A gateway that has been silent for this long, while another one responded, no longer counts.
const SILENT_FOR: Duration = Duration::from_secs(10);

/// The introductions of all gateways. While no gateway responds, the last ones count: nothing removed these peers from the cluster.
#[derive(Debug, Default)]
pub(super) struct IntroducedPeers {
    gateways: BTreeMap<PublicKey, GatewayIntroductions>,
}

#[derive(Debug)]
struct GatewayIntroductions {
    last_response: Instant,
    peers: BTreeMap<PublicKey, (Instant, PeerIntroduction)>,
}

impl IntroducedPeers {
    /// Records a message of a gateway.
    pub(super) fn note(&mut self, gateway: PublicKey, introductions: Vec<PeerIntroduction>, now: Instant) {
        let new = GatewayIntroductions { last_response: now, peers: BTreeMap::new() };
        let known = self.gateways.entry(gateway).or_insert(new);
        known.last_response = now;
        known.peers.retain(|_, (at, _)| now.saturating_duration_since(*at) < MENTIONED_FOR);
        known.peers.extend(introductions.into_iter().map(|peer| (peer.public_key, (now, peer))));
    }

    /// Forgets gateways that the cluster no longer has.
    pub(super) fn retain(&mut self, is_gateway: impl Fn(&PublicKey) -> bool) {
        self.gateways.retain(|gateway, _| is_gateway(gateway));
    }

    /// Returns the current introductions, of each peer the last one.
    pub(super) fn current(&self) -> BTreeMap<PublicKey, PeerIntroduction> {
        let Some(last) = self.gateways.values().map(|gateway| gateway.last_response).max() else {
            return BTreeMap::new();
        };
        let responding = self.gateways.values().filter(|gateway| last - gateway.last_response < SILENT_FOR);
        let mut newest: BTreeMap<PublicKey, &(Instant, PeerIntroduction)> = BTreeMap::new();
        for (key, mention) in responding.flat_map(|gateway| &gateway.peers) {
            let known = newest.entry(*key).or_insert(mention);
            if known.0 < mention.0 {
                *known = mention;
            }
        }
        newest.into_iter().map(|(key, (_, introduction))| (key, introduction.clone())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn key(number: u8) -> PublicKey {
        PublicKey([number; 32])
    }

    fn introduction(peer: u8, port: u16) -> PeerIntroduction {
        let candidates = vec![([192, 168, 1, peer], port).into()];
        PeerIntroduction { public_key: key(peer), allowed_ips: vec![], candidates }
    }

    fn current(peers: &IntroducedPeers) -> Vec<(u8, u16)> {
        peers.current().values().map(|peer| (peer.public_key.0[0], peer.candidates[0].port())).collect()
    }

    #[test]
    fn a_peer_that_a_gateway_no_longer_mentions_is_dropped() {
        let (mut peers, now) = (IntroducedPeers::default(), Instant::now());
        assert_eq!(current(&peers), []);
        peers.note(key(100), vec![introduction(1, 7), introduction(2, 7)], now);
        peers.note(key(100), vec![introduction(2, 8)], now + SECOND * 2);
        assert_eq!(current(&peers), [(1, 7), (2, 8)], "one message may be lost");
        peers.note(key(100), vec![introduction(2, 8)], now + SECOND * 5);
        assert_eq!(current(&peers), [(2, 8)]);
    }

    #[test]
    fn the_last_introductions_count_while_no_gateway_responds() {
        let (mut peers, now) = (IntroducedPeers::default(), Instant::now());
        peers.note(key(100), vec![introduction(1, 7)], now);
        peers.note(key(101), vec![introduction(1, 8)], now + SECOND);
        assert_eq!(current(&peers), [(1, 8)], "the last one");
        for second in 2..11 {
            peers.note(key(101), vec![], now + SECOND * second);
        }
        assert_eq!(current(&peers), [], "the other gateway has been silent for ten seconds");
        peers.note(key(100), vec![introduction(1, 7)], now + SECOND * 11);
        assert_eq!(current(&peers), [(1, 7)]);
        peers.retain(|gateway| *gateway == key(101));
        assert_eq!(current(&peers), []);
    }
}
