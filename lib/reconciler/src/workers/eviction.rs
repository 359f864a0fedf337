//! Evicts a worker from its cluster. The worker need not cooperate.

use k8s_openapi::api::core::v1::Node;
use keelway_api::{
    Time,
    jiff::Timestamp,
    worker::{Tombstone, TombstoneSpec, WireGuardPeer, WorkerIdentity},
};
use kube::{
    Api,
    api::{DeleteParams, PostParams},
};

use super::{ClusterWorkers, WorkersError};

/// The result of an eviction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Eviction {
    /// The worker was evicted now.
    Done,
    /// The worker was evicted before, and all of its objects are removed now.
    Again,
}

impl ClusterWorkers {
    /// Evicts a worker. Its name, key and addresses stay reserved until `until`, when its last certificate expires.
    ///
    /// The tombstone is created first: from then on no certificate is approved for that name, and a peer that the worker creates again is removed at
    /// once. Then the peer is deleted, which ends the worker's tunnels, and then the Node, which moves its pods.
    pub async fn evict(&self, name: &str, until: Timestamp) -> Result<Eviction, WorkersError> {
        let peers = Api::<WireGuardPeer>::all(self.client.clone());
        let nodes = Api::<Node>::all(self.client.clone());
        let tombstones = Api::<Tombstone>::all(self.client.clone());
        let peer = Self::call("read the worker's peer", peers.get_opt(name)).await?;
        let node = Self::call("read the worker's Node", nodes.get_opt(name)).await?;
        let identities = Api::<WorkerIdentity>::all(self.client.clone());
        // A worker that has only a certificate can create its peer at any time.
        let identity = Self::call("read the worker's identity", identities.get_opt(name)).await?;
        if peer.is_none() && node.is_none() && identity.is_none() {
            let before = Self::call("read the worker's tombstone", tombstones.get_opt(name)).await?;
            return before.map(|_| Eviction::Again).ok_or_else(|| WorkersError::NoWorker(name.to_owned()));
        }
        let tombstone = Tombstone::new(name, tombstone(peer.as_ref(), until));
        let eviction =
            match Self::call("create the tombstone", tombstones.create(&PostParams::default(), &tombstone)).await {
                Ok(_) => Eviction::Done,
                Err(error) if error.code() == Some(409) => Eviction::Again,
                Err(error) if error.code() == Some(404) => return Err(WorkersError::NoKinds),
                Err(error) => return Err(error),
            };
        let parameters = DeleteParams::default();
        gone(Self::call("delete the worker's peer", peers.delete(name, &parameters)).await)?;
        gone(Self::call("delete the worker's Node", nodes.delete(name, &parameters)).await)?;
        Ok(eviction)
    }
}

/// Returns the spec of the tombstone. The addresses show that a key is the worker's own: a peer without addresses may hold a copy of another
/// worker's key, which must not be evicted with it.
fn tombstone(peer: Option<&WireGuardPeer>, until: Timestamp) -> TombstoneSpec {
    let addresses =
        peer.and_then(|peer| peer.status.as_ref()).map(|status| status.addresses.clone()).unwrap_or_default();
    let public_key = peer.filter(|_| !addresses.is_empty()).map(|peer| peer.spec.public_key.clone());
    TombstoneSpec { public_key, addresses, until: Time(until) }
}

/// Treats an object that does not exist as deleted.
fn gone<T>(deleted: Result<T, WorkersError>) -> Result<(), WorkersError> {
    match deleted {
        Err(error) if error.code() == Some(404) => Ok(()),
        other => other.map(drop),
    }
}

#[cfg(test)]
mod tests {
    use keelway_api::worker::{WireGuardPeerSpec, WireGuardPeerStatus};

    use super::*;

    #[test]
    fn the_key_of_another_is_not_evicted_with_its_copy() {
        let mut peer = WireGuardPeer::new("w1", WireGuardPeerSpec { public_key: "key".to_owned() });
        let spec = tombstone(Some(&peer), Timestamp::UNIX_EPOCH);
        assert_eq!((spec.public_key, spec.addresses), (None, vec![]));
        let addresses = vec!["100.80.0.17".to_owned()];
        peer.status = Some(WireGuardPeerStatus { addresses: addresses.clone(), ..WireGuardPeerStatus::default() });
        let spec = tombstone(Some(&peer), Timestamp::UNIX_EPOCH);
        assert_eq!((spec.public_key.as_deref(), spec.addresses), (Some("key"), addresses));
    }
}
