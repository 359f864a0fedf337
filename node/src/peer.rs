//! The worker's identity in the VPN: its key, and the WireGuardPeer through which the cluster assigns addresses.

use std::{net::IpAddr, time::Duration};

use ipnet::IpNet;
use keelway_api::worker::{WireGuardPeer, WireGuardPeerSpec};
use keelway_vpn::{InvalidKey, PrivateKey, PublicKey};
use kube::{Api, Client};
use rand::Rng;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::{
    api::{self, ApiError, CONTROLLER, WaitCondition},
    files::{self, NodeFileError},
    settings::Layout,
};

/// How long the cluster may take to assign an address.
const PATIENCE: Duration = Duration::from_secs(60);

/// The worker has no WireGuardPeer.
#[derive(Debug, thiserror::Error)]
pub enum PeerError {
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] NodeFileError),
    /// The worker's key is invalid.
    #[error("the WireGuard key of this worker is not valid; run `keelway node forget` and join again")]
    Key(#[source] InvalidKey),
    /// A request to the API failed.
    #[error(transparent)]
    Api(#[from] ApiError),
    /// Another machine has a WireGuardPeer with this name.
    #[error(
        "the WireGuardPeer {0} has another key, so it belongs to another machine; use another --node-name, or evict that worker"
    )]
    Foreign(String),
}

/// What the cluster assigned to this worker.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PeerAssignment {
    /// The worker's addresses in the VPN, one per family.
    pub(crate) addresses: Vec<IpAddr>,
    /// The ranges of its pods, once it has a Node.
    #[serde(rename = "podCIDRs", default)]
    pub(crate) pod_cidrs: Vec<IpNet>,
}

impl PeerAssignment {
    pub(crate) fn of(peer: &WireGuardPeer) -> Self {
        let status = peer.status.as_ref();
        let addresses = status.map(|status| status.addresses.iter().filter_map(|text| text.parse().ok()).collect());
        let pod_cidrs = status.map(|status| status.pod_cidrs.iter().filter_map(|text| text.parse().ok()).collect());
        Self { addresses: addresses.unwrap_or_default(), pod_cidrs: pod_cidrs.unwrap_or_default() }
    }

    /// Returns the address of a family.
    pub(crate) fn address(&self, v4: bool) -> Option<IpAddr> {
        self.addresses.iter().copied().find(|address| address.is_ipv4() == v4)
    }
}

/// Returns the worker's key, and generates it the first time.
pub(crate) fn key(layout: &Layout) -> Result<PrivateKey, PeerError> {
    if let Some(key) = load_key(layout)? {
        return Ok(key);
    }
    let mut bytes = Zeroizing::new([0; keelway_vpn::KEY_LEN]);
    rand::rng().fill_bytes(&mut *bytes);
    let key = PrivateKey::from_bytes(*bytes);
    let text = Zeroizing::new(format!("{}\n", key.to_hex()));
    files::write(&layout.wireguard_key(), text.as_bytes(), 0o600)?;
    Ok(key)
}

/// Returns the worker's key, if it has one.
pub(crate) fn load_key(layout: &Layout) -> Result<Option<PrivateKey>, PeerError> {
    let text = files::read(&layout.wireguard_key())?.map(Zeroizing::new);
    text.map(|text| PrivateKey::from_hex(text.trim())).transpose().map_err(PeerError::Key)
}

/// Ensures that a WireGuardPeer with this key exists, and waits for its addresses.
pub(crate) async fn ensure(client: Client, name: &str, key: PublicKey) -> Result<PeerAssignment, PeerError> {
    let peers: Api<WireGuardPeer> = Api::all(client);
    let wanted = WireGuardPeer::new(name, WireGuardPeerSpec { public_key: key.to_string() });
    tracing::debug!(action = "WireGuardPeer", "begins");
    let made = api::create(&peers, &wanted, (&format!("create the WireGuardPeer {name}"), PATIENCE)).await?;
    tracing::debug!(action = "WireGuardPeer", "done");
    if made.is_none() {
        let get = async || peers.get(name).await.map_err(ApiError::request(format!("get the WireGuardPeer {name}")));
        let found = api::persist(PATIENCE, get).await?;
        if found.spec.public_key != wanted.spec.public_key {
            return Err(PeerError::Foreign(name.to_owned()));
        }
    }
    let what = format!("the WireGuardPeer {name} has an address");
    let wait = WaitCondition { what: &what, help: CONTROLLER, deadline: PATIENCE };
    let look =
        |peer: WireGuardPeer| Some(PeerAssignment::of(&peer)).filter(|assignment| !assignment.addresses.is_empty());
    Ok(api::wait_for(&peers, name, wait, made, look).await?)
}
