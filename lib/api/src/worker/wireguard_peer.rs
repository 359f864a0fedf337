//! `WireGuardPeer`: a worker in the VPN of its cluster.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::PUBLIC_KEY;
use crate::condition;

/// The condition of a peer that has its addresses.
pub const PEER_READY: &str = "Ready";

/// A worker in the VPN of its cluster, named after its Node. The worker makes it with its public key; the cluster-controller gives it
/// its addresses; gateways relay for it what comes from these addresses and its pods, and nothing else.
#[derive(CustomResource, Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    crates(kube_core = "kube_core"),
    group = "keelway.dev",
    version = "v1alpha1",
    kind = "WireGuardPeer",
    plural = "wireguardpeers",
    status = "WireGuardPeerStatus",
    shortname = "wgp",
    category = "keelway",
    derive = "PartialEq",
    printcolumn = r#"{"name":"Address","type":"string","jsonPath":".status.addresses[0]"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#,
    printcolumn = r#"{"name":"Ready","type":"string","jsonPath":".status.conditions[?(@.type=='Ready')].status"}"#,
    printcolumn = r#"{"name":"Pods","type":"string","jsonPath":".status.podCIDRs[*]","priority":1}"#
)]
#[serde(rename_all = "camelCase")]
pub struct WireGuardPeerSpec {
    /// The worker's public key of WireGuard: 32 bytes in base64. It stays the same for the peer's life: a worker that lost its
    /// private key leaves and joins again.
    #[schemars(
        regex(pattern = PUBLIC_KEY),
        extend("x-kubernetes-validations" = [{"rule": "self == oldSelf", "message": "a peer keeps its key: delete the peer and make it anew"}])
    )]
    pub public_key: String,
}

/// What the cluster-controller gave to a peer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WireGuardPeerStatus {
    /// Its addresses in the VPN, one per family; its Node's addresses too. Once there, they stay.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 2),
        inner(length(max = 45)),
        extend("x-kubernetes-validations" = [{"rule": "oldSelf.size() == 0 || self == oldSelf", "message": "a peer keeps its addresses"}])
    )]
    pub addresses: Vec<String>,
    /// The ranges of its pods, one per family, as kube-controller-manager gave them to its Node. They stay while the Node is away,
    /// until another Node has them.
    #[serde(default, rename = "podCIDRs", skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 2), inner(length(max = 49)))]
    pub pod_cidrs: Vec<String>,
    /// `Ready`: it has its addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "condition::list_schema")]
    pub conditions: Vec<Condition>,
}
