//! `WireGuardPeer`: a worker in the VPN of its cluster.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::PUBLIC_KEY;
use crate::condition;

/// The condition of a peer that has its addresses.
pub const PEER_READY: &str = "Ready";

/// A worker in the VPN of its cluster, named after its Node. The worker creates it with its public key. The cluster-controller assigns
/// its addresses. Gateways relay only packets from these addresses and from the worker's pods.
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
    /// The worker's WireGuard public key: 32 bytes in base64. It is immutable. A worker that lost its private key must leave and join
    /// again.
    #[schemars(
        regex(pattern = PUBLIC_KEY),
        extend("x-kubernetes-validations" = [{"rule": "self == oldSelf", "message": "the key of a peer is immutable; delete the peer and create it again"}])
    )]
    pub public_key: String,
}

/// The values that the cluster-controller assigned to a peer.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WireGuardPeerStatus {
    /// The peer's addresses in the VPN, one per address family, which are also the addresses of its Node. They are immutable.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 2),
        inner(length(max = 45)),
        extend("x-kubernetes-validations" = [{"rule": "oldSelf.size() == 0 || self == oldSelf", "message": "the addresses of a peer are immutable"}])
    )]
    pub addresses: Vec<String>,
    /// The ranges of its pods, one per address family, as kube-controller-manager assigned them to its Node. If the Node is deleted,
    /// they stay until another Node has them.
    #[serde(default, rename = "podCIDRs", skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 2), inner(length(max = 49)))]
    pub pod_cidrs: Vec<String>,
    /// `Ready`: the peer has its addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "condition::list_schema")]
    pub conditions: Vec<Condition>,
}
