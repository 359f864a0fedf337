//! `WorkerIdentity`: whose the name of a worker is.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The key of a user's extra fields by which API servers tell the certificate that a request came with
/// (`k8s.io/apiserver/pkg/authentication/user`).
pub const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";
/// What such an id of a certificate begins with; the SHA-256 of the certificate follows, in hexadecimal digits.
pub const CERTIFICATE_ID: &str = "X509SHA256=";
/// How many certificates of one name may hold at once, those of earlier workers included: more than a kubelet asks for that is told
/// nothing for a day, which asks anew every 15 minutes.
pub const CERTIFICATES: usize = 256;

/// Whose the name of a worker is, named after its Node. Made by the cluster-controller before it approves the first certificate of a
/// worker, and kept until the last one has ended. No worker can write it.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    crates(kube_core = "kube_core"),
    group = "keelway.dev",
    version = "v1alpha1",
    kind = "WorkerIdentity",
    plural = "workeridentities",
    category = "keelway",
    derive = "PartialEq",
    printcolumn = r#"{"name":"Token","type":"string","jsonPath":".spec.joinToken"}"#,
    printcolumn = r#"{"name":"Age","type":"date","jsonPath":".metadata.creationTimestamp"}"#
)]
#[serde(rename_all = "camelCase")]
pub struct WorkerIdentitySpec {
    /// The id of the token that the worker joined with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub join_token: Option<String>,
    /// When its first certificate was approved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approved: Option<Time>,
    /// The uid of its peer, once it has one. A worker whose peer is gone has left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub peer: Option<String>,
    /// Its certificates that may still hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub certificates: Vec<ApprovedCertificate>,
    /// Those of workers that had the name before, and may still hold: nothing is done for who comes with one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub revoked: Vec<ApprovedCertificate>,
}

/// A client certificate that was approved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ApprovedCertificate {
    /// The SHA-256 of its public key, in hexadecimal digits.
    #[schemars(regex(pattern = "^[0-9a-f]{64}$"))]
    pub key: String,
    /// The SHA-256 of the certificate, in hexadecimal digits, once it is signed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(regex(pattern = "^[0-9a-f]{64}$"))]
    pub id: Option<String>,
    /// When it ends at the latest.
    pub until: Time,
}
