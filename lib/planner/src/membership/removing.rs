//! A member that is being removed: the leader moves off, etcd removes it, and its machine stops it and removes its data.

use keelway_api::{
    cluster::RemovalReason,
    component::ComponentStage,
    membership::{MembershipChange, MembershipReason},
    name::ComponentName,
    store_observation::MemberId,
};

use super::{
    ChangeProgress, StoreContext, change_store, order, pod, retire, store,
    store_view::{StoreView, is_majority},
    wait,
};
use crate::{StoreOrder, WaitBlocker, WaitKind, plan::Plan, retirement};

/// Takes the next step of the removal.
pub(super) fn remove(
    plan: &mut Plan,
    at: StoreContext<'_>,
    view: &StoreView<'_>,
    change: &MembershipChange,
) -> ChangeProgress {
    let component = &change.component;
    let recorded = store(&plan.documents, at).and_then(|store| store.members.get(component));
    let id = recorded.and_then(|member| member.id.parse::<MemberId>().ok());
    let Some((id, listed)) = id.and_then(|id| Some((id, view.listed(id)?))) else {
        end_removal(plan, at, component);
        return ChangeProgress::Ended;
    };
    // Gate 6.
    let blocker = if listed.is_learner { None } else { lacks_majority(view, component) };
    let serves = view.voters.get(component).is_some_and(|voter| voter.is_healthy);
    let has_returned = serves && change.reason != MembershipReason::DataCorrupt;
    if blocker.is_some() && (!change.reason.is_loss() || has_returned) {
        // Another member was lost meanwhile. It has to leave first, and this one is needed until then.
        change_store(plan, at, |store| store.change = None);
        return ChangeProgress::Ended;
    }
    // API servers stop using a member that is leaving: before it is removed, or, if it is lost, after another one was added.
    let name = pod(at.id, component);
    if plan.documents.components.get(&name).is_some_and(|document| !document.is_leaving()) {
        retirement::set_stage(plan, &name, ComponentStage::Leaving);
    }
    if listed.is_learner {
        order(plan, at, component, StoreOrder::Remove { component: component.clone(), id, reason: change.reason });
        return ChangeProgress::Continues;
    }
    if let Some(blocker) = blocker {
        wait(plan, at, component, WaitKind::Blocked, blocker);
        return ChangeProgress::Continues;
    }
    match view.leader() {
        None => wait(plan, at, component, WaitKind::InProgress, WaitBlocker::StoreLeader),
        // Gate 8.
        Some(leader) if leader == id => {
            if let Some(to) = view.next_leader(component) {
                order(plan, at, component, StoreOrder::MoveLeader { from: id, to });
            }
        }
        Some(_) => {
            let reason = change.reason;
            order(plan, at, component, StoreOrder::Remove { component: component.clone(), id, reason });
        }
    }
    ChangeProgress::Continues
}

/// Why a voter cannot be removed. None: the healthy voters without it are a majority of the remaining ones.
pub(super) fn lacks_majority(view: &StoreView<'_>, component: &ComponentName) -> Option<WaitBlocker> {
    let (healthy, voters) = (view.count_healthy_besides(component), view.count_voters().saturating_sub(1));
    let has_majority = voters > 0 && is_majority(healthy, voters);
    (!has_majority).then_some(WaitBlocker::MajorityAfterRemoval { healthy, voters })
}

/// Gates 9 and 10: the member list lacks the member, so its machine stops it and removes its data.
pub(super) fn end_removal(plan: &mut Plan, at: StoreContext<'_>, component: &ComponentName) {
    let name = pod(at.id, component);
    let machine = plan.documents.components.get(&name).map(|component| component.spec.hypervisor.clone());
    if let Some(machine) = machine {
        wait(plan, at, component, WaitKind::InProgress, WaitBlocker::Stop(machine));
    }
    change_store(plan, at, |store| store.change = None);
    retire(plan, at, component, RemovalReason::MemberRemoved);
}
