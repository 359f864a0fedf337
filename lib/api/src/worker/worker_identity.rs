//! `WorkerIdentity`: the owner of a worker's name.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The key in a user's extra fields with which API servers identify the certificate of a request
/// (`k8s.io/apiserver/pkg/authentication/user`).
pub const CREDENTIAL_ID: &str = "authentication.kubernetes.io/credential-id";
/// The prefix of such an id of a certificate. The SHA-256 of the certificate follows, in hexadecimal digits.
pub const CERTIFICATE_ID: &str = "X509SHA256=";
/// The maximum number of valid certificates for one name, including those of earlier workers. A kubelet without a response requests one
/// every 15 minutes, which is fewer than this in a day.
pub const CERTIFICATES: usize = 256;

/// The owner of a worker's name, named after its Node. The cluster-controller creates it before it approves the first certificate of a
/// worker, and deletes it after the last one has expired. Workers cannot write it.
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
    /// The id of the join token of the worker.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub join_token: Option<String>,
    /// The time at which its first certificate was approved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approved: Option<Time>,
    /// The uid of its peer, if it has one. If that peer no longer exists, the worker has left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub peer: Option<String>,
    /// The worker's certificates that may still be valid.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256))]
    pub certificates: Vec<ApprovedCertificate>,
    /// The certificates of earlier workers with this name that may still be valid. Requests with such a certificate are refused.
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
    /// The latest time at which it expires.
    pub until: Time,
}
