//! `AddressClaim`: the assignment of a VPN address to a peer.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::PUBLIC_KEY;

/// The assignment of a VPN address to a peer. Its name is the address in hexadecimal digits (`v4-64500007`), so that an API server
/// refuses a second claim of the same address. The cluster-controller creates it.
#[derive(CustomResource, Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    crates(kube_core = "kube_core"),
    group = "keelway.dev",
    version = "v1alpha1",
    kind = "AddressClaim",
    plural = "addressclaims",
    category = "keelway",
    derive = "PartialEq",
    printcolumn = r#"{"name":"Node","type":"string","jsonPath":".spec.node"}"#,
    printcolumn = r#"{"name":"Rests","type":"date","jsonPath":".spec.restsUntil"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct AddressClaimSpec {
    /// The name of the peer and its Node.
    #[schemars(
        length(min = 1, max = 253),
        extend("x-kubernetes-validations" = [{"rule": "self == oldSelf", "message": "the node of a claim is immutable"}])
    )]
    pub node: String,
    /// The peer's public key. A different worker with the same name is a different peer.
    #[schemars(
        regex(pattern = PUBLIC_KEY),
        extend("x-kubernetes-validations" = [{"rule": "self == oldSelf", "message": "the peer of a claim is immutable"}])
    )]
    pub public_key: String,
    /// If set, the peer is gone, and the address is not assigned again before this time, because certificates for it may still be
    /// valid.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rests_until: Option<Time>,
}
