//! A member that is being added: learner, data, start, promotion.

use alloc::{collections::BTreeMap, string::ToString, vec::Vec};

use keelway_api::{
    Documents,
    cluster::EtcdMember,
    membership::{MemberStart, MembershipChange, MembershipChangeKind, MembershipReason},
    name::ComponentName,
    role::Role,
    store_observation::{ListedMember, MemberId},
};

use super::{
    ChangeProgress, StoreContext, abandon_component, change_store, order, pod, reason_to_leave, record_change,
    removing, store,
    store_view::{StoreView, is_majority},
    wait,
};
use crate::{StoreOrder, WaitBlocker, WaitKind, plan::Plan};

/// The share of the leader's log that a learner must have, as etcd requires it (`readyPercentThreshold`), in percent.
const READY_PERCENT: u64 = 90;

/// Takes the next step of the addition.
pub(super) fn add(
    plan: &mut Plan,
    at: StoreContext<'_>,
    view: &StoreView<'_>,
    change: &MembershipChange,
) -> ChangeProgress {
    let component = &change.component;
    let Some((id, listed)) = view.listed_at(&change.peer_urls) else {
        return add_learner(plan, at, view, change);
    };
    if !store(&plan.documents, at).is_some_and(|store| store.members.contains_key(component)) {
        record_member(plan, at, view, (component, id, listed));
    }
    if !listed.is_learner {
        change_store(plan, at, |store| store.change = None);
        return ChangeProgress::Ended;
    }
    if let Some(reason) = reason_to_give_up(&plan.documents, at, view, component) {
        return give_up(plan, at, view, change, reason);
    }
    promote(plan, at, view, (component, id));
    ChangeProgress::Continues
}

/// Orders the learner, unless its component is not needed any more.
fn add_learner(
    plan: &mut Plan,
    at: StoreContext<'_>,
    view: &StoreView<'_>,
    change: &MembershipChange,
) -> ChangeProgress {
    let component = &change.component;
    if reason_to_give_up(&plan.documents, at, view, component).is_some() {
        abandon_component(plan, at, component);
        change_store(plan, at, |store| store.change = None);
        return ChangeProgress::Ended;
    }
    if view.voters.values().any(|voter| voter.leaves.is_some_and(MembershipReason::is_loss)) {
        // The lost member has to leave first. The component is used afterwards.
        change_store(plan, at, |store| store.change = None);
        return ChangeProgress::Ended;
    }
    // Gate 3.
    if let Some(ill) = view.first_ill() {
        wait(plan, at, component, WaitKind::InProgress, WaitBlocker::HealthyVoter(ill.clone()));
    } else {
        let (component, peer_urls) = (component.clone(), change.peer_urls.clone());
        order(plan, at, &change.component, StoreOrder::AddLearner { component, peer_urls });
    }
    ChangeProgress::Continues
}

/// Records the id that etcd assigned, and the arguments of the first start: the member list with the learner.
fn record_member(
    plan: &mut Plan,
    at: StoreContext<'_>,
    view: &StoreView<'_>,
    (component, id, listed): (&ComponentName, MemberId, &ListedMember),
) {
    let urls = |listed: &ListedMember| listed.peer_urls.iter().cloned().collect::<Vec<_>>();
    let others = view.voters.iter().filter_map(|(name, voter)| Some((name.clone(), urls(view.listed(voter.id)?))));
    let mut initial_cluster: BTreeMap<_, _> = others.collect();
    initial_cluster.insert(component.clone(), urls(listed));
    let member =
        EtcdMember { started_with: Some(MemberStart { initial_cluster }), ..EtcdMember::pending(id.to_string()) };
    change_store(plan, at, |store| {
        store.members.insert(component.clone(), member);
    });
}

/// Gate 5.
fn promote(plan: &mut Plan, at: StoreContext<'_>, view: &StoreView<'_>, (component, id): (&ComponentName, MemberId)) {
    let reported = view.report(component).filter(|report| report.id == id);
    let (Some(report), Some(newest)) = (reported, view.newest_index()) else {
        wait(plan, at, component, WaitKind::InProgress, WaitBlocker::LearnerStart);
        return;
    };
    let percent = report.raft_index.saturating_mul(100).checked_div(newest).unwrap_or(100).min(100);
    let (healthy, voters) = (view.count_healthy_besides(component) + 1, view.count_voters() + 1);
    if percent < READY_PERCENT {
        wait(plan, at, component, WaitKind::InProgress, WaitBlocker::LearnerBehind { percent });
    } else if is_majority(healthy, voters) {
        order(plan, at, component, StoreOrder::Promote { component: component.clone(), id });
    } else {
        let blocker = WaitBlocker::MajorityAfterPromotion { healthy, voters };
        wait(plan, at, component, WaitKind::Blocked, blocker);
    }
}

/// Why a member that has no vote yet is not needed, or cannot be promoted.
fn reason_to_give_up(
    documents: &Documents,
    at: StoreContext<'_>,
    view: &StoreView<'_>,
    component: &ComponentName,
) -> Option<MembershipReason> {
    if !documents.components.contains_key(&pod(at.id, component)) {
        return Some(MembershipReason::DataLost);
    }
    if let Some(reason) = reason_to_leave(documents, at, component) {
        return Some(reason);
    }
    // A learner may be a copy of the corrupt member.
    if view.has_corruption() {
        return Some(MembershipReason::DataCorrupt);
    }
    let wanted = documents.clusters.get(&at.cluster.reference)?.spec.replicas(Role::Etcd) as usize;
    let staying = view.voters.values().filter(|voter| voter.leaves.is_none()).count();
    (staying >= wanted).then_some(MembershipReason::Replicas)
}

/// Turns the addition of a learner into its removal. A learner has no vote, so its removal cannot end a majority.
fn give_up(
    plan: &mut Plan,
    at: StoreContext<'_>,
    view: &StoreView<'_>,
    change: &MembershipChange,
    reason: MembershipReason,
) -> ChangeProgress {
    let change = MembershipChange { kind: MembershipChangeKind::Remove, reason, ..change.clone() };
    record_change(plan, at, change.clone());
    removing::remove(plan, at, view, &change)
}
