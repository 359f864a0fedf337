//! Objects in a managed cluster for its workers. The cluster-controller applies the definitions of their kinds there.
//!
//! Programs of different releases read and write them, so readers ignore fields that they do not know.

mod address_claim;
mod information;
mod kubelet_order;
mod node_name;
mod renewal;
mod tombstone;
mod trust;
mod wireguard_peer;
mod worker_identity;

pub use address_claim::{AddressClaim, AddressClaimSpec};
pub use information::{
    AUTHORITIES_KEY, ApiAddress, CNI_FILE, ClusterInformation, CniInformation, GatewayInformation, INFORMATION,
    INFORMATION_KEY, IngressEndpoint, KubeProxyInformation,
};
pub use kubelet_order::{DRAIN_TIMEOUT, KUBELET_RELEASE, KubeletOrder};
pub use node_name::{LONGEST_NODE_NAME, NodeNameFault, check_node_name};
pub use renewal::{
    EXPIRED_CERTIFICATE, GATEWAY_USER, LONGEST_RENEWAL, RENEWAL_PROTOCOL, RENEWAL_SIGNATURE, RenewalRequest,
    RenewalResponse,
};
pub use tombstone::{Tombstone, TombstoneSpec};
pub use trust::{CERTIFICATE_ISSUERS, TRUSTED_AUTHORITIES};
pub use wireguard_peer::{PEER_READY, WireGuardPeer, WireGuardPeerSpec, WireGuardPeerStatus};
pub use worker_identity::{
    ApprovedCertificate, CERTIFICATE_ID, CERTIFICATES, CREDENTIAL_ID, WorkerIdentity, WorkerIdentitySpec,
};

use core::net::IpAddr;

/// A name in the certificate of every API server, whatever its addresses are. Clients that know its authority verify this name, and workers in
/// particular.
pub const API_SERVER_NAME: &str = "kubernetes";
/// The user of the cluster-controller, to which [`CLUSTER_CONTROLLER_ROLE`] is bound.
pub const CLUSTER_CONTROLLER_USER: &str = "keelway:cluster-controller";
/// The label with the field manager that applied an object.
pub const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// The field manager of the cluster-controller, and the value of [`MANAGED_BY`] on its objects.
pub const CLUSTER_CONTROLLER_MANAGER: &str = "keelway-cluster-controller";
/// All rights of the cluster-controller in its cluster, as YAML documents: roles and their bindings. The driver applies them to the
/// cluster.
pub const CLUSTER_CONTROLLER_ROLE: &str = include_str!("worker/cluster-controller-role.yaml");

/// Returns [`CLUSTER_CONTROLLER_ROLE`] as objects.
#[must_use]
pub fn cluster_controller_role() -> Vec<serde_json::Value> {
    // A test parses the text, so this cannot fail.
    serde_saphyr::from_multiple(CLUSTER_CONTROLLER_ROLE).unwrap_or_default()
}

/// The Secret with the cluster's own credentials for the images of its workers, of the type `kubernetes.io/dockerconfigjson`. Every worker may read it.
/// It is not in `kube-system`, so that the cluster-controller needs no rights to the Secrets there, such as tokens.
pub const REGISTRIES: (&str, &str) = ("kube-public", "keelway-registries");

/// The pattern of a public key of WireGuard in base64 (RFC 4648, section 4), 32 bytes, as `wg` writes it.
pub(crate) const PUBLIC_KEY: &str = "^[A-Za-z0-9+/]{42}[AEIMQUYcgkosw048]=$";

/// The group of the user of a join token.
pub const BOOTSTRAPPERS: &str = "system:bootstrappers:keelway:workers";
/// The prefix of the user name of a bootstrap token. Its id follows (`k8s.io/cluster-bootstrap/token/api`).
pub const BOOTSTRAP_USER: &str = "system:bootstrap:";

/// Returns the name of the object for an address. An IPv6 address contains `:`, which names may not contain, so the name consists of its digits. All
/// notations of an address have the same name.
#[must_use]
pub fn address_name(address: IpAddr) -> String {
    match address {
        IpAddr::V4(v4) => format!("v4-{:08x}", v4.to_bits()),
        IpAddr::V6(v6) => format!("v6-{:032x}", v6.to_bits()),
    }
}

/// Returns the address that such a name belongs to, or `None` for other names.
#[must_use]
pub fn named_address(name: &str) -> Option<IpAddr> {
    let (family, digits) = name.split_once('-')?;
    let address = match family {
        "v4" => IpAddr::V4(u32::from_str_radix(digits, 16).ok()?.into()),
        "v6" => IpAddr::V6(u128::from_str_radix(digits, 16).ok()?.into()),
        _ => return None,
    };
    (address_name(address) == name).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_role_of_the_cluster_controller_is_roles_and_bindings() {
        let objects = cluster_controller_role();
        let of_kind = |kind: &str| objects.iter().filter(|object| object["kind"] == kind).count();
        assert_eq!(of_kind("ClusterRole"), of_kind("ClusterRoleBinding"));
        assert_eq!(of_kind("Role"), of_kind("RoleBinding"));
        assert!(of_kind("Role") > 0 && of_kind("ClusterRole") > 0);
    }

    #[test]
    fn names_of_addresses_are_read_back() {
        for (address, name) in [
            ("100.80.0.7", "v4-64500007"),
            ("fd00::10", "v6-fd000000000000000000000000000010"),
            ("0.0.0.1", "v4-00000001"),
        ] {
            let address: IpAddr = address.parse().unwrap();
            assert_eq!(address_name(address), name);
            assert_eq!(named_address(name), Some(address));
        }
    }

    #[test]
    fn other_names_belong_to_no_address() {
        for name in ["v4-6450007", "v4-+6450007", "v4-64500007a", "v4-6450000A", "v6-64500007", "w1", "v5-64500007", ""]
        {
            assert_eq!(named_address(name), None, "{name}");
        }
    }
}
