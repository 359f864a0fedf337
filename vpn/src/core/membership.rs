//! Adding, removing and updating peers.

use ipnet::IpNet;

use super::peer::PeerState;
use super::{Core, PacketRoute, unused_index};
use crate::key::PublicKey;
use crate::peers::{PeerChange, PeerConfig, PeerUpdate};

impl Core {
    pub(super) fn apply(&mut self, change: &PeerChange) {
        match change {
            PeerChange::Remove(key) => self.remove_peer(key),
            PeerChange::Add(config) => self.add_peer(config.clone()),
            PeerChange::Update(update) => self.update_peer(update),
        }
    }

    fn add_peer(&mut self, config: PeerConfig) {
        let key = config.public_key;
        for prefix in &config.allowed_ips {
            self.take_prefix(*prefix, key);
        }
        if let Some(endpoint) = config.endpoint {
            self.unmet.insert(endpoint, key);
        }
        self.set_sibling(key, config.is_sibling);
        self.peers.insert(key, PeerState::new(config));
    }

    /// Only relays have siblings: another end sends nothing for others.
    fn set_sibling(&mut self, key: PublicKey, is_sibling: bool) {
        let is_relay = matches!(self.config.route, PacketRoute::Relay(_));
        self.presence.set_sibling(key, is_relay && is_sibling);
    }

    fn remove_peer(&mut self, key: &PublicKey) {
        let Some(peer) = self.peers.remove(key) else {
            return;
        };
        for sessions in [&peer.sessions, &peer.retired].into_iter().flatten() {
            self.by_index.remove(&sessions.index);
        }
        for prefix in &peer.config.allowed_ips {
            self.allowed_ips.remove(*prefix, *key);
        }
        self.unmet.retain(|_, unmet| unmet != key);
        self.presence.remove(key);
        self.introductions.remove(key);
    }

    fn update_peer(&mut self, update: &PeerUpdate) {
        if let Some(wanted) = &update.allowed_ips {
            self.set_allowed_ips(update.public_key, wanted.iter().copied().collect());
        }
        if let Some(endpoint) = update.endpoint {
            self.set_endpoint(&update.public_key, endpoint);
        }
        if let Some(is_sibling) = update.is_sibling {
            self.set_sibling(update.public_key, is_sibling);
        }
        let Some(peer) = self.peers.get_mut(&update.public_key) else {
            return;
        };
        update.apply(&mut peer.config);
        if update.persistent_keepalive.is_some() {
            peer.schedule_keepalive();
        }
        if update.preshared_key.is_some()
            && peer.sessions.is_some()
            && let Some((identity, _)) = &self.own
        {
            let index = unused_index(&mut self.next_index, &self.by_index);
            self.by_index.insert(index, update.public_key);
            if let Some(over) = peer.retire_sessions(identity, index) {
                self.by_index.remove(&over.index);
            }
        }
    }

    fn set_allowed_ips(&mut self, key: PublicKey, wanted: Vec<IpNet>) {
        let before = self.peers.get(&key).map(|peer| peer.config.allowed_ips.clone());
        for prefix in before.iter().flatten() {
            self.allowed_ips.remove(*prefix, key);
        }
        for prefix in wanted {
            self.take_prefix(prefix, key);
        }
    }

    fn take_prefix(&mut self, prefix: IpNet, key: PublicKey) {
        let loser = self.allowed_ips.insert(prefix, key);
        if let Some(loser) = loser.filter(|loser| *loser != key).and_then(|loser| self.peers.get_mut(&loser)) {
            loser.config.allowed_ips.remove(&prefix);
        }
    }
}
