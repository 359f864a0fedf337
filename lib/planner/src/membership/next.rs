//! Which change of the members begins, and its first step.

use alloc::{vec, vec::Vec};

use keelway_api::{
    membership::{MembershipChange, MembershipChangeKind, MembershipReason},
    name::ComponentName,
    role::Role,
};

use super::{
    StoreContext, abandon_component, adding, change_store, is_unused, peer_urls, pod, record_change, removing,
    replaced_at, store,
    store_view::{StoreView, VoterView},
    wait,
};
use crate::{
    WaitBlocker, WaitKind, WaitSubject,
    component_set::{enter, of_role},
    fleet::FleetCapacity,
    placement,
    plan::Plan,
};

/// A change that is to begin.
enum NextChange {
    Add(MembershipReason),
    Remove(ComponentName, MembershipReason),
}

/// Begins the next change, if one is due.
pub(super) fn begin_change(plan: &mut Plan, fleet: &mut FleetCapacity, at: StoreContext<'_>, view: &StoreView<'_>) {
    let Some(document) = plan.documents.clusters.get(&at.cluster.reference) else { return };
    let wanted = document.spec.replicas(Role::Etcd) as usize;
    wait_for_unavailable(plan, at, view);
    if let Some(component) = &view.forgotten {
        record_addition(plan, at, view, component, MembershipReason::Replicas);
        return;
    }
    match next_change(view, wanted) {
        Some(NextChange::Remove(component, reason)) => begin_removal(plan, at, view, &component, reason),
        Some(NextChange::Add(reason)) => begin_addition(plan, fleet, at, view, reason),
        None => stop_unused(plan, at),
    }
}

/// Stops the components that an interrupted save left, and that are no members.
fn stop_unused(plan: &mut Plan, at: StoreContext<'_>) {
    let Some(store) = store(&plan.documents, at) else { return };
    let unused = of_role(&plan.documents, at.id, Role::Etcd).filter(|(pod, document)| is_unused(store, pod, document));
    let unused: Vec<ComponentName> = unused.map(|(pod, _)| pod.component.clone()).collect();
    for component in unused {
        abandon_component(plan, at, &component);
    }
}

/// Members that cannot serve any more leave first. A store never has more than one voter above the wanted number, and, while members leave, never
/// fewer than the wanted number that serve.
fn next_change(view: &StoreView<'_>, wanted: usize) -> Option<NextChange> {
    let lost = view.voters.iter().filter_map(|(name, voter)| Some((voter.leaves?, voter.index, name)));
    let lost = lost.filter(|(reason, ..)| reason.is_loss()).min();
    if let Some((reason, _, name)) = lost {
        return Some(NextChange::Remove(name.clone(), reason));
    }
    if view.voters.len() > wanted {
        let rank = |(name, voter): &(&ComponentName, &VoterView)| {
            (voter.leaves.is_some(), shares_machine(view, name, voter), voter.index)
        };
        let (name, voter) = view.voters.iter().max_by_key(rank)?;
        return Some(NextChange::Remove(name.clone(), voter.leaves.unwrap_or(MembershipReason::Replicas)));
    }
    let leaves = view.voters.values().find_map(|voter| voter.leaves);
    let staying = view.voters.values().filter(|voter| voter.leaves.is_none()).count();
    (staying < wanted).then(|| NextChange::Add(leaves.unwrap_or(MembershipReason::Replicas)))
}

fn shares_machine(view: &StoreView<'_>, name: &ComponentName, voter: &VoterView) -> bool {
    view.voters.iter().any(|(other, at)| other != name && at.machine.is_some() && at.machine == voter.machine)
}

/// Waits for members that are unavailable and not replaced yet. They are replaced at a known time.
fn wait_for_unavailable(plan: &mut Plan, at: StoreContext<'_>, view: &StoreView<'_>) {
    for (name, _) in view.voters.iter().filter(|(_, voter)| voter.leaves.is_none()) {
        if let Some(date) = replaced_at(&plan.documents, at, name).filter(|date| *date > at.now) {
            plan.due = Some(plan.due.map_or(date, |due| due.min(date)));
            wait(plan, at, name, WaitKind::Blocked, WaitBlocker::UnavailableMember(date));
        }
    }
}

fn begin_removal(
    plan: &mut Plan,
    at: StoreContext<'_>,
    view: &StoreView<'_>,
    component: &ComponentName,
    reason: MembershipReason,
) {
    // Gate 6, before anything is recorded: a removal that cannot go on would keep other changes from being decided.
    if let Some(blocker) = removing::lacks_majority(view, component) {
        wait(plan, at, component, WaitKind::Blocked, blocker);
        return;
    }
    let change = MembershipChange {
        kind: MembershipChangeKind::Remove,
        component: component.clone(),
        reason,
        peer_urls: vec![],
        api_servers_wait_since: None,
    };
    record_change(plan, at, change.clone());
    removing::remove(plan, at, view, &change);
}

fn begin_addition(
    plan: &mut Plan,
    fleet: &mut FleetCapacity,
    at: StoreContext<'_>,
    view: &StoreView<'_>,
    reason: MembershipReason,
) {
    let subject = WaitSubject::Role(at.cluster.reference.clone(), Role::Etcd);
    // Gate 3.
    if let Some(ill) = view.first_ill().cloned() {
        plan.wait_in_progress(subject, WaitBlocker::HealthyVoter(ill));
        return;
    }
    if let Some(component) = new_member(plan, fleet, at) {
        record_addition(plan, at, view, &component, reason);
    }
}

fn record_addition(
    plan: &mut Plan,
    at: StoreContext<'_>,
    view: &StoreView<'_>,
    component: &ComponentName,
    reason: MembershipReason,
) {
    let placed = plan.documents.components.get(&pod(at.id, component)).map(|component| &component.spec);
    let placed = placed.and_then(|spec| Some((peer_urls(at.world, spec)?, spec.index)));
    let Some((peer_urls, index)) = placed else { return };
    change_store(plan, at, |store| {
        store.next_index = Some(store.next_index.unwrap_or_default().max(index + 1));
    });
    let kind = MembershipChangeKind::Add;
    let change =
        MembershipChange { kind, component: component.clone(), reason, peer_urls, api_servers_wait_since: None };
    record_change(plan, at, change.clone());
    adding::add(plan, at, view, &change);
}

/// The component of the new member. If an interrupted save left one that is no member, it is used.
fn new_member(plan: &mut Plan, fleet: &mut FleetCapacity, at: StoreContext<'_>) -> Option<ComponentName> {
    let store = store(&plan.documents, at)?;
    let unused = of_role(&plan.documents, at.id, Role::Etcd).find(|(pod, document)| is_unused(store, pod, document));
    if let Some((pod, _)) = unused {
        return Some(pod.component.clone());
    }
    let index = next_index(plan, at)?;
    let component = Role::Etcd.component(index).ok()?;
    let name = pod(at.id, &component);
    match placement::place(&plan.documents, at.world, fleet, at.cluster, (&name, Role::Etcd, index)) {
        Ok(document) => {
            enter(plan, fleet, name, document);
            Some(component)
        }
        Err(why) => {
            wait(plan, at, &component, WaitKind::Blocked, WaitBlocker::Placement(why));
            None
        }
    }
}

/// The lowest number that no member of the store ever had. None: no store is recorded.
pub(crate) fn next_index(plan: &Plan, at: StoreContext<'_>) -> Option<u32> {
    let store = store(&plan.documents, at)?;
    let names = store.initial_cluster.keys().chain(store.members.keys());
    let used = names.filter_map(|name| name.as_str().rsplit_once('-')?.1.parse::<u32>().ok());
    let placed = of_role(&plan.documents, at.id, Role::Etcd).map(|(_, component)| component.spec.index);
    let free = used.chain(placed).max().map_or(0, |last| last + 1);
    Some(store.next_index.unwrap_or_default().max(free))
}
