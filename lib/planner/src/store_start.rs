//! Which components of a cluster may start, as far as its etcd members allow it.

use alloc::collections::BTreeMap;

use keelway_api::{
    Cluster, Documents,
    cluster::{EtcdMember, MemberPhase},
    machine::{ConfigFormat, MachineState, Start},
    name::{ClusterId, ComponentName, HypervisorName},
    role::Role,
};

use crate::{PassObservation, component_set::of_role};

/// The directory in a member's pod that holds the store.
pub(crate) const DATA: &str = "data";

/// The state that a member's data directory must have before the member starts.
pub(crate) fn start_of(cluster: Option<&Cluster>, member: &ComponentName) -> Start {
    match phase(cluster, member) {
        MemberPhase::Pending => Start::Never,
        MemberPhase::Marked => Start::OnMarkedData,
        MemberPhase::Started => Start::OnUsedData,
    }
}

/// Whether a component waits for the first API server of the cluster to be ready. Controllers and schedulers that start earlier repeat
/// their requests, and use resources that the API server on their machine needs to start.
pub(crate) fn waits_for_api(cluster: &Cluster, role: Role) -> bool {
    let asks_only = match role {
        Role::KubeControllerManager | Role::KubeScheduler | Role::ClusterController | Role::FleetController => true,
        Role::Etcd | Role::KubeApiserver | Role::Ingress | Role::Gateway => false,
    };
    asks_only && !cluster.is_initialized()
}

/// Whether any member of the store may start. API servers that start before a member only wait, and delay the pass that prepares the store.
pub(crate) fn any_may_start(cluster: &Cluster) -> bool {
    members(cluster).is_some_and(|members| members.values().any(|member| member.phase > MemberPhase::Pending))
}

/// The roles that a rebuild stops.
pub(crate) const STOPPED_IN_REBUILD: [Role; 2] = [Role::Etcd, Role::KubeApiserver];

/// A machine with components of these roles whose agent cannot stop a pod and keep its data. None: all that respond can.
pub(crate) fn machine_that_cannot_stop(
    documents: &Documents,
    seen: &PassObservation,
    id: &ClusterId,
    roles: &[Role],
) -> Option<HypervisorName> {
    let can_stop = |state: &MachineState| {
        ConfigFormat::understood_by(state.formats).is_some_and(|format| format >= ConfigFormat::Two)
    };
    let components = roles.iter().flat_map(|role| of_role(documents, id, *role));
    let mut machines = components.map(|(_, component)| &component.spec.hypervisor);
    machines.find(|machine| seen.machine(machine).is_some_and(|state| !can_stop(state))).cloned()
}

pub(crate) fn phase(cluster: Option<&Cluster>, member: &ComponentName) -> MemberPhase {
    let known = cluster.and_then(members).and_then(|members| members.get(member));
    known.map_or(MemberPhase::Pending, |member| member.phase)
}

pub(crate) fn members(cluster: &Cluster) -> Option<&BTreeMap<ComponentName, EtcdMember>> {
    Some(&cluster.status.as_ref()?.etcd.as_ref()?.members)
}
