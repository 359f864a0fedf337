//! `NodeAllocation`: the addresses of all workers in one object.

use std::collections::BTreeMap;

use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The name of the only one there is.
pub const ALLOCATION: &str = "workers";

/// The addresses of all peers that have some, in one object: an admission policy can look into one object of a name that it knows
/// beforehand, not for the peer that a Node belongs to. Kept by the cluster-controller, from the peers.
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
    /// The addresses of each peer, by its name.
    #[serde(default)]
    pub nodes: BTreeMap<String, Vec<String>>,
    /// Ids of certificates of workers that left, as API servers tell them (`X509SHA256=HEX`), and when each ends: nothing is written
    /// by who comes with one.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub revoked: BTreeMap<String, String>,
}
