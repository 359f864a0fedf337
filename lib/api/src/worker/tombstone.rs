//! `Tombstone`: what remains of a worker that was evicted.

use core::net::IpAddr;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::PUBLIC_KEY;

/// What remains of a worker that was evicted, named after its Node. While it is there, no certificate is approved for that name, no
/// peer has that name or key, and its addresses are nobody else's.
#[derive(CustomResource, Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    crates(kube_core = "kube_core"),
    group = "keelway.dev",
    version = "v1alpha1",
    kind = "Tombstone",
    plural = "tombstones",
    category = "keelway",
    derive = "PartialEq",
    printcolumn = r#"{"name":"Until","type":"string","jsonPath":".spec.until"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct TombstoneSpec {
    /// The public key that the worker had, if it had a peer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = PUBLIC_KEY))]
    pub public_key: Option<String>,
    /// The addresses that it had.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 2), inner(length(max = 45)))]
    pub addresses: Vec<String>,
    /// Until when it is there: by then no certificate of the worker holds any more.
    pub until: Time,
}

impl TombstoneSpec {
    /// Whether the address is still the evicted worker's.
    #[must_use]
    pub fn holds(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|text| text.parse() == Ok(address))
    }
}
