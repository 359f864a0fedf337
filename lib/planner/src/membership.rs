//! Changes of a store's members: one path for replacement, drain and scaling.
//!
//! A member is replaced in this order: a learner is added on another machine and starts, it is promoted once it has caught up, the leader moves
//! off, the old member is removed, its machine stops it, and its machine removes its data. Each step is recorded in `status.etcd` before the
//! request, and is derived from that record and from the member list, so any driver continues at any step.
//!
//! A member that cannot serve any more is removed first, because etcd refuses to add members while voters are down. So is a member that etcd reports
//! as corrupt. A member that another client removed is replaced like one that Keelway removed.
//!
//! The gates, all of which hold in every pass:
//!
//! 1. A store has one change at a time, and a plan at most one order to it. The next change begins when the member list shows the end of the last.
//! 2. Nothing is decided without a member list from a majority, nor while the list has a member that the documents do not record, nor while it is
//!    not clear which member is corrupt.
//! 3. A learner is added only while every voter is healthy.
//! 4. A learner starts on data that its machine marked for it, and never again without that data.
//! 5. A learner is promoted only when it has caught up, and if the healthy voters are a majority of the voters with it.
//! 6. A voter is removed only if the healthy voters without it are a majority of the remaining ones. The last voter is never removed.
//! 7. A voter that serves is removed only after every API server that was observed stopped using it.
//! 8. The leader moves before its member is removed.
//! 9. A member stops only after the member list lacks it.
//! 10. Its data is removed by an order that names it, recorded with the stop. The record is kept until its machine is observed without it.
//! 11. No member is added while a member is corrupt, and a learner that was added meanwhile is removed: it may have copied the corrupt data. The
//!     alarm of a member is disarmed once the list lacks the member.

mod adding;
mod next;
mod removed;
mod removing;
mod servers;
mod store_view;

use alloc::{string::String, vec, vec::Vec};

use keelway_api::{
    Cluster, Component, Documents, Time,
    cluster::{EtcdMember, EtcdStatus, MemberPhase},
    component::{ComponentSpec, ComponentStage},
    jiff::{SignedDuration, Timestamp},
    membership::{MembershipChange, MembershipChangeKind, MembershipReason},
    name::{ClusterId, ComponentName, PodName},
    role::{PEER, Role},
    validated::ValidatedCluster,
};

pub(crate) use next::next_index;
pub(crate) use removed::retire;
pub use servers::OutdatedServers;
pub(crate) use servers::{changed_before_servers, is_awaited};
pub(crate) use store_view::{StoreView, is_majority};

use crate::{
    ComponentRef, Decision, PassObservation, StoreOrder, WaitBlocker, WaitKind, WaitSubject, Waiting,
    component_set::of_role,
    deletion::{answers, is_machine_lost},
    fleet::FleetCapacity,
    plan::Plan,
    rebuild, retirement,
    store_creation::has_lost_data,
    store_space,
    text::url,
    world::ValidatedDocuments,
};

/// What a decision about one store depends on besides the plan.
#[derive(Clone, Copy)]
pub(crate) struct StoreContext<'a> {
    pub(crate) world: &'a ValidatedDocuments,
    pub(crate) seen: &'a PassObservation,
    pub(crate) now: Timestamp,
    pub(crate) id: &'a ClusterId,
    pub(crate) cluster: &'a ValidatedCluster,
}

/// Whether a step ended the change, so that the next one may begin in the same plan.
#[derive(PartialEq, Eq)]
enum ChangeProgress {
    Continues,
    Ended,
}

/// Decides the next step of the members of a created store.
pub(crate) fn plan_members(plan: &mut Plan, fleet: &mut FleetCapacity, at: StoreContext<'_>) {
    removed::stop_removed(plan, fleet, at);
    note_unavailable(plan, at);
    if rebuild::plan_rebuild(plan, fleet, at) {
        return;
    }
    let document = plan.documents.clusters.get(&at.cluster.reference);
    // A list that was observed for another reason may show what another client changed.
    let has_list = at.seen.stores.get(at.id).is_some_and(|seen| seen.list.is_some());
    if !has_list && !document.is_some_and(|cluster| changes_members(&plan.documents, cluster)) {
        return;
    }
    if has_list {
        servers::end_wait(plan, at);
    }
    let Some(view) = self::view(plan, at) else { return };
    if disarm_removed(plan, at, &view) || store_space::plan_space(plan, at, &view) {
        return;
    }
    // Gate 1: the next change begins after the recorded one ended.
    if let Some(change) = store(&plan.documents, at).and_then(|store| store.change.clone())
        && continue_change(plan, at, &view, &change) == ChangeProgress::Continues
    {
        return;
    }
    // The end of a change changed the documents.
    let Some(view) = self::view(plan, at) else { return };
    for component in view.gone(&plan.documents, at) {
        removing::end_removal(plan, at, &component);
    }
    keep_members(plan, at, &view);
    next::begin_change(plan, fleet, at, &view);
}

/// Gate 11: disarms an alarm of a member that the list lacks. Returns whether there is one.
fn disarm_removed(plan: &mut Plan, at: StoreContext<'_>, view: &StoreView<'_>) -> bool {
    let Some((id, alarm)) = view.alarm_of_removed() else { return false };
    order_of_store(plan, at, StoreOrder::Disarm { id, alarm });
    true
}

/// Ends what keeps API servers from using a store that was rebuilt: etcd refuses requests while an alarm is raised, even that of a former member.
pub(crate) fn clear_alarms(plan: &mut Plan, at: StoreContext<'_>) {
    let observed = at.seen.stores.get(at.id).and_then(|seen| Some((seen, seen.list.as_ref()?)));
    let Some(observed) = observed else { return };
    let view = StoreView::of(&plan.documents, at, observed);
    if let Some(unclear) = view.unclear_corruption() {
        let role = WaitSubject::Role(at.cluster.reference.clone(), Role::Etcd);
        plan.block(role, WaitBlocker::UnclearCorruption(unclear));
    } else if !disarm_removed(plan, at, &view) && !view.alarms.is_empty() {
        store_space::plan_space(plan, at, &view);
    }
}

/// Keeps voters that are leaving although no change removes them, as after the loss of the newest Cluster.
fn keep_members(plan: &mut Plan, at: StoreContext<'_>, view: &StoreView<'_>) {
    for name in view.voters.keys() {
        let name = pod(at.id, name);
        if plan.documents.components.get(&name).is_some_and(|component| component.is_leaving()) {
            retirement::set_stage(plan, &name, ComponentStage::Joining);
            let component = ComponentRef::of(&at.cluster.reference, &name);
            plan.decisions.push(Decision::KeepComponent { component });
        }
    }
}

fn continue_change(
    plan: &mut Plan,
    at: StoreContext<'_>,
    view: &StoreView<'_>,
    change: &MembershipChange,
) -> ChangeProgress {
    match change.kind {
        MembershipChangeKind::Add => adding::add(plan, at, view, change),
        MembershipChangeKind::Remove => removing::remove(plan, at, view, change),
    }
}

/// Gate 2. None: the plan waits for the member list, or for a person.
fn view<'a>(plan: &mut Plan, at: StoreContext<'a>) -> Option<StoreView<'a>> {
    let observed = at.seen.stores.get(at.id).and_then(|seen| Some((seen, seen.list.as_ref()?)));
    let Some((seen, list)) = observed else {
        wait_for_store(plan, at);
        return None;
    };
    let view = StoreView::of(&plan.documents, at, (seen, list));
    if let Some((id, name)) = view.unknown.first() {
        let blocker = WaitBlocker::UnknownMember { id: *id, name: name.clone() };
        plan.block(WaitSubject::Role(at.cluster.reference.clone(), Role::Etcd), blocker);
        return None;
    }
    if let Some(unclear) = view.unclear_corruption() {
        plan.block(
            WaitSubject::Role(at.cluster.reference.clone(), Role::Etcd),
            WaitBlocker::UnclearCorruption(unclear),
        );
        return None;
    }
    Some(view)
}

/// Waits for the member list. If all data is gone, or members were asked and no majority works, a person has to act.
fn wait_for_store(plan: &mut Plan, at: StoreContext<'_>) {
    let subject = WaitSubject::Role(at.cluster.reference.clone(), Role::Etcd);
    if is_data_gone(&plan.documents, at) {
        return plan.block(subject, WaitBlocker::StoreDataLost { cluster: at.cluster.reference.name.clone() });
    }
    match at.seen.stores.get(at.id) {
        None => plan.wait_in_progress(subject, WaitBlocker::MemberList),
        Some(store) => {
            let responding = store.members.values().filter(|report| report.known().is_some()).count();
            plan.block(subject, WaitBlocker::StoreMajority { responding, asked: store.members.len() });
        }
    }
}

/// Whether no member has its data any more: none responds, and each that may have started is on a machine that is lost for good.
fn is_data_gone(documents: &Documents, at: StoreContext<'_>) -> bool {
    let Some(store) = store(documents, at) else { return false };
    let mut reports = at.seen.stores.get(at.id).into_iter().flat_map(|seen| seen.members.values());
    if reports.any(|report| report.known().is_some()) {
        return false;
    }
    let mut started = store.staying_members().filter(|(_, member)| member.phase != MemberPhase::Pending).peekable();
    let is_gone = |(name, _): (&ComponentName, &EtcdMember)| {
        let component = documents.components.get(&pod(at.id, name));
        component.is_some_and(|component| {
            let machine = &component.spec.hypervisor;
            at.seen.machine(machine).is_none() && is_machine_lost(documents, machine)
        })
    };
    started.peek().is_some() && started.all(is_gone)
}

/// Returns whether the members of a cluster's store are to change, or are changing, so that a pass has to ask the store for its member list. It
/// depends on documents alone, so that a settled store is not asked.
#[must_use]
pub fn changes_members(documents: &Documents, cluster: &Cluster) -> bool {
    let Some(id) = cluster.id() else { return false };
    let Some(store) = cluster.status.as_ref().and_then(|status| status.etcd.as_ref()) else { return false };
    if !cluster.is_changeable() {
        return false;
    }
    let members: Vec<(&PodName, &Component)> = of_role(documents, id, Role::Etcd).collect();
    let is_leaving_machine = |component: &Component| {
        let machine = documents.hypervisors.get(&component.spec.hypervisor);
        machine.is_some_and(|machine| machine.spec.drain) || is_machine_lost(documents, &component.spec.hypervisor)
    };
    store.change.is_some()
        || store.quorum_lost_since.is_some()
        || store.rebuild.is_some()
        || store.staying_members().count() != cluster.spec.replicas(Role::Etcd) as usize
        || store.staying_members().any(|(_, member)| member.unavailable_since.is_some())
        || members.iter().any(|(pod, component)| {
            let is_member = store.members.get(&pod.component).is_some_and(|member| !member.is_removed());
            (is_member && (component.is_leaving() || is_leaving_machine(component))) || is_unused(store, pod, component)
        })
}

/// Whether a component is no member and is not leaving. An interrupted save can leave one.
fn is_unused(store: &EtcdStatus, pod: &PodName, component: &Component) -> bool {
    let name = &pod.component;
    !component.is_leaving() && !store.members.contains_key(name) && !store.initial_cluster.contains_key(name)
}

/// Records since when a member that served is unavailable: its machine does not respond, or its data is gone.
fn note_unavailable(plan: &mut Plan, at: StoreContext<'_>) {
    let Some(store) = store(&plan.documents, at) else { return };
    let since = |name: &ComponentName, member: &EtcdMember| {
        let pod = pod(at.id, name);
        let component = plan.documents.components.get(&pod)?;
        let is_away = is_away(&plan.documents, at.seen, &pod, component);
        let is_gone = has_lost_data(&plan.documents, at.seen, &pod, &component.spec);
        (is_away || is_gone).then(|| member.unavailable_since.clone().unwrap_or(Time(at.now)))
    };
    let members = store.staying_members();
    let changed: Vec<_> = members
        .map(|(name, member)| (name.clone(), since(name, member), member))
        .filter(|(_, since, member)| *since != member.unavailable_since)
        .map(|(name, since, _)| (name, since))
        .collect();
    for (name, since) in changed {
        change_store(plan, at, |store| {
            if let Some(member) = store.members.get_mut(&name) {
                member.unavailable_since = since;
            }
        });
    }
}

/// Whether neither the machine nor the member responds. A machine that is receiving a config responds.
fn is_away(documents: &Documents, seen: &PassObservation, pod: &PodName, component: &Component) -> bool {
    let machine = &component.spec.hypervisor;
    seen.machine(machine).is_none() && !answers(documents, machine) && !seen.healthy(pod)
}

/// Why a member has to leave its store. None: it stays.
fn reason_to_leave(documents: &Documents, at: StoreContext<'_>, name: &ComponentName) -> Option<MembershipReason> {
    let pod = pod(at.id, name);
    let component = documents.components.get(&pod)?;
    let machine = &component.spec.hypervisor;
    if at.seen.machine(machine).is_none() && is_machine_lost(documents, machine) {
        return Some(MembershipReason::MachineLost);
    }
    // A disk may be mounted late, so data that is missing is awaited like a machine.
    if replaced_at(documents, at, name).is_some_and(|date| date <= at.now) {
        let has_lost_data = has_lost_data(documents, at.seen, &pod, &component.spec);
        return Some(if has_lost_data { MembershipReason::DataLost } else { MembershipReason::Unreachable });
    }
    let is_drained = at.world.machines.get(machine).is_some_and(|machine| machine.drained);
    is_drained.then_some(MembershipReason::MachineDrained)
}

/// When a member that is unavailable is replaced.
pub(crate) fn replaced_at(documents: &Documents, at: StoreContext<'_>, name: &ComponentName) -> Option<Timestamp> {
    let cluster = documents.clusters.get(&at.cluster.reference)?;
    let since = store(documents, at)?.members.get(name)?.unavailable_since.as_ref()?;
    let after = i64::try_from(cluster.spec.etcd.replaces_after().seconds()).ok()?;
    since.0.checked_add(SignedDuration::from_secs(after)).ok()
}

pub(crate) fn store<'a>(documents: &'a Documents, at: StoreContext<'_>) -> Option<&'a EtcdStatus> {
    documents.clusters.get(&at.cluster.reference)?.status.as_ref()?.etcd.as_ref()
}

pub(crate) fn change_store(plan: &mut Plan, at: StoreContext<'_>, change: impl FnOnce(&mut EtcdStatus)) {
    let cluster = plan.documents.clusters.get_mut(&at.cluster.reference);
    if let Some(store) = cluster.and_then(|cluster| cluster.status.as_mut()?.etcd.as_mut()) {
        change(store);
    }
}

/// Records the change that begins, and reports it as a decision.
fn record_change(plan: &mut Plan, at: StoreContext<'_>, change: MembershipChange) {
    let waits = change.kind == MembershipChangeKind::Add || change.reason.is_loss();
    let change = MembershipChange { api_servers_wait_since: waits.then_some(Time(at.now)), ..change };
    let component = ComponentRef { cluster: at.cluster.reference.clone(), component: change.component.clone() };
    plan.decisions.push(Decision::ChangeMembers { component, kind: change.kind, reason: change.reason });
    change_store(plan, at, |store| store.change = Some(change));
}

/// Orders one request that concerns no certain component.
pub(crate) fn order_of_store(plan: &mut Plan, at: StoreContext<'_>, order: StoreOrder) {
    let subject = WaitSubject::Role(at.cluster.reference.clone(), Role::Etcd);
    plan.wait_in_progress(subject, WaitBlocker::StoreOrder(order.clone()));
    plan.stores.insert(at.id.clone(), order);
}

/// Orders one request to the store, whose effect a later pass observes.
pub(crate) fn order(plan: &mut Plan, at: StoreContext<'_>, component: &ComponentName, order: StoreOrder) {
    wait(plan, at, component, WaitKind::InProgress, WaitBlocker::StoreOrder(order.clone()));
    plan.stores.insert(at.id.clone(), order);
}

pub(crate) fn wait(
    plan: &mut Plan,
    at: StoreContext<'_>,
    component: &ComponentName,
    kind: WaitKind,
    blocker: WaitBlocker,
) {
    let subject = ComponentRef { cluster: at.cluster.reference.clone(), component: component.clone() };
    plan.waiting.push(Waiting::of_cluster(subject, kind, blocker));
}

/// Stops a component that never became a member.
fn abandon_component(plan: &mut Plan, at: StoreContext<'_>, component: &ComponentName) {
    retirement::set_stage(plan, &pod(at.id, component), ComponentStage::Stopping);
    wait(plan, at, component, WaitKind::InProgress, WaitBlocker::UnusedMember);
}

/// The URLs at which the peers of a component reach it.
pub(crate) fn peer_urls(world: &ValidatedDocuments, spec: &ComponentSpec) -> Option<Vec<String>> {
    let address = world.machines.get(&spec.hypervisor)?.private.first()?;
    Some(vec![url(address, spec.port(PEER))])
}

pub(crate) fn pod(id: &ClusterId, component: &ComponentName) -> PodName {
    PodName { cluster: id.clone(), component: component.clone() }
}
