//! Which introductions of a gateway a worker accepts. Pure.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, SocketAddr},
};

use ipnet::IpNet;
use keelway_api::worker::ClusterInformation;
use keelway_vpn::{PeerIntroduction, PublicKey};

use crate::{peer::PeerAssignment, tunnels::GatewayLink};

/// A peer to which a direct path is allowed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DirectPeer {
    /// The address to which probes go, inside the VPN.
    pub(super) address: IpAddr,
    pub(super) allowed_ips: BTreeSet<IpNet>,
    /// Never empty.
    pub(super) candidates: Vec<SocketAddr>,
}

/// Why a worker does not connect to a peer directly.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(super) enum IntroductionRefusal {
    #[error("its key is the one of this worker or of a gateway")]
    ReservedKey,
    #[error("{0} is not an address in the VPN or a range of pods in the cluster's ranges")]
    Outside(IpNet),
    #[error("{0} belongs to this worker, to a gateway, to the API, or to another peer")]
    NotItsOwn(IpNet),
    #[error("it has no address of a family that this worker has")]
    NoAddress,
    #[error("it has no endpoint that is reachable outside the cluster's networks")]
    NoCandidate,
}

/// The limits for peers.
#[derive(Debug)]
pub(super) struct IntroductionBounds {
    keys: BTreeSet<PublicKey>,
    addresses: Vec<IpAddr>,
    vpn: Vec<IpNet>,
    pods: Vec<IpNet>,
    services: Vec<IpNet>,
    /// What belongs to others than peers.
    reserved: Vec<IpNet>,
}

impl IntroductionBounds {
    pub(super) fn new(
        own: PublicKey,
        cluster: &ClusterInformation,
        assignment: &PeerAssignment,
        gateways: &[GatewayLink],
    ) -> Self {
        let of_gateways = gateways.iter().flat_map(|gateway| &gateway.addresses);
        let reserved = assignment.addresses.iter().chain(&cluster.api.addresses).chain(of_gateways).copied();
        Self {
            keys: gateways.iter().map(|gateway| gateway.key).chain([own]).collect(),
            addresses: assignment.addresses.clone(),
            vpn: cluster.vpn_cidrs.clone(),
            pods: cluster.pod_cidrs.clone(),
            services: cluster.service_cidrs.clone(),
            reserved: reserved.map(IpNet::from).chain(assignment.pod_cidrs.iter().copied()).collect(),
        }
    }

    /// Splits introductions into allowed peers and refusals. Of two peers with the same addresses, it refuses the second.
    pub(super) fn admit_all(
        mut self,
        introductions: &BTreeMap<PublicKey, PeerIntroduction>,
    ) -> (BTreeMap<PublicKey, DirectPeer>, BTreeMap<PublicKey, IntroductionRefusal>) {
        let (mut peers, mut refused) = (BTreeMap::new(), BTreeMap::new());
        for (key, introduction) in introductions {
            match self.admit(introduction) {
                Ok(peer) => {
                    self.reserved.extend(&peer.allowed_ips);
                    peers.insert(*key, peer);
                }
                Err(refusal) => drop(refused.insert(*key, refusal)),
            }
        }
        (peers, refused)
    }

    fn admit(&self, introduction: &PeerIntroduction) -> Result<DirectPeer, IntroductionRefusal> {
        if self.keys.contains(&introduction.public_key) {
            return Err(IntroductionRefusal::ReservedKey);
        }
        for range in &introduction.allowed_ips {
            if !self.is_of_cluster(range) {
                return Err(IntroductionRefusal::Outside(*range));
            }
            if self.reserved.iter().any(|reserved| overlap(reserved, range)) {
                return Err(IntroductionRefusal::NotItsOwn(*range));
            }
        }
        let is_own_family = |address: &IpAddr| self.addresses.iter().any(|own| own.is_ipv4() == address.is_ipv4());
        let in_vpn = introduction.allowed_ips.iter().filter(|range| is_within(&self.vpn, range)).map(IpNet::addr);
        let address = in_vpn.filter(is_own_family).min().ok_or(IntroductionRefusal::NoAddress)?;
        let candidates: Vec<SocketAddr> =
            introduction.candidates.iter().filter(|candidate| self.is_usable(candidate)).copied().collect();
        if candidates.is_empty() {
            return Err(IntroductionRefusal::NoCandidate);
        }
        Ok(DirectPeer { address, allowed_ips: introduction.allowed_ips.iter().copied().collect(), candidates })
    }

    /// Whether it is one address in the VPN, or a part of a range of pods.
    fn is_of_cluster(&self, range: &IpNet) -> bool {
        let is_address = range.prefix_len() == range.max_prefix_len();
        let is_part = |whole: &IpNet| whole.contains(range) && whole.prefix_len() < range.prefix_len();
        is_address && is_within(&self.vpn, range) || self.pods.iter().any(is_part)
    }

    /// Whether datagrams to this endpoint leave the machine, and not through the cluster's networks.
    fn is_usable(&self, candidate: &SocketAddr) -> bool {
        let address = candidate.ip();
        let is_broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
        let is_special = is_broadcast || is_link_local(address);
        let is_inside = [&self.vpn, &self.pods, &self.services].into_iter().any(|ranges| contain(ranges, address));
        let is_no_host = address.is_unspecified() || address.is_loopback() || address.is_multicast();
        candidate.port() != 0 && !is_special && !is_no_host && !is_inside
    }
}

/// Whether packets to this address stay inside the cluster's networks.
pub(super) fn is_inside(cluster: &ClusterInformation, address: IpAddr) -> bool {
    [&cluster.vpn_cidrs, &cluster.pod_cidrs, &cluster.service_cidrs].into_iter().any(|ranges| contain(ranges, address))
}

/// Whether the address is valid on one link only, or leads to the metadata of a cloud.
pub(super) fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}

fn contain(ranges: &[IpNet], address: IpAddr) -> bool {
    ranges.iter().any(|range| range.contains(&address))
}

fn is_within(ranges: &[IpNet], range: &IpNet) -> bool {
    ranges.iter().any(|whole| whole.contains(range))
}

fn overlap(one: &IpNet, other: &IpNet) -> bool {
    one.contains(other) || other.contains(one)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u8) -> PublicKey {
        PublicKey([number; 32])
    }

    fn bounds() -> IntroductionBounds {
        let assignment = PeerAssignment {
            addresses: vec!["100.80.0.7".parse().unwrap()],
            pod_cidrs: vec!["10.244.7.0/24".parse().unwrap()],
        };
        let gateway = GatewayLink {
            key: key(9),
            interface: "keelway0".to_owned(),
            index: 1,
            addresses: vec!["100.80.0.2".parse().unwrap()],
        };
        IntroductionBounds::new(key(7), &crate::samples::cluster(), &assignment, &[gateway])
    }

    fn introduction(peer: u8, ranges: &[&str], candidates: &[&str]) -> PeerIntroduction {
        PeerIntroduction {
            public_key: key(peer),
            allowed_ips: ranges.iter().map(|range| range.parse().unwrap()).collect(),
            candidates: candidates.iter().map(|candidate| candidate.parse().unwrap()).collect(),
        }
    }

    const LAN: &[&str] = &["192.168.1.8:50000"];

    fn refusal(peer: u8, ranges: &[&str]) -> IntroductionRefusal {
        bounds().admit(&introduction(peer, ranges, LAN)).unwrap_err()
    }

    #[test]
    fn a_worker_of_the_cluster_is_allowed_with_its_own_addresses() {
        let peer = bounds().admit(&introduction(8, &["100.80.0.8/32", "10.244.8.0/24"], LAN)).unwrap();
        assert_eq!(peer.address, IpAddr::from([100, 80, 0, 8]));
        assert_eq!((peer.allowed_ips.len(), peer.candidates.len()), (2, 1));
    }

    #[test]
    fn addresses_and_keys_of_others_are_refused() {
        use IntroductionRefusal::{NoAddress, NotItsOwn, Outside, ReservedKey};
        let net = |text: &str| text.parse::<IpNet>().unwrap();
        assert_eq!(refusal(7, &["100.80.0.8/32"]), ReservedKey, "this worker");
        assert_eq!(refusal(9, &["100.80.0.8/32"]), ReservedKey, "a gateway");
        for own in
            ["100.80.0.7/32", "100.80.0.2/32", "100.80.0.1/32", "10.244.7.0/24", "10.244.6.0/23", "10.244.7.128/25"]
        {
            assert_eq!(refusal(8, &["100.80.0.8/32", own]), NotItsOwn(net(own)));
        }
        for outside in [
            "0.0.0.0/0",
            "192.168.1.0/24",
            "10.96.0.10/32",
            "100.80.0.0/16",
            "100.80.8.0/24",
            "10.244.0.0/16",
            "10.0.0.0/8",
        ] {
            assert_eq!(refusal(8, &["100.80.0.8/32", outside]), Outside(net(outside)));
        }
        assert_eq!(refusal(8, &["10.244.8.0/24"]), NoAddress);
        assert_eq!(refusal(8, &[]), NoAddress);
    }

    #[test]
    fn of_two_peers_with_the_same_addresses_the_second_is_refused() {
        let peers = [(3, "10.244.8.0/24"), (4, "10.244.8.128/25"), (5, "10.244.9.0/24")];
        let all =
            peers.map(|(peer, pods)| (key(peer), introduction(peer, &[&format!("100.80.0.{peer}/32"), pods], LAN)));
        let (peers, refused) = bounds().admit_all(&all.into());
        assert_eq!(peers.into_keys().collect::<Vec<_>>(), [key(3), key(5)]);
        let expected = IntroductionRefusal::NotItsOwn("10.244.8.128/25".parse().unwrap());
        assert_eq!(refused, [(key(4), expected)].into());
    }

    #[test]
    fn candidates_lead_to_another_machine_outside_the_clusters_networks() {
        let unusable = [
            "127.0.0.1:5",
            "0.0.0.0:5",
            "224.0.0.1:5",
            "255.255.255.255:5",
            "169.254.169.254:80",
            "192.168.1.8:0",
            "100.80.0.8:5",
            "10.244.8.1:5",
            "10.96.0.10:53",
            "[::1]:5",
            "[::]:5",
            "[fe80::1]:5",
            "[ff02::1]:5",
        ];
        let peer = introduction(8, &["100.80.0.8/32"], &unusable);
        assert_eq!(bounds().admit(&peer), Err(IntroductionRefusal::NoCandidate));
        let usable = ["192.168.1.8:5", "203.0.113.8:5", "[fd00::8]:5", "[2001:db8::8]:5"];
        let peer = introduction(8, &["100.80.0.8/32"], &[&unusable[..], &usable].concat());
        let candidates: Vec<String> =
            bounds().admit(&peer).unwrap().candidates.iter().map(ToString::to_string).collect();
        assert_eq!(candidates, usable);
    }
}
