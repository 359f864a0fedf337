//! Clusters that sleep: their components stop, one role after the other, and their data stays.
//!
//! Each step is recorded in `status.sleep` before any machine gets the config of that step, and is derived from that record, so any driver
//! continues at any step. A stopped pod stays in its machine's config with [`keelway_api::machine::Start::Stopped`]: its machine keeps its files and its
//! data. Nothing else about the cluster is planned meanwhile: no placement, no change of members, no snapshot, no upgrade, and no certificate
//! but those of its ingresses.
//!
//! The gates, all of which hold in every pass:
//!
//! 1. A cluster falls asleep only after its first start, and while its store has no change, rebuild or restore.
//! 2. Every machine that responds has an agent that can stop a pod and keep its data.
//! 3. The ingresses answer by themselves before any API server stops, so no API server loses a request that an ingress sent it.
//! 4. The API servers stop before any etcd member does. A machine that does not respond is not awaited: it gets the config when it returns.
//! 5. On waking, the API servers start after a majority of the etcd members is healthy, and all others after an API server is ready. The ingresses stop to
//!    answer by themselves when the API servers start. If the machines that respond do not hold the data of a majority, or a restore is requested, the
//!    cluster is awake at once, because a store is repaired only then.
//! 6. Of the ingresses that answer by themselves, one at a time is replaced, while another one answers. As in gate 4, a machine that does not respond is not
//!    awaited.
//! 7. On waking, the etcd members start one after the other. When a member starts, it compares its data with the others, and waits 7 s for each one that
//!    listens and does not respond yet (etcd's `InitialCorruptCheck`). Members that start at the same time wait for each other, one after the other.

use alloc::{collections::BTreeSet, format, string::String, vec::Vec};

use keelway_api::{
    Cluster, Component, Documents, Time,
    cluster::{EtcdMember, EtcdStatus, MemberPhase},
    condition::{self, ConditionStatus, ConditionValue, reason::ConditionReason},
    documents::SecretName,
    jiff::SignedDuration,
    name::{ClusterId, ClusterRef, ComponentName, HypervisorName, PodName},
    release::find,
    role::Role,
    rotation::{RotatedKey, RotationPhase, RotationRequest},
    sleep::{SleepPhase, SleepStatus},
};

use crate::{
    ComponentRef, Decision, PassObservation, WaitBlocker, WaitKind, Waiting,
    access::serves,
    component_set::of_role,
    deletion::answers,
    plan::Plan,
    store_start::{DATA, machine_that_cannot_stop},
    text::listed,
    verdict::verdict,
    world::ValidatedDocuments,
};

/// The condition of a Cluster that sleeps, falls asleep or wakes up. It exists only then.
const ASLEEP: &str = "Asleep";
/// After this time, all etcd members start at once, so that one that cannot start does not keep the others from it.
const MEMBERS_IN_TURN: SignedDuration = SignedDuration::from_secs(20);

/// What a cluster that sleeps, falls asleep or wakes up waits for. The text follows "waits for".
#[expect(missing_docs, reason = "the texts state what is missing")]
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SleepBlocker {
    #[error("the end of its first start: a cluster falls asleep only after that")]
    FirstStart,
    #[error("its etcd, whose members change: the cluster falls asleep after that")]
    StoreChange,
    #[error("{0} to run an agent of this release, which can stop components and keep their data")]
    Agent(HypervisorName),
    #[error("{} to stop, before the cluster sleeps", listed(.0.iter()))]
    Stop(BTreeSet<ComponentName>),
    #[error("{} to answer with 503, before the API servers stop", listed(.0.iter()))]
    Answer(BTreeSet<ComponentName>),
    #[error("a majority of its etcd members to be healthy, before its API servers start: {healthy} of {members} are")]
    Majority { healthy: usize, members: usize },
    #[error("an API server to be ready")]
    ApiServer,
    #[error("its cluster to wake up")]
    Wake,
    #[error(
        "its cluster to wake up, because components of a cluster that sleeps do not move: run `keelway cluster wake --name {0}` (spec.asleep)"
    )]
    Move(String),
    #[error(
        "the cluster to wake up, before spec.etcd.restore is carried out: run `keelway cluster wake --name {0}` (spec.asleep)"
    )]
    Restore(String),
    #[error("the cluster to wake up, before its keys are rotated: run `keelway cluster wake --name {0}` (spec.asleep)")]
    Rotation(String),
    #[error(
        "the cluster to wake up, before its components follow {}: run `keelway cluster wake --name {cluster}` (spec.asleep)",
        listed(.changes.iter())
    )]
    Change { cluster: String, changes: Vec<String> },
}

/// The next step of a cluster.
enum SleepStep {
    Next(SleepPhase),
    Awake,
    Waits(SleepBlocker),
    /// It sleeps as long as its spec says so.
    Sleeps,
}

/// Takes the next step of each cluster that is to sleep, or to wake up.
pub(crate) fn plan_sleep(plan: &mut Plan, world: &ValidatedDocuments, seen: &PassObservation, now: &Time) {
    let clusters: Vec<(ClusterRef, ClusterId)> = world
        .reconciled_clusters()
        .filter(|(name, _, _)| {
            let document = plan.documents.clusters.get(name);
            document.is_some_and(|cluster| !cluster.deleted() && (cluster.spec.asleep || cluster.is_sleeping()))
        })
        .map(|(name, id, _)| (name.clone(), id.clone()))
        .collect();
    for (name, id) in clusters {
        take_step(plan, seen, (&name, &id), now);
        if plan.documents.clusters.get(&name).is_some_and(|cluster| cluster.is_sleeping()) {
            wait_for_requests(plan, (&name, &id));
        }
    }
}

fn take_step(plan: &mut Plan, seen: &PassObservation, (name, id): (&ClusterRef, &ClusterId), now: &Time) {
    let Some(cluster) = plan.documents.clusters.get(name) else { return };
    let before = cluster.sleep_phase();
    let next = match (cluster.spec.asleep, before) {
        (true, None) => begin(&plan.documents, cluster, seen, id),
        (true, Some(phase)) => fall_asleep(&plan.documents, seen, id, phase),
        (false, Some(phase)) => wake_up(&plan.documents, seen, id, phase),
        (false, None) => return,
    };
    start_members(plan, seen, (name, id), now);
    match next {
        SleepStep::Sleeps => {}
        SleepStep::Waits(blocker) if matches!(blocker, SleepBlocker::Agent(_)) => plan.block(name, blocker),
        SleepStep::Waits(blocker) => plan.wait_in_progress(name, WaitBlocker::Sleep(blocker)),
        SleepStep::Next(phase) => {
            note_turn(plan, name, before);
            record(plan, name, Some(SleepStatus { phase, since: now.clone(), started_members: BTreeSet::new() }));
            start_members(plan, seen, (name, id), now);
            let blocker = step_blocker(&plan.documents, seen, id, phase);
            plan.waiting.extend(blocker.map(|blocker| Waiting::of_cluster(name, WaitKind::InProgress, blocker)));
        }
        SleepStep::Awake => {
            note_turn(plan, name, before);
            record(plan, name, None);
            remove_ingress_keys(&mut plan.documents, id);
        }
    }
}

/// Gate 7: lets the next etcd member start once those before it run.
fn start_members(plan: &mut Plan, seen: &PassObservation, (name, id): (&ClusterRef, &ClusterId), now: &Time) {
    let status = plan.documents.clusters.get(name).and_then(|cluster| cluster.status.as_ref());
    let Some(sleep) = status.and_then(|status| status.sleep.as_ref()) else { return };
    if sleep.phase != SleepPhase::StartingStore {
        return;
    }
    let is_over = now.0.duration_since(sleep.since.0) >= MEMBERS_IN_TURN;
    let mut started = sleep.started_members.clone();
    for (pod, component) in of_role(&plan.documents, id, Role::Etcd) {
        let state = seen.machine(&component.spec.hypervisor);
        let runs = state.is_none_or(|state| state.sandboxes.iter().any(|sandbox| sandbox.pod == *pod));
        started.insert(pod.component.clone());
        if !runs && !is_over {
            break;
        }
    }
    if started != sleep.started_members {
        let sleep = SleepStatus { started_members: started, ..sleep.clone() };
        record(plan, name, Some(sleep));
    }
}

/// Reports that a cluster begins to fall asleep or to wake up.
fn note_turn(plan: &mut Plan, name: &ClusterRef, before: Option<SleepPhase>) {
    let sleeps = plan.documents.clusters.get(name).is_some_and(|cluster| cluster.spec.asleep);
    let was_asleep = before.is_some_and(|phase| phase <= SleepPhase::Asleep);
    match (sleeps, was_asleep) {
        (true, false) => plan.decisions.push(Decision::Sleep { cluster: name.clone() }),
        (false, true) => plan.decisions.push(Decision::Wake { cluster: name.clone() }),
        (true, true) | (false, false) => {}
    }
}

/// Gates 1 and 2.
fn begin(documents: &Documents, cluster: &Cluster, seen: &PassObservation, id: &ClusterId) -> SleepStep {
    if !cluster.is_initialized() {
        return SleepStep::Waits(SleepBlocker::FirstStart);
    }
    let store = cluster.status.as_ref().and_then(|status| status.etcd.as_ref());
    if cluster.pending_restore().is_some() || !store.is_some_and(is_calm) {
        return SleepStep::Waits(SleepBlocker::StoreChange);
    }
    match machine_that_cannot_stop(documents, seen, id, &Role::ALL) {
        Some(machine) => SleepStep::Waits(SleepBlocker::Agent(machine)),
        None => SleepStep::Next(SleepPhase::StoppingControllers),
    }
}

fn is_calm(store: &EtcdStatus) -> bool {
    let has_worked = |member: &EtcdMember| member.phase == MemberPhase::Started;
    store.change.is_none()
        && store.rebuild.is_none()
        && store.members.values().all(|member| has_worked(member) && !member.is_removed())
}

/// Gates 3 and 4. A cluster that was waking up continues where its components are.
fn fall_asleep(documents: &Documents, seen: &PassObservation, id: &ClusterId, phase: SleepPhase) -> SleepStep {
    let next = match phase {
        SleepPhase::StoppingControllers => SleepPhase::Answering,
        SleepPhase::Answering => SleepPhase::StoppingServers,
        SleepPhase::StoppingServers => SleepPhase::StoppingStore,
        SleepPhase::StoppingStore => SleepPhase::Asleep,
        SleepPhase::Asleep => return SleepStep::Sleeps,
        SleepPhase::StartingStore => return SleepStep::Next(SleepPhase::StoppingServers),
        SleepPhase::StartingServers => return SleepStep::Next(SleepPhase::Answering),
    };
    step_blocker(documents, seen, id, phase).map_or(SleepStep::Next(next), SleepStep::Waits)
}

/// Gate 5. A cluster that was falling asleep continues where its components are.
fn wake_up(documents: &Documents, seen: &PassObservation, id: &ClusterId, phase: SleepPhase) -> SleepStep {
    match phase {
        // Its API servers run.
        SleepPhase::StoppingControllers | SleepPhase::Answering => SleepStep::Awake,
        SleepPhase::StoppingServers | SleepPhase::StoppingStore | SleepPhase::Asleep => {
            SleepStep::Next(SleepPhase::StartingStore)
        }
        SleepPhase::StartingStore | SleepPhase::StartingServers if is_repaired_awake(documents, seen, id) => {
            SleepStep::Awake
        }
        SleepPhase::StartingStore => step_blocker(documents, seen, id, phase)
            .map_or(SleepStep::Next(SleepPhase::StartingServers), SleepStep::Waits),
        SleepPhase::StartingServers => {
            step_blocker(documents, seen, id, phase).map_or(SleepStep::Awake, SleepStep::Waits)
        }
    }
}

/// Whether a store cannot start, or is not to: the machines that respond do not hold the data of a majority of its members, or a person requested a
/// restore. Both are repaired only while the cluster is awake. A machine that responded in the last recorded observation is awaited.
fn is_repaired_awake(documents: &Documents, seen: &PassObservation, id: &ClusterId) -> bool {
    let is_restored =
        documents.clusters.values().any(|cluster| cluster.id() == Some(id) && cluster.unexecuted_restore().is_some());
    let members: Vec<(&PodName, &Component)> = of_role(documents, id, Role::Etcd).collect();
    let may_start = |(pod, component): &&(&PodName, &Component)| {
        let machine = &component.spec.hypervisor;
        seen.machine(machine).map_or_else(
            || answers(documents, machine),
            |state| {
                let data = state.data_of(pod, DATA);
                data.marked && data.used
            },
        )
    };
    is_restored || members.iter().filter(may_start).count() * 2 <= members.len()
}

/// What the current step waits for. None: it is done.
fn step_blocker(
    documents: &Documents,
    seen: &PassObservation,
    id: &ClusterId,
    phase: SleepPhase,
) -> Option<SleepBlocker> {
    let stop = |which: &dyn Fn(Role) -> bool| {
        let running = running(documents, seen, id, which);
        (!running.is_empty()).then_some(SleepBlocker::Stop(running))
    };
    match phase {
        SleepPhase::StoppingControllers => {
            stop(&|role| !matches!(role, Role::Etcd | Role::KubeApiserver | Role::Ingress))
        }
        SleepPhase::Answering => {
            let silent: BTreeSet<ComponentName> = of_role(documents, id, Role::Ingress)
                .filter(|(pod, component)| {
                    let is_awaited = is_awaited(documents, seen, &component.spec.hypervisor);
                    is_awaited && !component.is_stopping() && !seen.healthy(pod)
                })
                .map(|(pod, _)| pod.component.clone())
                .collect();
            (!silent.is_empty()).then_some(SleepBlocker::Answer(silent))
        }
        SleepPhase::StoppingServers => stop(&|role| role == Role::KubeApiserver),
        SleepPhase::StoppingStore => stop(&|role| role == Role::Etcd),
        SleepPhase::Asleep => None,
        SleepPhase::StartingStore => {
            let members: Vec<&PodName> = of_role(documents, id, Role::Etcd).map(|(pod, _)| pod).collect();
            let healthy = members.iter().filter(|pod| seen.healthy(pod)).count();
            (healthy * 2 <= members.len()).then_some(SleepBlocker::Majority { healthy, members: members.len() })
        }
        SleepPhase::StartingServers => (!serves(documents, id, seen)).then_some(SleepBlocker::ApiServer),
    }
}

/// The components that run, or may run on a machine that responds and was not observed.
fn running(
    documents: &Documents,
    seen: &PassObservation,
    id: &ClusterId,
    which: &dyn Fn(Role) -> bool,
) -> BTreeSet<ComponentName> {
    let of_roles = documents.components_of(id).filter(|(_, component)| which(component.spec.role));
    let runs = of_roles.filter(|(pod, component)| {
        let machine = &component.spec.hypervisor;
        seen.machine(machine).map_or_else(
            || is_awaited(documents, seen, machine),
            |state| state.sandboxes.iter().any(|sandbox| sandbox.pod == **pod),
        )
    });
    runs.map(|(pod, _)| pod.component.clone()).collect()
}

fn is_awaited(documents: &Documents, seen: &PassObservation, machine: &HypervisorName) -> bool {
    seen.machine(machine).is_some() || answers(documents, machine)
}

/// Records a step. A member is not counted as unavailable while nothing is known about it.
fn record(plan: &mut Plan, name: &ClusterRef, sleep: Option<SleepStatus>) {
    let Some(cluster) = plan.documents.clusters.get_mut(name) else { return };
    let status = cluster.status.get_or_insert_default();
    status.sleep = sleep;
    for member in status.etcd.iter_mut().flat_map(|store| store.members.values_mut()) {
        member.unavailable_since = None;
    }
}

/// The key with which an ingress answers is needed only in sleep.
fn remove_ingress_keys(documents: &mut Documents, id: &ClusterId) {
    let ingresses = of_role(documents, id, Role::Ingress).map(|(pod, _)| SecretName::of(id, pod.component.as_str()));
    let secrets: Vec<SecretName> = ingresses.collect();
    for secret in secrets {
        documents.secrets.remove(&secret);
    }
}

/// Waits for what a person requests of a cluster that sleeps, and that only happens once it is awake.
fn wait_for_requests(plan: &mut Plan, (name, id): (&ClusterRef, &ClusterId)) {
    let is_drained =
        |machine: &HypervisorName| plan.documents.hypervisors.get(machine).is_some_and(|machine| machine.spec.drain);
    let drained = plan.documents.components_of(id).filter(|(_, component)| is_drained(&component.spec.hypervisor));
    let drained: Vec<ComponentRef> = drained.map(|(pod, _)| ComponentRef::of(name, pod)).collect();
    for component in drained {
        plan.block(component, SleepBlocker::Move(name.name.clone()));
    }
    let Some(cluster) = plan.documents.clusters.get(name) else { return };
    let is_to_complete = |key: RotatedKey| {
        let prepared = cluster.running_rotation(key).filter(|rotation| rotation.phase == RotationPhase::Prepared);
        prepared.is_some() && cluster.spec.rotations.request(key).is_some_and(RotationRequest::is_complete)
    };
    let is_pending = |key: &RotatedKey| cluster.pending_rotation(*key).is_some() || is_to_complete(*key);
    let rotates = cluster.spec.asleep && RotatedKey::ALL.iter().any(is_pending);
    let is_restored = cluster.unexecuted_restore().is_some();
    let changes = if cluster.spec.asleep { changes_in_sleep(&plan.documents, cluster, id) } else { Vec::new() };
    if is_restored {
        plan.block(name, SleepBlocker::Restore(name.name.clone()));
    }
    if rotates {
        plan.block(name, SleepBlocker::Rotation(name.name.clone()));
    }
    if !changes.is_empty() {
        plan.block(name, SleepBlocker::Change { cluster: name.name.clone(), changes });
    }
}

/// What the spec of a cluster names, and its components do not follow: another release, and other numbers of replicas.
fn changes_in_sleep(documents: &Documents, cluster: &Cluster, id: &ClusterId) -> Vec<String> {
    let wanted = find(&cluster.spec.version);
    let follows = |(_, component): (&PodName, &Component)| find(&component.spec.version) == wanted;
    let release = (!documents.components_of(id).all(follows)).then(|| format!("spec.version {}", cluster.spec.version));
    let replicas = Role::ALL.into_iter().filter_map(|role| {
        let (wanted, staying) = (cluster.spec.replicas(role) as usize, of_role(documents, id, role));
        let staying = staying.filter(|(_, component)| !component.is_leaving()).count();
        (wanted != staying).then(|| format!("the number of replicas of {role} ({wanted} instead of {staying})"))
    });
    release.into_iter().chain(replicas).collect()
}

/// The condition `Asleep` of a cluster.
pub(crate) fn note_sleep(cluster: &mut Cluster, now: &Time) {
    let says = sleep_verdict(cluster);
    let conditions = cluster.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    // A document that does not change stays shared.
    if says.is_none() && !condition::has(conditions, ASLEEP) {
        return;
    }
    let generation = cluster.metadata.generation;
    let conditions = &mut cluster.status.get_or_insert_default().conditions;
    condition::set_or_remove(conditions, ASLEEP, says, generation, now);
}

/// What a cluster reports that sleeps, falls asleep or wakes up. None: it is awake.
fn sleep_verdict(cluster: &Cluster) -> Option<ConditionValue> {
    let phase = cluster.sleep_phase()?;
    let (status, reason, message) = match phase {
        SleepPhase::Asleep => {
            let message = "its components are stopped, and its data stays; `keelway cluster wake` starts it";
            return Some(verdict(ConditionStatus::True, ConditionReason::Asleep, message));
        }
        SleepPhase::StoppingControllers => {
            (ConditionStatus::False, ConditionReason::FallingAsleep, "controllers and gateways stop")
        }
        SleepPhase::Answering => {
            (ConditionStatus::False, ConditionReason::FallingAsleep, "the ingresses begin to answer with 503")
        }
        SleepPhase::StoppingServers => (ConditionStatus::False, ConditionReason::FallingAsleep, "the API servers stop"),
        SleepPhase::StoppingStore => (ConditionStatus::False, ConditionReason::FallingAsleep, "the etcd members stop"),
        SleepPhase::StartingStore => (ConditionStatus::False, ConditionReason::WakingUp, "the etcd members start"),
        SleepPhase::StartingServers => (ConditionStatus::False, ConditionReason::WakingUp, "the API servers start"),
    };
    Some(verdict(status, reason, message))
}

/// The conditions `Available` and `Degraded` of a cluster in its sleep. None: they follow from its components.
pub(crate) fn conditions_in_sleep(cluster: &Cluster) -> Option<(ConditionValue, ConditionValue)> {
    let says = sleep_verdict(cluster)?;
    let available = ConditionValue { status: ConditionStatus::False, ..says };
    let degraded = verdict(
        ConditionStatus::False,
        ConditionReason::Asleep,
        "components that do not run while it sleeps are no fault",
    );
    Some((available, degraded))
}
