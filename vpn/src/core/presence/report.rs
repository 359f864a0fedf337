//! The report of a relay to its siblings, as UDP packets between their own addresses inside the VPN.
//!
//! The payload is the version (1), the number of heard peers, the number of silent ones, and their public keys. A reader ignores other versions, and
//! bytes after the keys. A relay that knows no reports has no such port and drops them.

use std::collections::BTreeSet;
use std::net::IpAddr;

use crate::key::{KEY_LEN, PublicKey};
use crate::packet;

/// The port of both ends, inside the VPN.
const PORT: u16 = 51821;
const VERSION: u8 = 1;
/// The length of the payload before the keys.
const HEADER: usize = 3;
/// The length of the headers of IPv6 and UDP. Those of IPv4 are shorter.
const LARGEST_HEADERS: usize = 48;

/// What a relay hears, or what changed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct PresenceReport {
    /// Peers that the relay hears.
    pub(super) heard: BTreeSet<PublicKey>,
    /// Peers that it no longer hears.
    pub(super) silent: BTreeSet<PublicKey>,
}

impl PresenceReport {
    pub(super) fn is_empty(&self) -> bool {
        self.heard.is_empty() && self.silent.is_empty()
    }

    /// Returns the report as packets of at most `mtu` bytes, at least one. Both addresses must be of one family.
    pub(crate) fn packets(&self, from: IpAddr, to: IpAddr, mtu: usize) -> Vec<Vec<u8>> {
        let most = (mtu.saturating_sub(LARGEST_HEADERS + HEADER) / KEY_LEN).clamp(1, usize::from(u8::MAX));
        let silent = self.silent.iter().map(|peer| (false, peer));
        let all: Vec<(bool, &PublicKey)> = silent.chain(self.heard.iter().map(|peer| (true, peer))).collect();
        let mut payloads: Vec<Vec<u8>> = all.chunks(most).map(payload).collect();
        if payloads.is_empty() {
            payloads.push(payload(&[]));
        }
        payloads.iter().map(|payload| packet::udp_packet(PORT, from, to, payload)).collect()
    }

    /// Parses a packet. `None`: it is not a report, or one of an unknown version.
    pub(crate) fn parse(packet: &[u8]) -> Option<Self> {
        let (header, keys) = packet::udp_payload(packet, PORT)?.split_at_checked(HEADER)?;
        let [VERSION, heard, silent] = *header else { return None };
        let (heard, silent) = (usize::from(heard), usize::from(silent));
        let keys: Vec<PublicKey> = keys.as_chunks::<KEY_LEN>().0.iter().map(|key| PublicKey(*key)).collect();
        let (heard, rest) = keys.split_at_checked(heard)?;
        let silent = rest.get(..silent)?;
        Some(Self { heard: heard.iter().copied().collect(), silent: silent.iter().copied().collect() })
    }
}

/// Encodes keys, each with whether the peer is heard.
fn payload(peers: &[(bool, &PublicKey)]) -> Vec<u8> {
    let (heard, silent): (Vec<_>, Vec<_>) = peers.iter().partition(|(is_heard, _)| *is_heard);
    let count = |peers: &[_]| u8::try_from(peers.len()).unwrap_or(u8::MAX);
    let mut payload = vec![VERSION, count(&heard), count(&silent)];
    payload.extend(heard.iter().chain(&silent).flat_map(|(_, peer)| peer.0));
    payload
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn udp_packet(from: IpAddr, to: IpAddr, payload: &[u8]) -> Vec<u8> {
        packet::udp_packet(PORT, from, to, payload)
    }

    const V4: [IpAddr; 2] =
        [IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 1)), IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 2))];

    fn keys() -> impl Strategy<Value = BTreeSet<PublicKey>> {
        proptest::collection::btree_set(any::<[u8; 32]>().prop_map(PublicKey), 0..200)
    }

    proptest! {
        #[test]
        fn written_reports_are_read_back_and_no_packet_exceeds_the_mtu(heard in keys(), silent in keys(), mtu in 576..1500usize, v6: bool) {
            let [from, to] = if v6 { ["fd00::1".parse().unwrap(), "fd00::2".parse().unwrap()] } else { V4 };
            let packets = PresenceReport { heard: heard.clone(), silent: silent.clone() }.packets(from, to, mtu);
            prop_assert!(!packets.is_empty() && packets.iter().all(|packet| packet.len() <= mtu));
            let mut read = PresenceReport::default();
            for packet in packets {
                prop_assert_eq!((packet::source(&packet), packet::destination(&packet)), (Some(from), Some(to)));
                let part = PresenceReport::parse(&packet).unwrap();
                read.heard.extend(part.heard);
                read.silent.extend(part.silent);
            }
            prop_assert_eq!(read, PresenceReport { heard, silent });
        }

        #[test]
        fn no_bytes_make_it_panic(payload in proptest::collection::vec(any::<u8>(), 0..200), noise in proptest::collection::vec(any::<u8>(), 0..200)) {
            let [from, to] = V4;
            let _ = PresenceReport::parse(&udp_packet(from, to, &payload));
            let _ = PresenceReport::parse(&noise);
        }
    }

    #[test]
    fn bytes_of_a_newer_release_are_ignored_and_another_version_is_no_report() {
        let [from, to] = V4;
        let mut bytes = payload(&[(true, &PublicKey([7; 32]))]);
        bytes.extend([1, 2, 3]);
        let read = PresenceReport::parse(&udp_packet(from, to, &bytes)).unwrap();
        assert_eq!(read, PresenceReport { heard: [PublicKey([7; 32])].into(), silent: BTreeSet::new() });
        bytes[0] = 2;
        assert_eq!(PresenceReport::parse(&udp_packet(from, to, &bytes)), None);
        bytes[0] = VERSION;
        bytes.truncate(20);
        assert_eq!(PresenceReport::parse(&udp_packet(from, to, &bytes)), None, "fewer keys than it names");
    }
}
