//! Documents that were read as what they mean: building from these cannot fail.

mod arguments;
mod class;
mod cluster;
mod component;
mod hypervisor;
mod labels;
mod network;
mod secret;

use core::net::IpAddr;
use std::collections::BTreeMap;

use ipnet::IpNet;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;

use crate::{
    cluster::{AddonsSpec, CertificatesSpec},
    documents::SecretName,
    fault::{Fault, MOST_FAULTS},
    hypervisor::{HypervisorEndpoint, HypervisorRole, PortRange},
    name::{ClusterRef, HypervisorName, LONGEST_NAME, is_label},
    release::Release,
    resources::ClusterResources,
    role::Role,
};

pub(crate) use class::{OPERATORS, class};
pub(crate) use cluster::{LONGEST_LIFE, SHORTEST_LIFE};
pub(crate) use component::component;
pub(crate) use hypervisor::{FEWEST_PORTS, FIRST_PORT, LONGEST_SOCKET};
pub(crate) use network::{POD_SIZES, PrefixLengths, RESERVED, SERVICE_SIZES, VPN_SIZES};
pub(crate) use secret::{check_user_secret, secret};

/// A Hypervisor whose every field means something.
#[derive(Debug, Clone, PartialEq)]
pub struct ValidatedHypervisor {
    /// Its name.
    pub name: HypervisorName,
    /// What it is for.
    pub role: HypervisorRole,
    /// How it is reached.
    pub endpoint: HypervisorEndpoint,
    /// Its addresses in the private network, at least one.
    pub private: Vec<IpAddr>,
    /// Its addresses in the public network; at least one for a public machine.
    pub public: Vec<IpAddr>,
    /// Ports that may be used.
    pub ports: PortRange,
    /// Whether components may be placed on it.
    pub schedulable: bool,
    /// Whether its components are to move away.
    pub drained: bool,
    /// `topology.kubernetes.io/zone`, or empty.
    pub zone: String,
    /// `metadata.labels`, which classes select machines by.
    pub labels: BTreeMap<String, String>,
}

/// A Cluster whose every field means something.
#[derive(Debug, Clone, PartialEq)]
pub struct ValidatedCluster {
    /// Its name and namespace.
    pub reference: ClusterRef,
    /// The release it runs.
    pub release: &'static Release,
    /// Ranges of pods, the first one decides the family that is preferred.
    pub pods: Vec<IpNet>,
    /// Ranges of Services.
    pub services: Vec<IpNet>,
    /// Ranges of workers.
    pub vpn: Vec<IpNet>,
    /// Whether there is a VPN.
    pub vpn_enabled: bool,
    /// The DNS domain.
    pub domain: String,
    /// More DNS names of the API.
    pub extra_names: Vec<String>,
    /// More addresses of the API.
    pub extra_addresses: Vec<IpAddr>,
    /// Bounds of its components.
    pub bounds: ClusterResources,
    /// More arguments of each role's program, as it reads them.
    pub extra_arguments: BTreeMap<Role, Vec<String>>,
    /// The user's own name over all ingresses.
    pub host: Option<String>,
    /// The machines that may hold its components; `None`: its class is not there, so that nobody knows.
    pub machines: Option<LabelSelector>,
    /// A private registry.
    pub registry: Option<String>,
    /// Secrets with the credentials of registries.
    pub pull_secrets: Vec<SecretName>,
    /// How long certificates live.
    pub certificates: CertificatesSpec,
    /// What is kept in it for its workers.
    pub addons: AddonsSpec,
    /// Whether nothing is done about it.
    pub paused: bool,
}

/// The label that tells a machine's zone (Kubernetes' well-known labels).
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

    /// The value, or the fault of its field.
    fn take<T>(&mut self, read: Result<T, Fault>) -> Option<T> {
        read.map_err(|Fault { field, problem, help, .. }| self.add(&field, problem, help)).ok()
    }

    /// What was built, where nothing was wrong.
    fn or<T>(self, built: Option<T>) -> Result<T, Vec<Fault>> {
        match built {
            Some(built) if self.0.is_empty() => Ok(built),
            _ => Err(self.0),
        }
    }
}

/// `metadata.name` of a machine or cluster, from which other names are made.
fn check_name(name: Option<&str>, faults: &mut FaultCollector) {
    let name = name.unwrap_or_default();
    if name.is_empty() {
        faults.add("metadata.name", "the document has no name", "write metadata.name");
    } else if name.len() > LONGEST_NAME {
        faults.add(
            "metadata.name",
            format!("the name has {} characters", name.len()),
            format!("give it at most {LONGEST_NAME}: names made from it must stay within 63"),
        );
    } else if !is_label(name, LONGEST_NAME) {
        faults.add(
            "metadata.name",
            format!("{name:?} is no RFC 1123 label"),
            "use lowercase letters, digits and -, with a letter or digit at both ends",
        );
    }
}
