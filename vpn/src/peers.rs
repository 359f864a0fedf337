//! The desired peers of a device, the observed peers, and the difference. Pure data.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use ipnet::IpNet;

use crate::key::{PresharedKey, PublicKey};

/// The desired state of one peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerConfig {
    /// The identity of the peer.
    pub public_key: PublicKey,
    /// A symmetric key beside the key pairs.
    pub preshared_key: Option<PresharedKey>,
    /// The initial endpoint. The peer may roam: see [`plan_changes`].
    pub endpoint: Option<SocketAddr>,
    /// Seconds between keepalives, 0 for none.
    pub persistent_keepalive: u16,
    /// The peer's inner addresses.
    pub allowed_ips: BTreeSet<IpNet>,
    /// Whether the peer is a sibling: another relay that has the same peers. A relay and its siblings report to each other which peers they hear,
    /// and forward packets to each other.
    pub is_sibling: bool,
}

impl PeerConfig {
    /// Creates a peer with a public key and nothing else.
    #[must_use]
    pub fn new(public_key: PublicKey) -> Self {
        Self {
            public_key,
            preshared_key: None,
            endpoint: None,
            persistent_keepalive: 0,
            allowed_ips: BTreeSet::new(),
            is_sibling: false,
        }
    }
}

/// All peers of a device. Each prefix belongs to at most one of them: the one that was inserted last.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PeerSet {
    by_key: BTreeMap<PublicKey, PeerConfig>,
    owners: BTreeMap<IpNet, PublicKey>,
}

impl PeerSet {
    /// Inserts a peer, and replaces one with the same key. Other peers lose the prefixes that this one has.
    pub fn insert(&mut self, mut peer: PeerConfig) {
        let key = peer.public_key;
        self.remove(&key);
        peer.allowed_ips = peer.allowed_ips.iter().map(IpNet::trunc).collect();
        for prefix in &peer.allowed_ips {
            let loser = self.owners.insert(*prefix, key);
            if let Some(loser) = loser.and_then(|loser| self.by_key.get_mut(&loser)) {
                loser.allowed_ips.remove(prefix);
            }
        }
        self.by_key.insert(key, peer);
    }

    /// Removes a peer and returns it.
    pub fn remove(&mut self, key: &PublicKey) -> Option<PeerConfig> {
        let peer = self.by_key.remove(key)?;
        for prefix in &peer.allowed_ips {
            self.owners.remove(prefix);
        }
        Some(peer)
    }

    /// Returns the peer with this key.
    #[must_use]
    pub fn get(&self, key: &PublicKey) -> Option<&PeerConfig> {
        self.by_key.get(key)
    }

    /// Returns all peers, ordered by key.
    pub fn iter(&self) -> impl Iterator<Item = &PeerConfig> {
        self.by_key.values()
    }

    /// Returns the number of peers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Whether there are no peers.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// Applies a change. Applying all changes of `plan_changes(seen, wanted)` turns `seen` into `wanted`.
    pub fn apply(&mut self, change: &PeerChange) {
        match change {
            PeerChange::Remove(key) => {
                self.remove(key);
            }
            PeerChange::Add(peer) => self.insert(peer.clone()),
            PeerChange::Update(update) => {
                if let Some(mut peer) = self.by_key.get(&update.public_key).cloned() {
                    update.apply(&mut peer);
                    self.insert(peer);
                }
            }
        }
    }
}

impl FromIterator<PeerConfig> for PeerSet {
    fn from_iter<I: IntoIterator<Item = PeerConfig>>(peers: I) -> Self {
        let mut all = Self::default();
        for peer in peers {
            all.insert(peer);
        }
        all
    }
}

/// One step from the observed to the desired peers. It changes one peer and no other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerChange {
    /// Remove the peer and its sessions.
    Remove(PublicKey),
    /// Add a new peer.
    Add(PeerConfig),
    /// Change a peer that keeps its sessions.
    Update(PeerUpdate),
}

/// The changed fields of a peer. A field that is `None` does not change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerUpdate {
    /// The peer to update.
    pub public_key: PublicKey,
    /// The new preshared key. `Some(None)` removes it.
    pub preshared_key: Option<Option<PresharedKey>>,
    /// The new endpoint.
    pub endpoint: Option<SocketAddr>,
    /// The new keepalive interval, in seconds.
    pub persistent_keepalive: Option<u16>,
    /// The complete new set of prefixes.
    pub allowed_ips: Option<BTreeSet<IpNet>>,
    /// Whether the peer is a sibling from now on.
    pub is_sibling: Option<bool>,
}

impl PeerUpdate {
    /// Applies the update to a configuration.
    pub fn apply(&self, peer: &mut PeerConfig) {
        if let Some(preshared_key) = &self.preshared_key {
            peer.preshared_key.clone_from(preshared_key);
        }
        if let Some(endpoint) = self.endpoint {
            peer.endpoint = Some(endpoint);
        }
        if let Some(interval) = self.persistent_keepalive {
            peer.persistent_keepalive = interval;
        }
        if let Some(allowed_ips) = &self.allowed_ips {
            peer.allowed_ips.clone_from(allowed_ips);
        }
        peer.is_sibling = self.is_sibling.unwrap_or(peer.is_sibling);
    }

    fn between(seen: &PeerConfig, wanted: &PeerConfig) -> Option<Self> {
        let update = Self {
            public_key: wanted.public_key,
            preshared_key: (seen.preshared_key != wanted.preshared_key).then(|| wanted.preshared_key.clone()),
            endpoint: wanted.endpoint.filter(|_| seen.endpoint != wanted.endpoint),
            persistent_keepalive: (seen.persistent_keepalive != wanted.persistent_keepalive)
                .then_some(wanted.persistent_keepalive),
            allowed_ips: (seen.allowed_ips != wanted.allowed_ips).then(|| wanted.allowed_ips.clone()),
            is_sibling: (seen.is_sibling != wanted.is_sibling).then_some(wanted.is_sibling),
        };
        let unchanged = update.preshared_key.is_none()
            && update.endpoint.is_none()
            && update.persistent_keepalive.is_none()
            && update.allowed_ips.is_none()
            && update.is_sibling.is_none();
        (!unchanged).then_some(update)
    }
}

/// Returns the changes that turn `seen` into `wanted`: removals, then updates, then additions, each ordered by key.
///
/// An endpoint is a hint. `seen` contains the endpoint that was last set, not the one to which the peer has roamed. Setting the same
/// desired state again therefore leaves a peer that moved at its new endpoint. A desired endpoint of `None` changes nothing.
///
/// Removals precede the rest, so that a prefix is free when its new owner receives it.
#[must_use]
pub fn plan_changes(seen: &PeerSet, wanted: &PeerSet) -> Vec<PeerChange> {
    let removals =
        seen.by_key.keys().filter(|key| !wanted.by_key.contains_key(*key)).map(|key| PeerChange::Remove(*key));
    let rest = wanted.iter().filter_map(|wanted| match seen.get(&wanted.public_key) {
        None => Some(PeerChange::Add(wanted.clone())),
        Some(seen) => PeerUpdate::between(seen, wanted).map(PeerChange::Update),
    });
    let (updates, additions): (Vec<_>, Vec<_>) = rest.partition(|change| matches!(change, PeerChange::Update(_)));
    removals.chain(updates).chain(additions).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    prop_compose! {
        fn peer()(
            key in 0..6u8,
            preshared in proptest::option::of(1..3u8),
            port in proptest::option::of(1..3u16),
            keepalive in 0..2u16,
            prefixes in proptest::collection::btree_set(0..8u8, 0..4),
            is_sibling: bool,
        ) -> PeerConfig {
            PeerConfig {
                public_key: PublicKey([key; 32]),
                preshared_key: preshared.and_then(|byte| PresharedKey::from_bytes([byte; 32])),
                endpoint: port.map(|port| SocketAddr::from(([192, 0, 2, 1], port))),
                persistent_keepalive: keepalive,
                allowed_ips: prefixes.into_iter().map(|last| format!("10.0.0.{last}/32").parse().unwrap()).collect(),
                is_sibling,
            }
        }
    }

    fn peers() -> impl Strategy<Value = PeerSet> {
        proptest::collection::vec(peer(), 0..8).prop_map(|peers| peers.into_iter().collect())
    }

    proptest! {
        #[test]
        fn applied_changes_reach_the_desired_peers(seen in peers(), wanted in peers()) {
            let mut now = seen;
            for change in plan_changes(&now.clone(), &wanted) {
                now.apply(&change);
            }
            prop_assert_eq!(plan_changes(&now, &wanted), vec![]);
            for peer in wanted.iter() {
                prop_assert_eq!(&now.get(&peer.public_key).unwrap().allowed_ips, &peer.allowed_ips);
            }
            prop_assert_eq!(now.len(), wanted.len());
        }

        #[test]
        fn a_prefix_has_one_owner(peers in peers()) {
            let mut owned = BTreeSet::new();
            for prefix in peers.iter().flat_map(|peer| &peer.allowed_ips) {
                prop_assert!(owned.insert(*prefix));
            }
        }
    }

    #[test]
    fn the_same_state_twice_changes_nothing() {
        let mut peer = PeerConfig::new(PublicKey([1; 32]));
        peer.allowed_ips.insert("10.0.0.1/24".parse().unwrap());
        let wanted: PeerSet = [peer].into_iter().collect();
        assert_eq!(plan_changes(&wanted, &wanted), vec![]);
        assert_eq!(plan_changes(&PeerSet::default(), &wanted).len(), 1);
    }
}
