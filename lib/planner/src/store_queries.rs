//! Which stores a pass observes. A store that works as the documents want it is not observed: its agents report health, size and lack of space.

use keelway_api::{Cluster, Documents, condition, name::ClusterId, role::Role};

use crate::{
    membership::changes_members, rebuild::rebuild_of, store_health::MEMBERS_HEALTHY, store_room::HAS_ROOM,
    store_start::members, versions::upgrades_members,
};

/// Whether a decision about a cluster needs the reports of its etcd members.
#[must_use]
pub fn needs_store(documents: &Documents, cluster: &Cluster) -> bool {
    let Some(id) = cluster.id().filter(|_| cluster.is_changeable() && has_store(cluster)) else { return false };
    let conditions = cluster.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let is_reported = [MEMBERS_HEALTHY, HAS_ROOM].iter().any(|kind| condition::has(conditions, kind));
    is_reported
        || changes_members(documents, cluster)
        || upgrades_members(documents, cluster)
        || !is_served(documents, id)
}

/// Whether a cluster has a store whose members have worked, or that is rebuilt.
#[must_use]
pub fn has_store(cluster: &Cluster) -> bool {
    (cluster.is_initialized() && members(cluster).is_some()) || rebuild_of(cluster).is_some()
}

/// Whether every etcd member and every API server is ready. An alarm of a store keeps its API servers from being ready.
fn is_served(documents: &Documents, id: &ClusterId) -> bool {
    let asked = [Role::Etcd, Role::KubeApiserver];
    let mut components = documents.components_of(id).filter(|(_, component)| asked.contains(&component.spec.role));
    components.all(|(_, component)| {
        component.status.as_ref().is_some_and(|status| condition::is_true(&status.conditions, "Ready"))
    })
}
