//! A store that is rebuilt from one member: the end of a lost quorum.
//!
//! The member that remains with the newest data becomes the only one, all other members are retired, and [`crate::membership`] adds members as
//! usual. Each step is recorded in `status.etcd.rebuild` before any machine gets the config of that step, and is derived from that record, so any
//! driver continues at any step.
//!
//! The gates, all of which hold in every pass:
//!
//! 1. A quorum is lost only if members were asked, one of them responds, none reports a leader, and those that respond are no majority.
//! 2. Each voter that does not respond is known to be lost: its machine is annotated as lost, its data is gone, or the request names it. With
//!    `recovery: Automatic`, it can also have been unreachable for `replaceAfter`.
//! 3. Voters that are only unreachable are no majority of the voters: a majority of them may serve on the other side of a partition.
//! 4. A request concerns the loss that was recorded before it. It names no member that responds.
//! 5. The survivor is the voter that responds with the highest committed index. Its machine responds, has its data, and has room for a copy.
//! 6. The API servers and all members are stopped before data is changed.
//! 7. The survivor's data is copied before the survivor starts. The number of the copy is higher than that of any earlier copy.
//! 8. The survivor runs with `--force-new-cluster` in the phase `Starting` only. No API server runs in that phase, and no member is added, so an
//!    agent that restarts the container repeats nothing that counts.
//! 9. API servers start after the survivor led alone without that argument.
//! 10. The data of the other members is removed by an order that names each, recorded after an API server served the new store. The order is kept
//!     until the machine was observed without the member.
//! 11. While no API server serves, no member is changed, but alarms are disarmed as usual, because they keep API servers from starting.
//! 12. Until the survivor starts alone, nothing was changed: if lost members return that are a majority with those that remained, the rebuild ends.
//! 13. If the survivor's machine is lost for good, or has lost the data, before the survivor started alone, the rebuild ends. The members that remain,
//!     if any, start again, and the loss of their quorum is another one, which needs another request.

mod quorum;
mod recovery;

use alloc::vec::Vec;

use keelway_api::{
    Cluster, Documents, Time,
    cluster::{EtcdStatus, RemovalReason},
    component::{ComponentSpec, ComponentStage},
    machine::{MachineState, SandboxState, Start, copy_name},
    name::{ComponentName, HypervisorName, PodName},
    role::Role,
    store_observation::MemberId,
    store_rebuild::{RebuildPhase, RebuildSource, RebuiltStore, StoreRebuild},
};

pub use recovery::RecoveryBlocker;

use crate::{
    ComponentRef, Decision, PassObservation, WaitBlocker, WaitKind, WaitSubject, Waiting,
    access::serves,
    component_set::of_role,
    deletion::{answers, is_machine_lost},
    fleet::FleetCapacity,
    membership::{self, StoreContext, change_store, pod, retire, store},
    plan::Plan,
    rebuild::{quorum::QuorumLoss, recovery::Survivor},
    restore,
    retirement::set_stage,
    store_start::DATA,
};

/// Takes the next step of a rebuild, or begins one. Returns whether the members of the store must not change meanwhile.
pub(crate) fn plan_rebuild(plan: &mut Plan, fleet: &mut FleetCapacity, at: StoreContext<'_>) -> bool {
    if let Some(rebuild) = store(&plan.documents, at).and_then(|store| store.rebuild.clone()) {
        if is_needless(&plan.documents, at, &rebuild) || is_survivor_lost(&plan.documents, at, &rebuild) {
            change_store(plan, at, |store| store.rebuild = None);
            return false;
        }
        if !restore::withdraw_unwanted(plan, at, &rebuild) && !restore::wait_for_request(plan, at, &rebuild) {
            continue_rebuild(plan, at, &rebuild);
        }
        return true;
    }
    if restore::begin(plan, fleet, at) {
        return true;
    }
    let loss = QuorumLoss::observe(&plan.documents, at);
    note_loss(plan, at, loss.is_some());
    let Some(loss) = loss else { return false };
    match recovery::survivor(&plan.documents, at, &loss) {
        Ok(survivor) => begin(plan, at, &loss, &survivor),
        Err(blocker) => wait_for_recovery(plan, at, loss, blocker),
    }
    true
}

/// Gate 12. The members and API servers that stopped start again. A learner does not vote.
fn is_needless(documents: &Documents, at: StoreContext<'_>, rebuild: &StoreRebuild) -> bool {
    let RebuildSource::Survivor { lost } = &rebuild.source else { return false };
    let responds = |name: &&ComponentName| at.seen.stores.get(at.id).is_some_and(|seen| seen.report(name).is_some());
    let returned = lost.iter().filter(responds).count();
    let voters = store(documents, at).into_iter().flat_map(quorum::voters).count();
    rebuild.phase < RebuildPhase::Starting && (voters + returned).saturating_sub(lost.len()) * 2 > voters
}

/// Gate 13.
fn is_survivor_lost(documents: &Documents, at: StoreContext<'_>, rebuild: &StoreRebuild) -> bool {
    matches!(rebuild.source, RebuildSource::Survivor { .. })
        && rebuild.phase < RebuildPhase::Starting
        && lost_data(documents, at, rebuild).is_some()
}

/// Records since when the quorum is lost. A store that was not observed keeps its record.
fn note_loss(plan: &mut Plan, at: StoreContext<'_>, is_lost: bool) {
    let recorded = store(&plan.documents, at).and_then(|store| store.quorum_lost_since.clone());
    let works = at.seen.stores.get(at.id).is_some_and(|seen| seen.list.is_some());
    let since = match recorded {
        None if is_lost => Some(Time(at.now)),
        Some(_) if works => None,
        _ => return,
    };
    change_store(plan, at, |store| store.quorum_lost_since = since);
}

fn wait_for_recovery(plan: &mut Plan, at: StoreContext<'_>, loss: QuorumLoss<'_>, blocker: RecoveryBlocker) {
    if let RecoveryBlocker::Unreachable(date) = blocker {
        plan.due = Some(plan.due.map_or(date, |due| due.min(date)));
    }
    let (responding, silent) = (loss.responding.into_keys().collect(), loss.silent.into_iter().collect());
    plan.block(role(at), WaitBlocker::LostQuorum { responding, silent, next: blocker });
}

fn begin(plan: &mut Plan, at: StoreContext<'_>, loss: &QuorumLoss<'_>, survivor: &Survivor) {
    let silent: Vec<ComponentName> = loss.silent.iter().cloned().collect();
    let component = ComponentRef { cluster: at.cluster.reference.clone(), component: survivor.member.clone() };
    plan.decisions.push(Decision::RebuildStore { component, lost: silent.clone() });
    let name = pod(at.id, &survivor.member);
    if plan.documents.components.get(&name).is_some_and(|document| document.is_leaving()) {
        set_stage(plan, &name, ComponentStage::Joining);
    }
    let last_copy = last_copy(&plan.documents, at.seen, &name);
    change_store(plan, at, |store| {
        store.quorum_lost_since = None;
        store.rebuild = Some(StoreRebuild {
            number: 1 + store.rebuilt.as_ref().map_or(0, |last| last.number).max(last_copy),
            source: RebuildSource::Survivor { lost: silent },
            member: survivor.member.clone(),
            phase: RebuildPhase::Stopping,
            since: Time(at.now),
            forced_pod: None,
        });
    });
    wait_for_phase(plan, at, &survivor.member, RebuildPhase::Stopping);
}

/// The number of the newest copy beside the data of a member, or zero. One remains of a rebuild that was given up, or that the documents do not record
/// because they are older.
fn last_copy(documents: &Documents, seen: &PassObservation, member: &PodName) -> u32 {
    let machine = documents.components.get(member).map(|component| &component.spec.hypervisor);
    machine.and_then(|machine| seen.machine(machine)?.last_copy_of(member, DATA)).unwrap_or_default()
}

fn continue_rebuild(plan: &mut Plan, at: StoreContext<'_>, rebuild: &StoreRebuild) {
    let next = match rebuild.phase {
        RebuildPhase::Stopping => are_stopped(&plan.documents, at, rebuild).then_some(RebuildPhase::Preparing),
        RebuildPhase::Preparing => is_prepared(plan, at, rebuild).then_some(RebuildPhase::Starting),
        RebuildPhase::Starting => end_start(plan, at, rebuild),
        RebuildPhase::Restarting => is_restarted(&plan.documents, at, rebuild).then_some(RebuildPhase::Serving),
        RebuildPhase::Serving if serves(&plan.documents, at.id, at.seen) => {
            wait_for_phase(plan, at, &rebuild.member, RebuildPhase::Serving);
            return end(plan, at, rebuild);
        }
        RebuildPhase::Serving => {
            membership::clear_alarms(plan, at);
            None
        }
    };
    let phase = next.unwrap_or(rebuild.phase);
    if next.is_some() {
        change_rebuild(plan, at, |rebuild| rebuild.phase = phase);
    }
    wait_for_phase(plan, at, &rebuild.member, phase);
}

/// Gate 6. A machine that does not respond, and on which the survivor is not, is not awaited.
fn are_stopped(documents: &Documents, at: StoreContext<'_>, rebuild: &StoreRebuild) -> bool {
    let is_stopped = |(name, spec): (&PodName, &ComponentSpec)| {
        let state = at.seen.machine(&spec.hypervisor);
        let is_awaited = name.component == rebuild.member || answers(documents, &spec.hypervisor);
        state.map_or(!is_awaited, |state| sandboxes(state, name).next().is_none())
    };
    let roles = [Role::Etcd, Role::KubeApiserver];
    let mut all = roles.iter().flat_map(|role| of_role(documents, at.id, *role));
    all.all(|(name, component)| is_stopped((name, &component.spec)))
}

fn is_prepared(plan: &mut Plan, at: StoreContext<'_>, rebuild: &StoreRebuild) -> bool {
    match rebuild.source {
        RebuildSource::Survivor { .. } => is_copied(&plan.documents, at, rebuild),
        RebuildSource::Snapshot { .. } => restore::prepare(plan, at, rebuild),
    }
}

/// A member that was made from a snapshot is the only one in its data, so it needs no other start.
fn end_start(plan: &mut Plan, at: StoreContext<'_>, rebuild: &StoreRebuild) -> Option<RebuildPhase> {
    match rebuild.source {
        RebuildSource::Survivor { .. } => begin_restart(plan, at, rebuild),
        RebuildSource::Snapshot { .. } => leads_alone(&plan.documents, at, rebuild).then_some(RebuildPhase::Serving),
    }
}

/// Gates 6 and 7: a machine may have returned with components that run.
fn is_copied(documents: &Documents, at: StoreContext<'_>, rebuild: &StoreRebuild) -> bool {
    let is_calm = are_stopped(documents, at, rebuild);
    is_calm
        && member(documents, at, rebuild).is_some_and(|(name, state)| {
            let copy = state.data_of(&name, &copy_name(DATA, rebuild.number));
            copy.allows(Start::OnUsedData) && sandboxes(state, &name).next().is_none()
        })
}

/// Gate 8: records the pod that became the only member, and the next phase.
fn begin_restart(plan: &mut Plan, at: StoreContext<'_>, rebuild: &StoreRebuild) -> Option<RebuildPhase> {
    let forced = {
        let (name, state) =
            member(&plan.documents, at, rebuild).filter(|_| leads_alone(&plan.documents, at, rebuild))?;
        sandboxes(state, &name).find(|sandbox| sandbox.ready)?.digest.clone()
    };
    change_rebuild(plan, at, |rebuild| rebuild.forced_pod = Some(forced));
    Some(RebuildPhase::Restarting)
}

/// Gate 9.
fn is_restarted(documents: &Documents, at: StoreContext<'_>, rebuild: &StoreRebuild) -> bool {
    let is_forced = |sandbox: &SandboxState| Some(&sandbox.digest) == rebuild.forced_pod.as_ref();
    member(documents, at, rebuild).is_some_and(|(name, state)| {
        let is_running = sandboxes(state, &name).any(|sandbox| sandbox.ready);
        is_running && !sandboxes(state, &name).any(is_forced) && leads_alone(documents, at, rebuild)
    })
}

/// Whether a member list from a majority has the one member alone, and that member leads.
fn leads_alone(documents: &Documents, at: StoreContext<'_>, rebuild: &StoreRebuild) -> bool {
    let recorded = store(documents, at).and_then(|store| store.members.get(&rebuild.member));
    let seen = at.seen.stores.get(at.id);
    let (Some(seen), Some(id)) = (seen, recorded.and_then(|member| member.id.parse::<MemberId>().ok())) else {
        return false;
    };
    let is_alone = seen.list.as_ref().is_some_and(|list| list.len() == 1 && list.contains_key(&id));
    is_alone && seen.report(&rebuild.member).is_some_and(|report| report.leader == Some(id))
}

/// Gate 10: all other members are retired, and the rebuild is over.
fn end(plan: &mut Plan, at: StoreContext<'_>, rebuild: &StoreRebuild) {
    let others: Vec<ComponentName> = store(&plan.documents, at)
        .into_iter()
        .flat_map(EtcdStatus::staying_members)
        .filter(|(name, _)| **name != rebuild.member)
        .map(|(name, _)| name.clone())
        .collect();
    for name in others {
        retire(plan, at, &name, RemovalReason::StoreRebuilt);
    }
    change_store(plan, at, |store| {
        // The members that it concerned are retired.
        store.change = None;
        store.rebuild = None;
        store.rebuilt = Some(RebuiltStore {
            number: rebuild.number,
            source: rebuild.source.clone(),
            member: rebuild.member.clone(),
            at: Time(at.now),
        });
    });
}

/// The machine of the one member, if the data of that member is gone: with the machine, or from it.
pub(crate) fn lost_data(documents: &Documents, at: StoreContext<'_>, rebuild: &StoreRebuild) -> Option<HypervisorName> {
    let name = pod(at.id, &rebuild.member);
    let machine = &documents.components.get(&name)?.spec.hypervisor;
    let is_lost = match at.seen.machine(machine) {
        Some(state) => !state.data_of(&name, DATA).allows(Start::OnUsedData),
        None => is_machine_lost(documents, machine),
    };
    is_lost.then(|| machine.clone())
}

/// The pod of the one member, and the state of its machine. None: the machine was not observed.
fn member<'a>(
    documents: &Documents,
    at: StoreContext<'a>,
    rebuild: &StoreRebuild,
) -> Option<(PodName, &'a MachineState)> {
    let name = pod(at.id, &rebuild.member);
    let machine: &HypervisorName = &documents.components.get(&name)?.spec.hypervisor;
    let state = at.seen.machine(machine)?;
    Some((name, state))
}

fn sandboxes<'a>(state: &'a MachineState, pod: &'a PodName) -> impl Iterator<Item = &'a SandboxState> {
    state.sandboxes.iter().filter(move |sandbox| sandbox.pod == *pod)
}

fn change_rebuild(plan: &mut Plan, at: StoreContext<'_>, change: impl FnOnce(&mut StoreRebuild)) {
    change_store(plan, at, |store| {
        if let Some(rebuild) = &mut store.rebuild {
            change(rebuild);
        }
    });
}

fn wait_for_phase(plan: &mut Plan, at: StoreContext<'_>, member: &ComponentName, phase: RebuildPhase) {
    let blocker = WaitBlocker::Rebuild { member: member.clone(), phase };
    plan.waiting.push(Waiting::of_cluster(role(at), WaitKind::InProgress, blocker));
}

fn role(at: StoreContext<'_>) -> WaitSubject {
    WaitSubject::Role(at.cluster.reference.clone(), Role::Etcd)
}

/// The rebuild of a cluster's store that is in progress.
pub(crate) fn rebuild_of(cluster: &Cluster) -> Option<&StoreRebuild> {
    cluster.status.as_ref()?.etcd.as_ref()?.rebuild.as_ref()
}

/// What a rebuild requires of a pod that would start otherwise. None: nothing.
pub(crate) fn start_in_rebuild(cluster: &Cluster, role: Role, component: &ComponentName) -> Option<Start> {
    let rebuild = rebuild_of(cluster)?;
    match role {
        Role::Etcd if *component != rebuild.member => Some(Start::Stopped),
        // It is pending: its machine prepares it, and does not start it.
        Role::Etcd if matches!(rebuild.source, RebuildSource::Snapshot { .. }) => None,
        Role::Etcd => match rebuild.phase {
            RebuildPhase::Stopping => Some(Start::Stopped),
            RebuildPhase::Preparing => Some(Start::Copied(rebuild.number)),
            RebuildPhase::Starting | RebuildPhase::Restarting | RebuildPhase::Serving => None,
        },
        Role::KubeApiserver => (rebuild.phase < RebuildPhase::Serving).then_some(Start::Stopped),
        Role::KubeControllerManager
        | Role::KubeScheduler
        | Role::ClusterController
        | Role::FleetController
        | Role::Ingress
        | Role::Gateway => None,
    }
}

/// Whether a member becomes the only one of its store with this start.
pub(crate) fn is_forced(cluster: &Cluster, component: &ComponentName) -> bool {
    rebuild_of(cluster).is_some_and(|rebuild| match rebuild.source {
        RebuildSource::Survivor { .. } => rebuild.member == *component && rebuild.phase == RebuildPhase::Starting,
        RebuildSource::Snapshot { .. } => false,
    })
}
