//! Deleted clusters: their machines are cleaned first, and their documents are removed last.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    format,
    string::{String, ToString},
    vec::Vec,
};

use keelway_api::{
    Cluster, Documents, Hypervisor, Time,
    cluster::RemovalReason,
    component::ComponentSpec,
    condition::{self, ConditionStatus, ConditionValue, reason::ConditionReason},
    hypervisor::{AbandonedCluster, HypervisorStatus, LOST_ANNOTATION},
    machine::{DataRemoval, MachineState},
    name::{ClusterId, ClusterRef, ComponentName, HypervisorName, PodName},
    role::Role,
};

use crate::{
    Decision, PassObservation, WaitBlocker, WaitKind, Waiting, plan::Plan, tenant::Tenant, text::joined,
    world::ValidatedDocuments,
};

/// Removes the documents of each deleted cluster of which no machine holds anything.
///
/// The pods of a deleted cluster are in no config, so the machines remove them. Its store stops last.
pub(crate) fn plan_deletions(plan: &mut Plan, world: &ValidatedDocuments, seen: &PassObservation, now: &Time) {
    let deleted: Vec<(ClusterRef, ClusterId)> = world
        .clusters
        .iter()
        .filter(|(name, _)| plan.documents.clusters.get(name).is_some_and(|cluster| cluster.deleted()))
        .map(|(name, (id, _))| (name.clone(), id.clone()))
        .collect();
    for (name, id) in deleted {
        if is_left(world, &name) {
            // For a frozen cluster the plan already waits (see `plan::wait_for_newer_documents`).
            if plan.documents.clusters.get(&name).is_some_and(|cluster| cluster.spec.paused) {
                plan.block(&name, WaitBlocker::PausedDeletion);
            }
            continue;
        }
        let left = RemainingMachines::of(&plan.documents, seen, &id);
        if left.is_nothing() {
            abandon(&mut plan.documents, seen, (&name, &id));
            plan.documents.remove_cluster(&name, &id);
            plan.decisions.push(Decision::RemoveCluster { cluster: name });
            continue;
        }
        let kind = if left.holding.is_empty() { WaitKind::Blocked } else { WaitKind::InProgress };
        let machines = left.holding.union(&left.silent).cloned().collect();
        plan.waiting.push(Waiting::of_cluster(&name, kind, WaitBlocker::Deletion(machines)));
        if let Some(cluster) = plan.documents.clusters.get_mut(&name) {
            order_data_removals(cluster);
            let generation = cluster.metadata.generation;
            let conditions = &mut cluster.status.get_or_insert_default().conditions;
            condition::set(conditions, "Deleting", left.verdict(), generation, now);
        }
    }
}

/// Records on each lost machine that the cluster is deleted: the machine may return with components of it, keys included.
fn abandon(documents: &mut Documents, seen: &PassObservation, (name, id): (&ClusterRef, &ClusterId)) {
    let status = documents.clusters.get(name).and_then(|cluster| cluster.status.as_ref());
    let store = status.and_then(|status| status.etcd.as_ref());
    let members: BTreeMap<ComponentName, String> = store
        .into_iter()
        .flat_map(|store| &store.members)
        .map(|(name, member)| (name.clone(), member.id.clone()))
        .collect();
    let placed: BTreeMap<ComponentName, HypervisorName> = documents
        .components_of(id)
        .map(|(pod, component)| (pod.component.clone(), component.spec.hypervisor.clone()))
        .collect();
    let is_silent = |machine: &&HypervisorName| seen.machine(machine).is_none() && is_machine_lost(documents, machine);
    let lost: Vec<HypervisorName> = documents.hypervisors.keys().filter(is_silent).cloned().collect();
    for machine in lost {
        let may_be_here = |member: &ComponentName| placed.get(member).is_none_or(|place| *place == machine);
        let members = members.iter().filter(|(member, _)| may_be_here(member));
        let members = members.map(|(member, id)| (member.clone(), id.clone())).collect();
        let abandoned = AbandonedCluster { cluster: name.to_string(), members };
        if let Some(document) = documents.hypervisors.get_mut(&machine) {
            document.status.get_or_insert_default().abandoned.insert(id.clone(), abandoned);
        }
    }
}

/// The orders to remove the data of members of the selected clusters, which were deleted while the machine was lost.
pub(crate) fn abandoned_removals(
    machine: &Hypervisor,
    which: impl Fn(&ClusterId) -> bool,
) -> impl Iterator<Item = (PodName, DataRemoval)> {
    let abandoned = machine.status.iter().flat_map(|status| &status.abandoned);
    abandoned.filter(move |(id, _)| which(id)).flat_map(|(cluster, abandoned)| {
        abandoned.members.iter().map(|(component, member)| {
            let pod = PodName { cluster: cluster.clone(), component: component.clone() };
            (pod, DataRemoval { member: member.clone(), reason: RemovalReason::ClusterDeleted.as_str().to_string() })
        })
    })
}

pub(crate) fn is_abandoned(machine: &Hypervisor, id: &ClusterId) -> bool {
    machine.status.as_ref().is_some_and(|status| status.abandoned.contains_key(id))
}

/// Removes records of deleted clusters: those of which a machine that has returned holds nothing, and those that are in the documents again. Such
/// a record must not outlive the return of its cluster, or the loss of that document would remove its data.
pub(crate) fn forget_abandoned(
    status: &mut HypervisorStatus,
    state: Option<&MachineState>,
    known: &BTreeSet<ClusterId>,
) {
    status.abandoned.retain(|id, _| !known.contains(id) && state.is_none_or(|state| holds(state, id)));
}

/// Orders the removal of the data of all members of a deleted cluster. Machines remove the data of no other member.
fn order_data_removals(cluster: &mut Cluster) {
    let store = cluster.status.as_mut().and_then(|status| status.etcd.as_mut());
    for member in store.into_iter().flat_map(|store| store.members.values_mut()) {
        member.removal = Some(RemovalReason::ClusterDeleted);
    }
}

/// The members whose data the machine is ordered to remove. Of a deleted cluster: those placed there, and those without a Component. Of another
/// one: those that the store has removed.
pub(crate) fn data_removals<'a>(
    tenant: &'a Tenant,
    machine: &'a HypervisorName,
) -> impl Iterator<Item = (PodName, DataRemoval)> + 'a {
    let store = tenant.document.status.as_ref().and_then(|status| status.etcd.as_ref());
    let is_deleted = tenant.document.deleted();
    let members = store.into_iter().flat_map(|store| &store.members);
    members.filter(move |(_, member)| is_deleted || member.is_removed()).filter_map(move |(name, member)| {
        let placed = tenant.components.iter().find(|(pod, _)| pod.component == *name);
        let place = member.removed_from.as_ref().or_else(|| placed.map(|(_, component)| &component.spec.hypervisor));
        let is_here = place.is_none_or(|place| place == machine);
        let pod = PodName { cluster: tenant.id.clone(), component: name.clone() };
        let reason = member.removal.filter(|_| is_here)?.as_str().to_string();
        Some((pod, DataRemoval { member: member.id.clone(), reason }))
    })
}

/// Whether a cluster is paused or frozen.
fn is_left(world: &ValidatedDocuments, name: &ClusterRef) -> bool {
    world.clusters.get(name).is_some_and(|(_, cluster)| cluster.paused)
}

/// Machines that hold something of a cluster, or may do so.
struct RemainingMachines {
    holding: BTreeSet<HypervisorName>,
    /// Machines with components of the cluster that do not respond and are not lost.
    silent: BTreeSet<HypervisorName>,
}

impl RemainingMachines {
    fn of(documents: &Documents, seen: &PassObservation, id: &ClusterId) -> Self {
        let placed = documents.components_of(id).map(|(_, component)| &component.spec.hypervisor);
        let unseen = placed.filter(|name| seen.machine(name).is_none() && !is_machine_lost(documents, name));
        // A machine that is receiving a config responds. What it holds is unknown until it has the config.
        let (busy, silent): (BTreeSet<_>, BTreeSet<_>) = unseen.cloned().partition(|name| answers(documents, name));
        // A component may still be on a machine after its document was deleted.
        let holding = seen.machines.iter().filter(|(_, state)| state.known().is_some_and(|state| holds(state, id)));
        Self { holding: holding.map(|(name, _)| name.clone()).chain(busy).collect(), silent }
    }

    fn is_nothing(&self) -> bool {
        self.holding.is_empty() && self.silent.is_empty()
    }

    fn verdict(&self) -> ConditionValue {
        let (reason, message) = if self.silent.is_empty() {
            (
                ConditionReason::LeavingMachines,
                format!("its components are being removed from {}", joined(&self.holding, ", ")),
            )
        } else {
            let message = format!(
                "no response from {}, which may hold components of it: bring the machine back, or, if it is lost for good, \
                 annotate its Hypervisor with {LOST_ANNOTATION}=true",
                joined(&self.silent, ", ")
            );
            (ConditionReason::MachinesNotAnswering, message)
        };
        ConditionValue { status: ConditionStatus::True, reason: reason.as_str().to_string(), message }
    }
}

/// Whether a machine is lost and does not respond: nothing on it runs any more.
pub(crate) fn is_machine_lost(documents: &Documents, name: &HypervisorName) -> bool {
    documents.hypervisors.get(name).is_some_and(|machine| machine.is_lost()) && !answers(documents, name)
}

/// Whether a machine responded in the last recorded observation.
pub(crate) fn answers(documents: &Documents, name: &HypervisorName) -> bool {
    let status = documents.hypervisors.get(name).and_then(|machine| machine.status.as_ref());
    status.is_some_and(|status| condition::is_true(&status.conditions, "Ready"))
}

/// Whether a member of a deleted cluster's store continues for now: it runs, and an API server may still send requests to it.
///
/// An API server that loses its store first cannot drain: it waits for responses until it is killed.
pub(crate) fn keeps_running(
    (documents, tenant): (&Documents, &Tenant),
    seen: &PassObservation,
    pod: &PodName,
    component: &ComponentSpec,
) -> bool {
    let runs = |pod: &PodName, state: &MachineState| state.sandboxes.iter().any(|sandbox| sandbox.pod == *pod);
    let here = seen.machine(&component.hypervisor).is_some_and(|state| runs(pod, state));
    let asks = |server: &PodName, machine: &HypervisorName| {
        seen.machine(machine).map_or_else(|| !is_machine_lost(documents, machine), |state| runs(server, state))
    };
    let asked = tenant.of_role(Role::KubeApiserver).any(|(server, component)| asks(server, &component.spec.hypervisor));
    component.role == Role::Etcd && here && asked
}

fn holds(state: &MachineState, id: &ClusterId) -> bool {
    let directory = format!("{id}");
    state.sandboxes.iter().any(|sandbox| sandbox.pod.cluster == *id)
        || state.files.keys().any(|path| path.split('/').next() == Some(directory.as_str()))
}
