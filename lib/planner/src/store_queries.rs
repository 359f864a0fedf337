//! Which stores a pass observes. A store that works as the documents want it is not observed: its agents report health, size and lack of space.

use keelway_api::{Cluster, Component, Documents, condition, name::ClusterId, role::Role};

use crate::{store_health::MEMBERS_HEALTHY, store_room::HAS_ROOM, store_start::members};

/// Whether a decision about a cluster needs the reports of its etcd members.
#[must_use]
pub fn needs_store(documents: &Documents, cluster: &Cluster) -> bool {
    let Some(id) = cluster.id().filter(|_| has_store(cluster)) else { return false };
    let conditions = cluster.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let is_reported = [MEMBERS_HEALTHY, HAS_ROOM].iter().any(|kind| condition::has(conditions, kind));
    is_reported || changes_members(documents, cluster, id) || !is_served(documents, id)
}

/// Whether a cluster has a store whose members have worked.
#[must_use]
pub fn has_store(cluster: &Cluster) -> bool {
    cluster.is_initialized() && members(cluster).is_some() && !cluster.deleted() && !cluster.spec.paused
}

/// Whether the members are not those that the documents want, or one of them is to leave its machine.
fn changes_members(documents: &Documents, cluster: &Cluster, id: &ClusterId) -> bool {
    let recorded = members(cluster).map_or(0, |members| members.len());
    let stays = |component: &Component| {
        let machine = documents.hypervisors.get(&component.spec.hypervisor);
        let leaves = machine.is_none_or(|machine| machine.spec.drain || machine.is_lost() || machine.deleted());
        !component.is_leaving() && !component.is_stopping() && !leaves
    };
    let of_store = || documents.components_of(id).filter(|(_, component)| component.spec.role == Role::Etcd);
    let is_recorded =
        of_store().all(|(pod, _)| members(cluster).is_some_and(|members| members.contains_key(&pod.component)));
    let wanted = cluster.spec.replicas(Role::Etcd) as usize;
    !is_recorded || recorded != wanted || of_store().filter(|(_, component)| stays(component)).count() != wanted
}

/// Whether every etcd member and every API server is ready. An alarm of a store keeps its API servers from being ready.
fn is_served(documents: &Documents, id: &ClusterId) -> bool {
    let asked = [Role::Etcd, Role::KubeApiserver];
    let mut components = documents.components_of(id).filter(|(_, component)| asked.contains(&component.spec.role));
    components.all(|(_, component)| {
        component.status.as_ref().is_some_and(|status| condition::is_true(&status.conditions, "Ready"))
    })
}
