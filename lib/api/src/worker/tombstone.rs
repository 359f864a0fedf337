//! `Tombstone`: the record of an evicted worker.

use core::net::IpAddr;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::PUBLIC_KEY;

/// The record of an evicted worker, named after its Node. While it exists, no certificate is approved for that name, no peer can have
/// that name or key, and the worker's addresses are not assigned again.
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
    /// The public key of the worker, if it had a peer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = PUBLIC_KEY))]
    pub public_key: Option<String>,
    /// The addresses of the worker.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 2), inner(length(max = 45)))]
    pub addresses: Vec<String>,
    /// The time at which the record is deleted. By then, all certificates of the worker have expired.
    pub until: Time,
}

impl TombstoneSpec {
    /// Returns whether the address is still reserved for the evicted worker.
    #[must_use]
    pub fn holds(&self, address: IpAddr) -> bool {
        self.addresses.iter().any(|text| text.parse() == Ok(address))
    }
}
