//! Documents that were read as what they mean: building from these cannot fail.

use core::net::IpAddr;

use ipnet::IpNet;

use crate::{
    cluster::CertificatesSpec,
    hypervisor::{Endpoint, HypervisorRole, PortRange},
    name::{ClusterRef, HypervisorName},
    release::Release,
};

/// A Hypervisor whose every field means something.
#[derive(Debug, Clone, PartialEq)]
pub struct ValidatedHypervisor {
    /// Its name.
    pub name: HypervisorName,
    /// What it is for.
    pub role: HypervisorRole,
    /// How it is reached.
    pub endpoint: Endpoint,
    /// Its addresses in the private network, at least one.
    pub private: Vec<IpAddr>,
    /// Its addresses in the public network; at least one for a public machine.
    pub public: Vec<IpAddr>,
    /// Ports that may be used.
    pub ports: PortRange,
    /// `topology.kubernetes.io/zone`, or empty.
    pub zone: String,
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
    /// The DNS domain.
    pub domain: String,
    /// More DNS names of the API.
    pub extra_names: Vec<String>,
    /// More addresses of the API.
    pub extra_addresses: Vec<IpAddr>,
    /// The user's own name over all ingresses.
    pub host: Option<String>,
    /// A private registry.
    pub registry: Option<String>,
    /// How long certificates live.
    pub certificates: CertificatesSpec,
}

/// The label that tells a machine's zone (Kubernetes' well-known labels).
pub const ZONE_LABEL: &str = "topology.kubernetes.io/zone";
