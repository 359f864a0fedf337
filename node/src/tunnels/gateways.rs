//! The gateways of a cluster, as a worker reaches them: one for each key, with all its endpoints.

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
};

use ipnet::IpNet;
use keelway_api::worker::ClusterInformation;
use keelway_vpn::{PeerConfig, PeerSet, PublicKey};

use super::{MOST, TunnelError};

/// Seconds between keepalives: less than the time after which any NAT forgets a connection.
const KEEPALIVE: u16 = 15;

/// A gateway. A machine with several public addresses has one gateway with several endpoints.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TunnelGateway {
    /// The endpoints, in the order in which the worker tries them. Never empty.
    pub(super) endpoints: Vec<SocketAddr>,
    pub(super) key: PublicKey,
    /// The gateway's own addresses in the VPN.
    pub(super) addresses: Vec<IpAddr>,
}

impl TunnelGateway {
    /// Whether a tunnel to this gateway also serves `other`: only endpoints differ.
    pub(super) fn has_same_tunnel(&self, other: &Self) -> bool {
        (self.key, &self.addresses) == (other.key, &other.addresses)
    }

    /// Returns the gateway's own addresses as networks.
    pub(super) fn ranges(&self) -> Vec<IpNet> {
        self.addresses.iter().copied().map(IpNet::from).collect()
    }

    /// Returns the peer of the tunnel, at one of the endpoints.
    pub(super) fn peers(&self, endpoint: SocketAddr, ranges: &[IpNet]) -> PeerSet {
        let peer = PeerConfig {
            endpoint: Some(endpoint),
            persistent_keepalive: KEEPALIVE,
            allowed_ips: ranges.iter().copied().collect(),
            ..PeerConfig::new(self.key)
        };
        [peer].into_iter().collect()
    }
}

/// Returns the gateways of a cluster, ordered by their first endpoint, and errors of those that cannot be used.
pub(super) fn gateways(cluster: &ClusterInformation) -> (Vec<TunnelGateway>, Vec<TunnelError>) {
    let (mut by_key, mut faults) = (BTreeMap::<PublicKey, TunnelGateway>::new(), Vec::new());
    for endpoint in &cluster.endpoints {
        let Some(gateway) = &endpoint.gateway else { continue };
        let endpoint = endpoint.address;
        let key = match gateway.public_key.parse() {
            Ok(key) => key,
            Err(source) => {
                faults.push(TunnelError::Key { endpoint, source });
                continue;
            }
        };
        let new = || TunnelGateway { endpoints: Vec::new(), key, addresses: gateway.addresses.clone() };
        let found = by_key.entry(key).or_insert_with(new);
        if !found.endpoints.contains(&endpoint) {
            found.endpoints.push(endpoint);
        }
    }
    let mut all: Vec<TunnelGateway> = by_key.into_values().collect();
    all.sort();
    all.truncate(MOST);
    (all, faults)
}

#[cfg(test)]
mod tests {
    use keelway_vpn::PrivateKey;
    use serde_json::{Value, json};

    use super::*;

    fn key(byte: u8) -> String {
        PrivateKey::from_bytes([byte; 32]).public().to_string()
    }

    fn endpoint(address: &str, key: &str) -> Value {
        json!({ "address": address, "gateway": { "publicKey": key, "addresses": ["100.80.0.2"] } })
    }

    fn read(endpoints: &Value) -> (Vec<Vec<String>>, Vec<TunnelError>) {
        let endpoints = serde_json::from_value(endpoints.clone()).unwrap();
        let (good, bad) = gateways(&ClusterInformation { endpoints, ..crate::samples::cluster() });
        let text = |gateway: TunnelGateway| gateway.endpoints.iter().map(ToString::to_string).collect();
        (good.into_iter().map(text).collect(), bad)
    }

    #[test]
    fn one_gateway_with_a_bad_key_stops_no_other() {
        let (good, bad) = read(&json!([
            endpoint("203.0.113.2:20000", &key(7)),
            endpoint("203.0.113.1:20000", "none"),
            { "address": "203.0.113.3:20000" },
        ]));
        assert_eq!(good, [["203.0.113.2:20000"]]);
        assert!(matches!(&bad[..], [TunnelError::Key { endpoint, .. }] if endpoint.to_string() == "203.0.113.1:20000"));
    }

    #[test]
    fn a_machine_with_two_addresses_has_one_gateway() {
        let (good, _) = read(&json!([
            endpoint("203.0.113.2:20000", &key(1)),
            endpoint("[2001:db8::2]:20000", &key(1)),
            endpoint("203.0.113.1:20000", &key(2)),
            endpoint("203.0.113.2:20000", &key(1)),
        ]));
        assert_eq!(good, [vec!["203.0.113.1:20000"], vec!["203.0.113.2:20000", "[2001:db8::2]:20000"]]);
    }
}
