//! The birth of a store: all first members at once, written down before the first start.

use alloc::{collections::BTreeMap, format, string::ToString, vec, vec::Vec};

use keelway_api::{
    Time,
    cluster::EtcdStatus,
    role::{PEER, Role},
};

use crate::{Decision, plan::Plan, pod::url, world::World};

/// Writes the static initial cluster of each store whose members all have a place, once in a cluster's life.
pub(crate) fn plan_births(plan: &mut Plan, world: &World, now: &Time) {
    for (name, (id, cluster)) in &world.clusters {
        let Some(document) = plan.documents.clusters.get(name) else { continue };
        let born = document.status.as_ref().is_some_and(|status| status.etcd.is_some());
        if born || document.deleted() {
            continue;
        }
        let members: BTreeMap<_, Vec<_>> = plan
            .documents
            .components_of(id)
            .filter(|(_, component)| component.spec.role == Role::Etcd)
            .filter_map(|(pod, component)| {
                let machine = world.machines.get(&component.spec.hypervisor)?;
                let urls = vec![url(machine.private.first()?, component.spec.port(PEER))];
                Some((pod.component.clone(), urls))
            })
            .collect();
        let wanted = document.spec.replicas(Role::Etcd) as usize;
        if members.len() < wanted {
            plan.wait(
                &format!("{name}/etcd"),
                format!("{} of its {wanted} members to have a machine", wanted - members.len()),
            );
            continue;
        }
        plan.decisions.push(Decision::Bear { cluster: cluster.reference.to_string(), members: members.len() });
        if let Some(document) = plan.documents.clusters.get_mut(name) {
            document.status.get_or_insert_default().etcd =
                Some(EtcdStatus { born_at: now.clone(), initial_cluster: members });
        }
    }
}
