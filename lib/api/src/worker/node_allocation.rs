//! `NodeAllocation`: the addresses of all workers in one object.

use std::collections::BTreeMap;

use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The name of the only NodeAllocation of a cluster.
pub const ALLOCATION: &str = "workers";

/// The addresses of all peers in one object. An admission policy can read only an object with a fixed name, so it cannot read the peer
/// of a Node. The cluster-controller derives this object from the peers.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    crates(kube_core = "kube_core"),
    group = "keelway.dev",
    version = "v1alpha1",
    kind = "NodeAllocation",
    plural = "nodeallocations",
    category = "keelway",
    derive = "PartialEq",
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct NodeAllocationSpec {
    /// The addresses of each peer, by the name of the peer.
    #[serde(default)]
    pub nodes: BTreeMap<String, Vec<String>>,
    /// The ids of certificates of workers that left, in the form of API servers (`X509SHA256=HEX`), each with its expiry. Writes with
    /// such a certificate are refused.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub revoked: BTreeMap<String, String>,
}
