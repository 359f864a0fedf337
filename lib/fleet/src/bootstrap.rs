//! Bootstrap tokens of agents. A token is a Secret of Kubernetes whose groups name the cluster that may register with it.

use alloc::collections::BTreeMap;

use k8s_openapi::{api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::ObjectMeta, jiff::Timestamp};
use keelway_pki::BootstrapToken;

use crate::names::CLUSTER_LABEL;

/// The group of all bootstrap tokens of agents. With it, an agent may create certificate signing requests.
pub const BOOTSTRAPPERS: &str = "system:bootstrappers:keelway:fleet";
/// The namespace of the Secrets of tokens.
pub const TOKEN_NAMESPACE: &str = "kube-system";
/// The type of the Secrets of tokens.
const TOKEN_TYPE: &str = "bootstrap.kubernetes.io/token";

/// The ConfigMap in [`TOKEN_NAMESPACE`] with what every token contains: endpoints and authorities. The fleet controller writes it, and every agent
/// follows it.
pub const FLEET_INFORMATION: &str = "keelway-fleet";
/// The key of the endpoints in [`FLEET_INFORMATION`], `HOST:PORT` each, one in a line.
pub const ENDPOINTS_KEY: &str = "endpoints";
/// The key of the authorities in [`FLEET_INFORMATION`], PEM.
pub const AUTHORITIES_KEY: &str = "ca.crt";
/// The key in [`FLEET_INFORMATION`] of the authority that signs certificates, while certificates of the previous one are replaced: its subject key
/// identifier in hexadecimal digits.
pub const ISSUER_KEY: &str = "issuer";

/// Returns the group of the bootstrap tokens of one cluster.
#[must_use]
pub fn bootstrap_group(cluster: &str) -> String {
    format!("{BOOTSTRAPPERS}:{cluster}")
}

/// Returns the name of the Secret of a token.
#[must_use]
pub fn token_secret_name(id: &str) -> String {
    format!("bootstrap-token-{id}")
}

/// Returns the Secret of a token with which one cluster may register until `expires`.
#[must_use]
pub fn token_secret(token: &BootstrapToken, cluster: &str, expires: Timestamp) -> Secret {
    let data = [
        ("token-id", token.id().to_owned()),
        ("token-secret", token.secret().to_owned()),
        // RFC 3339 in whole seconds, which is the format that Kubernetes parses.
        ("expiration", expires.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()),
        ("usage-bootstrap-authentication", "true".to_owned()),
        ("auth-extra-groups", format!("{BOOTSTRAPPERS},{}", bootstrap_group(cluster))),
    ];
    Secret {
        metadata: ObjectMeta {
            name: Some(token_secret_name(token.id())),
            namespace: Some(TOKEN_NAMESPACE.to_owned()),
            labels: Some(BTreeMap::from([(CLUSTER_LABEL.to_owned(), cluster.to_owned())])),
            ..ObjectMeta::default()
        },
        type_: Some(TOKEN_TYPE.to_owned()),
        string_data: Some(data.map(|(key, value)| (key.to_owned(), value)).into()),
        ..Secret::default()
    }
}
