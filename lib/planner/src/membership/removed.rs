//! Members that a store has removed: their machines stop them and remove their data.

use alloc::vec::Vec;

use keelway_api::{
    cluster::{EtcdMember, RemovalReason},
    component::ComponentStage,
    name::{ComponentName, HypervisorName, PodName},
    role::Role,
};

use super::{StoreContext, change_store, pod, store};
use crate::{component_set::of_role, fleet::FleetCapacity, plan::Plan, retirement};

/// Stops the components of removed members, and forgets members of which nothing is left. The order to remove the data of a member on a lost
/// machine is kept for the return of that machine.
pub(super) fn stop_removed(plan: &mut Plan, fleet: &mut FleetCapacity, at: StoreContext<'_>) {
    let is_member = |name: &ComponentName| {
        store(&plan.documents, at).is_some_and(|store| store.staying_members().any(|(member, _)| member == name))
    };
    let stopping: Vec<PodName> = of_role(&plan.documents, at.id, Role::Etcd)
        .filter(|(pod, component)| component.is_stopping() && !is_member(&pod.component))
        .map(|(pod, _)| pod.clone())
        .collect();
    for name in stopping {
        retirement::stop(plan, at.seen, fleet, at.cluster, &name);
    }
    let removed = store(&plan.documents, at).into_iter().flat_map(|store| &store.members);
    let over: Vec<ComponentName> =
        removed.filter(|(name, member)| is_over(plan, at, name, member)).map(|(name, _)| name.clone()).collect();
    for name in over {
        change_store(plan, at, |store| {
            store.members.remove(&name);
        });
    }
}

/// Records the order to stop a member that left the store and to remove its data. A member without a component has neither.
pub(crate) fn retire(plan: &mut Plan, at: StoreContext<'_>, component: &ComponentName, reason: RemovalReason) {
    let name = pod(at.id, component);
    let machine = plan.documents.components.get(&name).map(|component| component.spec.hypervisor.clone());
    change_store(plan, at, |store| {
        if machine.is_none() {
            store.members.remove(component);
        } else if let Some(member) = store.members.get_mut(component) {
            member.removal = Some(reason);
            member.removed_from = machine;
            member.unavailable_since = None;
        }
    });
    retirement::set_stage(plan, &name, ComponentStage::Stopping);
}

/// Whether nothing of a removed member is left: its document is gone, and its machine was observed without it, or has no document.
fn is_over(plan: &Plan, at: StoreContext<'_>, name: &ComponentName, member: &EtcdMember) -> bool {
    let name = pod(at.id, name);
    let is_clean = |machine: &HypervisorName| {
        !plan.documents.hypervisors.contains_key(machine)
            || at.seen.machine(machine).is_some_and(|state| !state.holds(&name))
    };
    let machine = member.removed_from.as_ref();
    machine.is_some_and(|machine| !plan.documents.components.contains_key(&name) && is_clean(machine))
}
