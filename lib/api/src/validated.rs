//! Documents as validated types. Building from these types cannot fail.

mod arguments;
mod class;
mod cluster;
mod component;
mod fleet;
mod hypervisor;
mod labels;
mod network;
mod restore;
mod secret;
mod snapshots;
mod workers;

use core::net::IpAddr;
use std::collections::BTreeMap;

use ipnet::IpNet;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

pub(crate) use class::{OPERATORS, class};
pub(crate) use cluster::{LONGEST_LIFE, SHORTEST_LIFE};
pub(crate) use component::component;
pub(crate) use fleet::{FIELDS_WITHOUT_FLEET, FieldWithoutFleet};
pub(crate) use hypervisor::{FEWEST_PORTS, FIRST_PORT, LONGEST_SOCKET};
pub(crate) use network::{
    NODE_PORT_ADDRESSES, POD_SIZES, PrefixLengths, RESERVED, SERVICE_SIZES, SMALLEST_IPV6_MTU, VPN_SIZES,
};
pub(crate) use secret::{check_user_secret, secret};
pub(crate) use workers::LONGEST_DRAIN;

use crate::{
    cluster::{AddonsSpec, CertificatesSpec, WorkersSpec},
    fault::{Fault, MOST_FAULTS},
    hypervisor::{HypervisorEndpoint, HypervisorRole, PortRange},
    name::{ClusterRef, HypervisorName, LONGEST_NAME, is_label},
    release::Release,
    resources::ClusterResources,
    role::Role,
    secret_name::SecretName,
};

/// A Hypervisor with valid fields.
#[derive(Debug, Clone, PartialEq)]
pub struct ValidatedHypervisor {
    /// The name.
    pub name: HypervisorName,
    /// The role.
    pub role: HypervisorRole,
    /// The endpoint of the machine.
    pub endpoint: HypervisorEndpoint,
    /// The addresses in the private network, at least one.
    pub private: Vec<IpAddr>,
    /// The addresses in the public network, at least one for a public machine.
    pub public: Vec<IpAddr>,
    /// The addresses on which ingresses listen: `public`, unless the network translates these.
    pub bind: Vec<IpAddr>,
    /// The ports that components may use.
    pub ports: PortRange,
    /// Whether components may be placed on the machine.
    pub schedulable: bool,
    /// Whether components are to move to other machines.
    pub drained: bool,
    /// `topology.kubernetes.io/zone`, or empty.
    pub zone: String,
    /// `metadata.labels`, by which classes select machines.
    pub labels: BTreeMap<String, String>,
}

/// A Cluster with valid fields.
#[derive(Debug, Clone, PartialEq)]
pub struct ValidatedCluster {
    /// The name and the namespace.
    pub reference: ClusterRef,
    /// The release.
    pub release: Release,
    /// Whether the cluster is the control plane of a fleet.
    pub is_fleet: bool,
    /// The ranges of pods. The first one determines the preferred address family.
    pub pods: Vec<IpNet>,
    /// The ranges of Services.
    pub services: Vec<IpNet>,
    /// The ranges of the VPN, from which workers get addresses. A fleet has none.
    pub vpn: Vec<IpNet>,
    /// Whether it has a VPN.
    pub vpn_enabled: bool,
    /// The MTU of the VPN.
    pub vpn_mtu: u16,
    /// The DNS domain.
    pub domain: String,
    /// Additional DNS names of the API.
    pub extra_names: Vec<String>,
    /// Additional addresses of the API.
    pub extra_addresses: Vec<IpAddr>,
    /// The resources of the components.
    pub bounds: ClusterResources,
    /// Additional arguments of each role's program, in the form `--NAME=VALUE`.
    pub extra_arguments: BTreeMap<Role, Vec<String>>,
    /// The DNS name of the user for all ingresses.
    pub host: Option<String>,
    /// The selector of machines for its components. `None`: the class does not exist, so the selector is not known.
    pub machines: Option<LabelSelector>,
    /// The private registry, if there is one.
    pub registry: Option<String>,
    /// Images that are used in place of those with the same name and tag, each with its digest.
    pub image_overrides: Vec<String>,
    /// The Secrets with credentials for registries.
    pub pull_secrets: Vec<SecretName>,
    /// The lifetimes of certificates.
    pub certificates: CertificatesSpec,
    /// How the kubelets of its workers are upgraded.
    pub workers: WorkersSpec,
    /// The add-ons for its workers.
    pub addons: AddonsSpec,
    /// Whether the cluster is paused.
    pub paused: bool,
}

/// The label with the zone of a machine (Kubernetes' well-known labels).
pub const ZONE_LABEL: &str = "topology.kubernetes.io/zone";

/// Collects faults while fields are read.
#[derive(Default)]
struct FaultCollector(Vec<Fault>);

impl FaultCollector {
    fn add(&mut self, field: &str, problem: impl Into<String>, help: impl Into<String>) {
        if self.0.len() < MOST_FAULTS {
            self.0.push(Fault::of(field, problem, help));
        }
    }

    /// Returns the value, or records the fault.
    fn take<T>(&mut self, read: Result<T, Fault>) -> Option<T> {
        read.map_err(|Fault { field, problem, help, .. }| self.add(&field, problem, help)).ok()
    }

    /// Returns what was built, if there are no faults.
    fn or<T>(self, built: Option<T>) -> Result<T, Vec<Fault>> {
        match built {
            Some(built) if self.0.is_empty() => Ok(built),
            _ => Err(self.0),
        }
    }
}

/// Checks `metadata.name` of a machine or cluster. Other names are derived from it.
fn check_name(name: Option<&str>, faults: &mut FaultCollector) {
    let name = name.unwrap_or_default();
    if name.is_empty() {
        faults.add("metadata.name", "the name is required", "set metadata.name");
    } else if name.len() > LONGEST_NAME {
        faults.add(
            "metadata.name",
            format!("must have at most {LONGEST_NAME} characters, but has {}", name.len()),
            "shorten it: names derived from it must fit into 63 characters",
        );
    } else if !is_label(name, LONGEST_NAME) {
        faults.add(
            "metadata.name",
            format!("{name:?} is not an RFC 1123 label"),
            "it must consist of lowercase letters, digits and -, and start and end with a letter or digit",
        );
    }
}
