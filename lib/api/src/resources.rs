//! The resources that components of a cluster may use: the defaults of Keelway for each role, and the settings of a Cluster.

use std::collections::BTreeMap;

pub(crate) use crate::machine::SMALLEST_QUOTA;

use crate::{
    cluster::{ClusterSpec, ComponentLimits, ComponentResources, EtcdSpec},
    fault::Fault,
    machine::{ContainerResources, ETCD_QUOTA},
    quantity::{Cpu, Memory},
    role::Role,
};

/// The largest quota that etcd's documentation recommends for normal use ("Storage size limit").
pub(crate) const LARGEST_QUOTA: Memory = Memory::gibibytes(8);
/// The quota of a Cluster that sets none.
pub(crate) const DEFAULT_QUOTA: Memory = Memory::of_bytes(ETCD_QUOTA);
/// The memory of a member in addition to its database, all of which is in memory: the index of keys, and data in transit to clients and peers.
pub(crate) const BESIDE_THE_DATABASE: Memory = Memory::gibibytes(1);

/// The roles whose limits a Cluster can set, with the field for each.
pub const BOUNDED: [(Role, &str); 5] = [
    (Role::Etcd, "spec.etcd.resources"),
    (Role::KubeApiserver, "spec.controlPlane.kubeAPIServer.resources"),
    (Role::KubeControllerManager, "spec.controlPlane.kubeControllerManager.resources"),
    (Role::KubeScheduler, "spec.controlPlane.kubeScheduler.resources"),
    (Role::ClusterController, "spec.controlPlane.clusterController.resources"),
];

impl EtcdSpec {
    /// Returns the maximum size of a member's database.
    #[must_use]
    pub fn quota(&self) -> Memory {
        self.quota.unwrap_or(DEFAULT_QUOTA)
    }
}

/// The limits that a Cluster sets for its components.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterResources {
    /// The maximum size of a member's database.
    pub quota: Memory,
    /// The limits of each role for which the Cluster sets any.
    limits: BTreeMap<Role, ComponentLimits>,
}

impl ClusterResources {
    /// Returns the limits of this spec.
    #[must_use]
    pub fn of(spec: &ClusterSpec) -> Self {
        let limits = BOUNDED.iter().filter_map(|(role, _)| Some((*role, requested_resources(spec, *role)?.limits)));
        Self { quota: spec.etcd.quota(), limits: limits.collect() }
    }

    /// Returns the resources of the main containers of this role.
    #[must_use]
    pub fn resources(&self, role: Role) -> ContainerResources {
        let limits = self.limits.get(&role).copied().unwrap_or_default();
        let ContainerResources { cpu_request_millis, cpu_limit_millis, memory_limit_bytes } = role.row().resources;
        let memory = if role == Role::Etcd { of_quota(self.quota).bytes() } else { memory_limit_bytes };
        ContainerResources {
            cpu_request_millis,
            cpu_limit_millis: limits.cpu.map(Cpu::millis).or(cpu_limit_millis),
            memory_limit_bytes: limits.memory.map_or(memory, Memory::bytes),
        }
    }
}

/// Returns the settings of a Cluster for components of a role.
fn requested_resources(spec: &ClusterSpec, role: Role) -> Option<ComponentResources> {
    let plane = &spec.control_plane;
    match role {
        Role::Etcd => spec.etcd.resources,
        Role::KubeApiserver => plane.kube_api_server.resources,
        Role::KubeControllerManager => plane.kube_controller_manager.resources,
        Role::KubeScheduler => plane.kube_scheduler.resources,
        Role::ClusterController => plane.cluster_controller.resources,
        Role::FleetController | Role::Ingress | Role::Gateway => None,
    }
}

/// Returns every limit that a Cluster sets, with its field.
pub(crate) fn asked_limits(spec: &ClusterSpec) -> impl Iterator<Item = (Role, &'static str, ComponentLimits)> {
    BOUNDED.iter().filter_map(|(role, field)| Some((*role, *field, requested_resources(spec, *role)?.limits)))
}

/// Returns the minimum memory limit of a role: the memory by which its components are placed.
pub(crate) fn least_memory(role: Role) -> Memory {
    Memory::of_bytes(role.row().requests.memory_bytes)
}

/// Returns the minimum CPU limit of a role.
pub(crate) fn least_cpu(role: Role) -> Cpu {
    Cpu::of_millis(role.row().resources.cpu_request_millis)
}

/// Returns the faults of these limits.
pub(crate) fn faults(spec: &ClusterSpec) -> Vec<Fault> {
    let mut found = Vec::new();
    let quota = spec.etcd.quota();
    if !(SMALLEST_QUOTA..=LARGEST_QUOTA).contains(&quota) {
        let problem = format!("must be from {SMALLEST_QUOTA} to {LARGEST_QUOTA}, not {quota}");
        found.push(Fault::of("spec.etcd.quota", problem, "choose a size that etcd supports"));
    }
    for (role, field, limits) in asked_limits(spec) {
        if let Some(memory) = limits.memory.filter(|memory| *memory < least_memory(role)) {
            let (least, field) = (least_memory(role), format!("{field}.limits.memory"));
            let problem = format!("{memory} is less than {role} needs when idle");
            found.push(Fault::of(field, problem, format!("write {least} or more")));
        } else if let Some(memory) = limits.memory.filter(|memory| role == Role::Etcd && *memory < of_quota(quota)) {
            let problem = format!("{memory} is too small for a database of {quota}, the quota");
            let help = format!("write {} or more, or reduce spec.etcd.quota", of_quota(quota));
            found.push(Fault::of(format!("{field}.limits.memory"), problem, help));
        }
        if let Some(cpu) = limits.cpu.filter(|cpu| *cpu < least_cpu(role)) {
            let problem = format!("{cpu} is less than {role} needs when idle");
            let help = format!("write {} or more", least_cpu(role));
            found.push(Fault::of(format!("{field}.limits.cpu"), problem, help));
        }
    }
    found
}

/// Returns the memory that a member with this quota needs.
fn of_quota(quota: Memory) -> Memory {
    quota.and(BESIDE_THE_DATABASE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(etcd: &str, api_server: &str) -> ClusterSpec {
        let text = format!(
            "{{\"version\":\"1.37.0\",\"etcd\":{etcd},\"controlPlane\":{{\"kubeAPIServer\":{{\"resources\":{api_server}}}}}}}"
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn resources_of_a_cluster_override_the_defaults() {
        let spec = spec(r#"{"quota":"2Gi"}"#, r#"{"limits":{"cpu":"2","memory":"8Gi"}}"#);
        assert_eq!(faults(&spec), []);
        let bounds = ClusterResources::of(&spec);
        assert_eq!(bounds.quota, Memory::gibibytes(2));
        let of = |role| bounds.resources(role);
        assert_eq!(of(Role::Etcd).memory_limit_bytes, 3 << 30, "its quota and a GiB");
        assert_eq!(
            (of(Role::KubeApiserver).cpu_limit_millis, of(Role::KubeApiserver).memory_limit_bytes),
            (Some(2000), 8 << 30)
        );
        assert_eq!(of(Role::KubeScheduler), Role::KubeScheduler.row().resources);
    }

    #[test]
    fn a_member_has_memory_for_its_quota() {
        let fields = |etcd: &str, api_server: &str| -> Vec<String> {
            faults(&spec(etcd, api_server)).into_iter().map(|fault| fault.field).collect()
        };
        assert_eq!(fields(r#"{"resources":{"limits":{"memory":"5Gi"}}}"#, "{}"), [""; 0]);
        assert_eq!(fields(r#"{"resources":{"limits":{"memory":"4Gi"}}}"#, "{}"), ["spec.etcd.resources.limits.memory"]);
        assert_eq!(fields(r#"{"quota":"1Gi","resources":{"limits":{"memory":"2Gi"}}}"#, "{}"), [""; 0]);
        assert_eq!(fields(r#"{"quota":"16Gi"}"#, "{}"), ["spec.etcd.quota"]);
        assert_eq!(
            fields("{}", r#"{"limits":{"memory":"1Mi","cpu":"1m"}}"#),
            [
                "spec.controlPlane.kubeAPIServer.resources.limits.memory",
                "spec.controlPlane.kubeAPIServer.resources.limits.cpu"
            ]
        );
    }
}
