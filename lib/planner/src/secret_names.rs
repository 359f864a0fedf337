//! The names of what a cluster's Secrets hold, and of the certificates among them.

use keelway_api::rotation::RotatedKey;
pub use keelway_api::worker::API_SERVER_NAME;

/// The Secret of the authority that signs Kubernetes' own certificates.
pub const KUBERNETES: &str = "kubernetes-ca";
/// The Secret of etcd's authority.
pub(crate) const ETCD: &str = "etcd-ca";
/// The Secret of the aggregation layer's authority.
pub(crate) const FRONT_PROXY: &str = "front-proxy-ca";
/// The Secret of the authority for connections between Keelway's own programs.
pub(crate) const INFRASTRUCTURE: &str = "infrastructure-ca";
/// The Secret of the service-account key.
pub(crate) const SERVICE_ACCOUNT: &str = "service-account";
/// The Secret of the key that encrypts Secrets at rest.
pub(crate) const ENCRYPTION: &str = keelway_api::documents::ENCRYPTION_SECRET;
/// The Secret of the key that seals snapshots.
pub(crate) const SNAPSHOTS: &str = keelway_api::snapshots::SNAPSHOT_SECRET;
/// The Secret of the driver's identity.
pub const DRIVER_SECRET: &str = "driver";
/// The DNS name in every gateway's certificate. A client knows a gateway by its address alone, which the certificate does not contain.
pub(crate) const GATEWAY_NAME: &str = "gateway.keelway";
/// The common name of the clients from which gateways accept requests for connections.
pub(crate) const EGRESS_NAME: &str = "keelway:egress";
/// The name of a gateway's key pair in its Secret.
pub const WIREGUARD: &str = "wireguard";
/// The name of an authority's signing certificate in its Secret.
pub(crate) const AUTHORITY: &str = "active";
/// The name of the certificate of its previous generation.
pub(crate) const PREVIOUS_AUTHORITY: &str = "previous";
/// The driver's user in a managed cluster.
pub(crate) const DRIVER: &str = "keelway:driver";
/// The user as which API servers connect to kubelets.
pub(crate) const KUBELET_CLIENT: &str = "kube-apiserver-kubelet-client";
/// The user of gateways.
pub(crate) const GATEWAY: &str = keelway_api::worker::GATEWAY_USER;

/// The Secrets of a cluster's authorities.
pub(crate) const AUTHORITIES: [&str; 4] = [KUBERNETES, ETCD, FRONT_PROXY, INFRASTRUCTURE];

/// Returns the common name of an authority's first certificate. That of a later generation begins with it, and differs.
pub(crate) fn common_name(authority: &str) -> &str {
    authority.trim_end_matches("-ca")
}

/// Returns the Secret of a key that can be rotated.
pub(crate) fn secret_of(key: RotatedKey) -> &'static str {
    match key {
        RotatedKey::ServiceAccount => SERVICE_ACCOUNT,
        RotatedKey::Encryption => ENCRYPTION,
        RotatedKey::EtcdAuthority => ETCD,
        RotatedKey::FrontProxyAuthority => FRONT_PROXY,
        RotatedKey::InfrastructureAuthority => INFRASTRUCTURE,
        RotatedKey::KubernetesAuthority => KUBERNETES,
    }
}

/// What a Secret of a cluster holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SecretContents {
    /// The generations of an authority.
    Authority,
    /// The generations of the service-account key.
    ServiceAccountKey,
    /// The generations of a symmetric key: the one that encrypts Secrets at rest, or the one of snapshots.
    EncryptionKey,
    /// Certificates with their keys.
    Certificates,
}

/// Returns what the Secret with this name holds.
#[must_use]
pub fn holds(secret: &str) -> SecretContents {
    match secret {
        KUBERNETES | ETCD | FRONT_PROXY | INFRASTRUCTURE => SecretContents::Authority,
        SERVICE_ACCOUNT => SecretContents::ServiceAccountKey,
        ENCRYPTION | SNAPSHOTS => SecretContents::EncryptionKey,
        _ => SecretContents::Certificates,
    }
}
