//! `AddressClaim`: that an address of the VPN is somebody's.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::PUBLIC_KEY;

/// That an address of the VPN is a peer's. It is named by the address in hexadecimal digits (`v4-64500007`), so that an API server
/// refuses a second claim of the same address, whoever makes it. Made by the cluster-controller.
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
        extend("x-kubernetes-validations" = [{"rule": "self == oldSelf", "message": "a claim stays its node's"}])
    )]
    pub node: String,
    /// The peer's public key: another worker of the same name is another peer.
    #[schemars(
        regex(pattern = PUBLIC_KEY),
        extend("x-kubernetes-validations" = [{"rule": "self == oldSelf", "message": "a claim stays its peer's"}])
    )]
    pub public_key: String,
    /// The peer is gone, and the address is nobody else's before this time: certificates for it may still be held.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rests_until: Option<Time>,
}
