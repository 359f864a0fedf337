//! The roles of components, one row each.

use core::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    hypervisor::HypervisorRole,
    machine::{Amount, ContainerResources},
    name::{ComponentName, NameError},
};

/// What a component does in its cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// The store.
    Etcd,
    /// The API.
    KubeApiserver,
    /// Kubernetes' own controllers.
    KubeControllerManager,
    /// The scheduler.
    KubeScheduler,
    /// Keelway's own part inside the cluster, for its workers.
    ClusterController,
    /// Keelway's own part of a fleet, which places objects in clusters.
    FleetController,
    /// haproxy in front of the API servers.
    Ingress,
    /// The end of the VPN that workers reach, beside each ingress.
    Gateway,
}

/// What Keelway knows of a role.
#[derive(Debug, Clone, Copy)]
pub struct RoleRow {
    /// The name for people, and the name of the program.
    pub name: &'static str,
    /// The kind of machine that holds it.
    pub runs_on: HypervisorRole,
    /// The fewest replicas of a cluster that runs.
    pub fewest: u32,
    /// The names of its ports, on the machine's private address or loopback.
    pub ports: &'static [&'static str],
    /// The resources that a machine must have left for it. Keelway places nothing on a machine beyond its resources.
    pub requests: Amount,
    /// Bounds of its container.
    pub resources: ContainerResources,
    /// Seconds from SIGTERM to SIGKILL.
    pub stop_seconds: u32,
}

const fn requests(cpu_millis: u64, memory_mebibytes: u64) -> Amount {
    Amount { cpu_millis, memory_bytes: memory_mebibytes << 20 }
}

const fn bounds(cpu_request_millis: u32, memory_mebibytes: u64) -> ContainerResources {
    ContainerResources { cpu_request_millis, cpu_limit_millis: None, memory_limit_bytes: memory_mebibytes << 20 }
}

const ETCD: RoleRow = RoleRow {
    name: "etcd",
    runs_on: HypervisorRole::Private,
    fewest: 1,
    ports: &[CLIENT, PEER],
    requests: requests(100, 128),
    // With the default quota: see `Bounds::resources`.
    resources: bounds(100, 5120),
    stop_seconds: 30,
};
const KUBE_APISERVER: RoleRow = RoleRow {
    name: "kube-apiserver",
    runs_on: HypervisorRole::Private,
    fewest: 1,
    ports: &[SECURE, EGRESS],
    // The egress beside it included.
    requests: requests(160, 528),
    resources: bounds(150, 3072),
    // --shutdown-delay-duration and the default request timeout of 60 s fit into it.
    stop_seconds: 90,
};
const KUBE_CONTROLLER_MANAGER: RoleRow = RoleRow {
    name: "kube-controller-manager",
    runs_on: HypervisorRole::Private,
    fewest: 0,
    ports: &[SECURE],
    requests: requests(50, 128),
    resources: bounds(50, 1024),
    stop_seconds: 30,
};
const KUBE_SCHEDULER: RoleRow = RoleRow {
    name: "kube-scheduler",
    runs_on: HypervisorRole::Private,
    fewest: 0,
    ports: &[SECURE],
    requests: requests(50, 96),
    resources: bounds(50, 1024),
    stop_seconds: 30,
};
const CLUSTER_CONTROLLER: RoleRow = RoleRow {
    name: "cluster-controller",
    runs_on: HypervisorRole::Private,
    fewest: 0,
    ports: &[HEALTH],
    requests: requests(20, 32),
    resources: bounds(20, 256),
    stop_seconds: 30,
};
const FLEET_CONTROLLER: RoleRow = RoleRow {
    name: "fleet-controller",
    runs_on: HypervisorRole::Private,
    fewest: 0,
    ports: &[HEALTH],
    requests: requests(50, 64),
    // It caches the objects of the fleet and what became of them in each cluster.
    resources: bounds(50, 1024),
    stop_seconds: 30,
};
const INGRESS: RoleRow = RoleRow {
    name: "ingress",
    runs_on: HypervisorRole::Public,
    fewest: 0,
    ports: &[API],
    requests: requests(50, 64),
    // The number of connections follows from it.
    resources: bounds(50, 1024),
    stop_seconds: 30,
};

const GATEWAY: RoleRow = RoleRow {
    name: "gateway",
    runs_on: HypervisorRole::Public,
    fewest: 0,
    ports: &[CONNECT, HEALTH],
    requests: requests(50, 32),
    resources: bounds(50, 256),
    stop_seconds: 10,
};

/// Bounds of the egress, which is a container beside each API server.
pub const EGRESS_RESOURCES: ContainerResources = bounds(10, 128);
/// Seconds that an egress has to end: it continues for at most 60 s while its API server still has connections.
pub const EGRESS_STOP_SECONDS: u32 = 65;

impl Role {
    /// Every role, in the order of tables.
    pub const ALL: [Self; 8] = [
        Self::Etcd,
        Self::KubeApiserver,
        Self::KubeControllerManager,
        Self::KubeScheduler,
        Self::ClusterController,
        Self::FleetController,
        Self::Ingress,
        Self::Gateway,
    ];

    /// The row of this role.
    ///
    /// Requests are what a control plane without load was measured to use, with room for a small one's load: a machine holds
    /// many of them, few of which are busy at once.
    /// Memory bounds hold a control plane of a few hundred nodes: several times what was measured at rest.
    #[must_use]
    pub fn row(self) -> &'static RoleRow {
        match self {
            Self::Etcd => &ETCD,
            Self::KubeApiserver => &KUBE_APISERVER,
            Self::KubeControllerManager => &KUBE_CONTROLLER_MANAGER,
            Self::KubeScheduler => &KUBE_SCHEDULER,
            Self::ClusterController => &CLUSTER_CONTROLLER,
            Self::FleetController => &FLEET_CONTROLLER,
            Self::Ingress => &INGRESS,
            Self::Gateway => &GATEWAY,
        }
    }

    /// Those of its ports that components of the last release do not have. A plan assigns them.
    #[must_use]
    pub fn added_ports(self) -> &'static [&'static str] {
        match self {
            Self::KubeApiserver => &[EGRESS],
            Self::Etcd
            | Self::KubeControllerManager
            | Self::KubeScheduler
            | Self::ClusterController
            | Self::FleetController
            | Self::Ingress
            | Self::Gateway => &[],
        }
    }

    /// The name of this role's component of that number: `etcd-0`.
    pub fn component(self, index: u32) -> Result<ComponentName, NameError> {
        format!("{self}-{index}").parse()
    }
}

/// etcd's port for clients.
pub const CLIENT: &str = "client";
/// etcd's port for other members.
pub const PEER: &str = "peer";
/// The HTTPS port of a Kubernetes component.
pub const SECURE: &str = "secure";
/// The port of an ingress: one number per cluster on all public machines.
pub const API: &str = "api";
/// The port on loopback at which the egress of an API server reports its health.
pub const EGRESS: &str = "egress";
/// The port on loopback at which one of Keelway's own programs reports its health.
pub const HEALTH: &str = "health";
/// The port of a gateway on the machine's private address, at which API servers request connections into the VPN. Its port for
/// WireGuard is the number of the cluster's ingresses.
pub const CONNECT: &str = "connect";

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.row().name)
    }
}
