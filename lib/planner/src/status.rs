//! The status of documents: conditions that follow from the observation.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    format,
    string::{String, ToString},
    vec::Vec,
};
use core::net::SocketAddr;

use keelway_api::{
    Cluster, Component, Documents, Hypervisor, Shared, Time,
    component::ComponentSpec,
    condition::{self, ConditionStatus, ConditionValue, reason::ConditionReason},
    hypervisor::{DiskQuantities, HypervisorStatus, NodeInfo},
    jiff::SignedDuration,
    machine::{ContainerPhase, ContainerState, Disk, MachineState, ObservedValue, SandboxState, UnreachableReason},
    name::{ClusterId, ClusterRef, HypervisorName, PodName},
    role::{EGRESS, Role},
    validated::ValidatedCluster,
};

use crate::{
    ComponentHealth, ComponentRef, MachineRefusal, PassObservation, WaitBlocker, WaitKind, Waiting,
    absent_addresses::{ADDRESSES_FOUND, absent_addresses},
    certificates::OverdueCertificates,
    deletion::forget_abandoned,
    plan::{Connections, Plan, PlanScope},
    sleep::{self, SleepBlocker},
    store_creation, store_start,
    text::{count, listed},
    verdict::verdict,
    world::ValidatedDocuments,
};

/// How often a driver that is not connected to the machines records an unchanged one: as often as a kubelet reports an unchanged Node
/// (`nodeStatusReportFrequency`).
const HEARTBEAT: SignedDuration = SignedDuration::from_mins(5);

/// Records the observation in the status of every cluster and component, and waits for each component that is not ready.
pub(crate) fn plan_status(
    plan: &mut Plan,
    world: &ValidatedDocuments,
    (seen, overdue): (&PassObservation, &OverdueCertificates),
    now: &Time,
) {
    components(plan, seen, now);
    for (name, document) in plan.documents.clusters.iter_mut() {
        sleep::note_sleep(document, now);
        pauses(document, overdue.get(name).map(Vec::as_slice).unwrap_or_default(), now);
    }
    for (name, (id, cluster)) in &world.clusters {
        clusters(plan, world, (name, id, cluster), now);
    }
}

/// The message for a machine that responds: its runtime, and the number of clusters that no document names.
fn answers(state: &MachineState, others: usize) -> String {
    let runtime = format!("{} {}", state.runtime.name, state.runtime.version);
    if others == 0 {
        return runtime;
    }
    format!("{runtime}; {} without a document left alone", count(others, "cluster"))
}

/// Records the observation in the status of every machine.
pub(crate) fn plan_machines(plan: &mut Plan, part: PlanScope<'_>, seen: &PassObservation, now: &Time) {
    let Documents { hypervisors, clusters, components, .. } = &mut plan.documents;
    let (clusters, components) = match part {
        PlanScope::All | PlanScope::Cluster(_) => (&*clusters, &*components),
        PlanScope::Machines(of) => (&of.documents.clusters, &of.documents.components),
    };
    let known: BTreeSet<ClusterId> = clusters.values().filter_map(|c| c.id().cloned()).collect();
    let others = |state: &MachineState| {
        let there: BTreeSet<ClusterId> = state.clusters().collect();
        there.difference(&known).count()
    };
    let mut placed: BTreeMap<&HypervisorName, Vec<Role>> = BTreeMap::new();
    for component in components.values() {
        placed.entry(&component.spec.hypervisor).or_default().push(component.spec.role);
    }
    for (name, document) in hypervisors.iter_mut() {
        let here = placed.get(name).map(Vec::as_slice).unwrap_or_default();
        let drained = document.spec.drain.then(|| drained(here));
        let refused = seen.refused.get(name).map(MachineRefusal::reason);
        let found = seen.machines.get(name).map(|seen| &**seen);
        let says = match found {
            Some(ObservedValue::Unreachable { why, .. }) if refused.is_some() => {
                verdict(ConditionStatus::False, refused.unwrap_or(ConditionReason::Unreachable), why.clone())
            }
            Some(ObservedValue::Known(state)) => {
                verdict(ConditionStatus::True, ConditionReason::Answers, answers(state, others(state)))
            }
            Some(ObservedValue::Unreachable { silent: UnreachableReason::Asked | UnreachableReason::Agent, why }) => {
                verdict(ConditionStatus::False, ConditionReason::Unreachable, why.clone())
            }
            Some(ObservedValue::Unreachable { silent: UnreachableReason::Runtime, why }) => verdict(
                ConditionStatus::False,
                ConditionReason::RuntimeNotAnswering,
                format!("waits for {}", WaitBlocker::SilentRuntime(why.clone())),
            ),
            Some(ObservedValue::Unreachable { silent: UnreachableReason::Led, why }) => {
                verdict(ConditionStatus::False, ConditionReason::ObeysAnotherLeader, why.clone())
            }
            // Without an observation, the last reported condition stays.
            None if is_told(document) => continue,
            None => verdict(ConditionStatus::Unknown, ConditionReason::NotObserved, "not observed yet"),
        };
        // As the API server does for each new object.
        document.metadata.creation_timestamp.get_or_insert_with(|| now.clone());
        let generation = document.metadata.generation;
        let state = found.and_then(ObservedValue::known);
        let absent = state.and_then(|state| absent_addresses(&document.spec.addresses, state));
        let status = document.status.get_or_insert_default();
        if let Some(seen) = found {
            note(status, (name, seen), part, now);
        }
        forget_abandoned(status, found.and_then(ObservedValue::known), &known);
        if let Some(ObservedValue::Known(state)) = found {
            let message = || format!("waits for {}", WaitBlocker::FullDisk);
            let waits = || verdict(ConditionStatus::True, ConditionReason::DiskFull, message());
            let says = state.disk_pressure.then(waits);
            condition::set_or_remove(&mut status.conditions, "DiskPressure", says, generation, now);
            condition::set_or_remove(&mut status.conditions, ADDRESSES_FOUND, absent, generation, now);
        }
        condition::set(&mut status.conditions, "Ready", says, generation, now);
        condition::set_or_remove(&mut status.conditions, "Drained", drained, generation, now);
    }
}

/// Whether the condition `Ready` was reported before.
fn is_told(document: &Hypervisor) -> bool {
    let status = document.status.as_ref();
    status.is_some_and(|status| condition::has(&status.conditions, "Ready"))
}

/// Records what a machine reports about itself, and when it was last in contact.
fn note(
    status: &mut HypervisorStatus,
    (name, seen): (&HypervisorName, &ObservedValue<MachineState>),
    part: PlanScope<'_>,
    now: &Time,
) {
    let answered = condition::is_true(&status.conditions, "Ready");
    match (seen, part) {
        (ObservedValue::Known(state), _) => {
            let is_fresh = match part {
                PlanScope::Machines(_) => answered && is_told_of(status, state),
                PlanScope::All | PlanScope::Cluster(_) => is_fresh(status, now),
            };
            if inventory(status, state) || !is_fresh {
                status.disk = state.disk.map(Into::into);
                status.last_heartbeat_time = Some(now.clone());
            }
        }
        (ObservedValue::Unreachable { .. }, PlanScope::Machines(Connections { last_contact: heard, .. }))
            if answered =>
        {
            if let Some(heard) = heard.get(name) {
                status.last_heartbeat_time = Some(Time(*heard));
            }
        }
        (ObservedValue::Unreachable { .. }, _) => {}
    }
}

/// Whether the last heartbeat was recorded less than [`HEARTBEAT`] ago.
fn is_fresh(status: &HypervisorStatus, now: &Time) -> bool {
    let is_fresh = |time: &Time| now.0.duration_since(time.0).abs() < HEARTBEAT;
    status.last_heartbeat_time.as_ref().is_some_and(is_fresh)
}

/// Whether the recorded status of a machine is recent enough for a driver that stays connected: it notices by itself if the machine is silent.
fn is_told_of(status: &HypervisorStatus, state: &MachineState) -> bool {
    let disk = status.disk.as_ref().and_then(DiskQuantities::disk);
    status.last_heartbeat_time.is_some() && Disk::are_about_equal(disk, state.disk)
}

/// Records what a machine reports about itself, and returns whether that changed. Free disk space is left out because it changes all the
/// time: documents of a settled installation stay unchanged.
fn inventory(status: &mut HypervisorStatus, state: &MachineState) -> bool {
    let before = status.clone();
    status.applied.clone_from(&state.applied);
    status.capacity = state.capacity.map(Into::into);
    status.allocatable = state.capacity.map(|capacity| capacity.allocatable().into());
    status.node_info = NodeInfo::of(state);
    *status != before
}

/// The condition `Drained` of a machine that is drained, from the roles of the components on it.
fn drained(here: &[Role]) -> ConditionValue {
    if here.is_empty() {
        return verdict(ConditionStatus::True, ConditionReason::Empty, "no component is on it");
    }
    let message = format!("{} to move, each once its replacement is ready", count(here.len(), "component"));
    verdict(ConditionStatus::False, ConditionReason::Moving, message)
}

/// What runs on a machine, indexed by pod and sandbox.
struct RunningPods<'a> {
    machine: &'a MachineState,
    /// The newest sandbox of each pod.
    sandboxes: BTreeMap<&'a PodName, &'a SandboxState>,
    /// The phase of each sandbox's containers. Only the newest container of each name counts. If one of them does not run, its phase is here.
    containers: BTreeMap<&'a str, ContainerPhase>,
}

impl<'a> RunningPods<'a> {
    fn of(machine: &'a MachineState) -> Self {
        // The lists begin with the newest, and in a map the last insertion of a key stays.
        let sandboxes = machine.sandboxes.iter().rev().map(|sandbox| (&sandbox.pod, sandbox)).collect();
        let of_name = |container: &'a ContainerState| (container.sandbox.as_str(), container.name.as_str());
        let newest: BTreeMap<_, _> =
            machine.containers.iter().rev().map(|container| (of_name(container), container.phase)).collect();
        let mut containers = BTreeMap::new();
        for ((sandbox, _), phase) in newest {
            let worst = containers.entry(sandbox).or_insert(phase);
            if *worst == ContainerPhase::Running {
                *worst = phase;
            }
        }
        Self { machine, sandboxes, containers }
    }
}

fn components(plan: &mut Plan, seen: &PassObservation, now: &Time) {
    let known = seen.machines.iter().filter_map(|(name, state)| Some((name, RunningPods::of(state.known()?))));
    let running: BTreeMap<&HypervisorName, RunningPods> = known.collect();
    let judged = |(pod, document): (&PodName, &Shared<Component>)| {
        let spec = &document.spec;
        let cluster = plan.documents.clusters.get(&spec.cluster);
        if store_creation::has_lost_data(&plan.documents, seen, pod, spec) {
            Some((ConditionStatus::False, ConditionReason::DataLost, lost_data(&plan.documents, pod, spec)))
        } else if cluster.is_some_and(|cluster| cluster.stops_in_sleep(spec.role)) {
            Some((ConditionStatus::False, ConditionReason::Asleep, SleepBlocker::Wake.into()))
        } else if cluster.is_some_and(|cluster| store_start::waits_for_api(cluster, spec.role)) {
            Some((ConditionStatus::False, ConditionReason::NotStarted, WaitBlocker::ApiServer))
        } else {
            unready((pod, spec), seen, running.get(&spec.hypervisor))
        }
    };
    let verdicts: Vec<Option<UnreadyComponent>> = plan.documents.components.iter().map(judged).collect();
    let Documents { components, clusters, .. } = &mut plan.documents;
    for ((pod, document), unready) in components.iter_mut().zip(verdicts) {
        let cluster = &document.spec.cluster;
        let is_left = clusters.get(cluster).is_some_and(|cluster| cluster.deleted() || cluster.spec.paused);
        let says = match &unready {
            None => verdict(ConditionStatus::True, ConditionReason::Healthy, "it passes its health check"),
            Some((status, reason, blocker)) => verdict(*status, *reason, blocker.to_string()),
        };
        let is_due = |(_, reason, _): &UnreadyComponent| *reason != ConditionReason::Asleep;
        if let Some((_, reason, blocker)) = unready.filter(is_due).filter(|_| !is_left && !document.is_leaving()) {
            plan.waiting.push(Waiting::of_cluster(ComponentRef::of(cluster, pod), wait_kind(reason), blocker));
        }
        let generation = document.metadata.generation;
        let status = document.status.get_or_insert_default();
        condition::set(&mut status.conditions, "Ready", says, generation, now);
    }
}

/// The condition `Paused` of a cluster, with the certificates that are due meanwhile.
fn pauses(document: &mut Cluster, overdue: &[String], now: &Time) {
    let generation = document.metadata.generation;
    let is_paused = document.spec.paused;
    let status = document.status.get_or_insert_default();
    if !is_paused {
        status.conditions.retain(|condition| condition.type_ != "Paused");
        return;
    }
    let says = if overdue.is_empty() {
        verdict(ConditionStatus::True, ConditionReason::Paused, "Keelway does not change it until spec.paused is false")
    } else {
        let due = listed(overdue.iter());
        let message = format!("Keelway does not change it until spec.paused is false; certificates are due: {due}");
        verdict(ConditionStatus::True, ConditionReason::CertificatesDue, message)
    };
    condition::set(&mut status.conditions, "Paused", says, generation, now);
}

/// Whether a component that is not ready becomes ready by itself, from the reason of its condition.
fn wait_kind(reason: ConditionReason) -> WaitKind {
    let stays_so = [ConditionReason::MachineUnreachable, ConditionReason::PortTaken, ConditionReason::DataLost];
    if stays_so.contains(&reason) { WaitKind::Blocked } else { WaitKind::InProgress }
}

/// A member that lost its data is not started empty, because it would have forgotten its votes and the entries that it acknowledged.
fn lost_data(documents: &Documents, pod: &PodName, spec: &ComponentSpec) -> WaitBlocker {
    let members = documents.components_of(&pod.cluster).filter(|(_, other)| other.spec.role == Role::Etcd).count();
    WaitBlocker::LostData { pod: pod.clone(), machine: spec.hypervisor.clone(), is_only_member: members == 1 }
}

/// The condition of a component that is not ready, and what it waits for.
type UnreadyComponent = (ConditionStatus, ConditionReason, WaitBlocker);

/// None: the component is ready.
fn unready(
    (pod, spec): (&PodName, &ComponentSpec),
    seen: &PassObservation,
    running: Option<&RunningPods>,
) -> Option<UnreadyComponent> {
    let Some(running) = running else {
        return Some((ConditionStatus::Unknown, ConditionReason::MachineUnreachable, WaitBlocker::MachineOfComponent));
    };
    if let Some(port) = port_of_another(running.machine, pod, spec) {
        let blocker = WaitBlocker::Port { machine: spec.hypervisor.clone(), port };
        return Some((ConditionStatus::False, ConditionReason::PortTaken, blocker));
    }
    let phase = running.sandboxes.get(pod).and_then(|sandbox| running.containers.get(sandbox.id.as_str()));
    let (status, reason, blocker) = match (phase, seen.health.get(pod)) {
        (Some(ContainerPhase::Running), Some(ComponentHealth::Healthy)) => return None,
        (Some(ContainerPhase::Running), Some(ComponentHealth::Unhealthy(why) | ComponentHealth::NoAnswer(why))) => {
            (ConditionStatus::False, ConditionReason::Unhealthy, WaitBlocker::HealthCheck(why.clone()))
        }
        (Some(ContainerPhase::Running), None) => {
            (ConditionStatus::Unknown, ConditionReason::NotAsked, WaitBlocker::FirstHealthCheck)
        }
        (Some(ContainerPhase::Exited { code }), _) => {
            (ConditionStatus::False, ConditionReason::Exited, WaitBlocker::Restart { code: *code })
        }
        (Some(ContainerPhase::Created | ContainerPhase::Unknown) | None, _) => {
            (ConditionStatus::False, ConditionReason::NotStarted, WaitBlocker::Start)
        }
    };
    Some((status, reason, blocker))
}

/// A port of the component on which another process listens: it is in use, and the container that it belongs to does not run.
fn port_of_another(machine: &MachineState, pod: &PodName, spec: &ComponentSpec) -> Option<u16> {
    let mut taken = spec.ports.iter().filter(|(_, port)| machine.ports.listening.contains(port));
    let container = |port: &str| if port == EGRESS { EGRESS } else { spec.role.row().name };
    taken.find(|(name, _)| !machine.runs_container(pod, container(name))).map(|(_, port)| *port)
}

fn clusters(
    plan: &mut Plan,
    world: &ValidatedDocuments,
    (name, id, cluster): (&ClusterRef, &ClusterId, &ValidatedCluster),
    now: &Time,
) {
    let not_ready = |role: Option<Role>| -> Vec<String> {
        plan.documents
            .components_of(id)
            .filter(|(_, component)| role.is_none_or(|role| component.spec.role == role) && !component.is_leaving())
            .filter(|(_, component)| {
                let status = component.status.as_ref();
                !status.is_some_and(|status| condition::is_true(&status.conditions, "Ready"))
            })
            .map(|(pod, _)| pod.component.to_string())
            .collect()
    };
    let (broken, ingresses) = (not_ready(None), not_ready(Some(Role::Ingress)));
    let servers = plan.documents.components_of(id).filter(|(_, component)| component.spec.role == Role::KubeApiserver);
    let replicas = u32::try_from(servers.count()).ok();
    let endpoints = endpoints(plan, world, id, cluster);
    let Some(document) = plan.documents.clusters.get_mut(name) else { return };
    let generation = document.metadata.generation;
    let wanted = document.spec.replicas(Role::Ingress) as usize;
    let deleted = document.deleted();
    let in_sleep = sleep::conditions_in_sleep(document);
    let status = document.status.get_or_insert_default();
    let available = if deleted {
        verdict(ConditionStatus::False, ConditionReason::Deleting, "it is being deleted")
    } else if wanted == 0 && broken.is_empty() {
        verdict(
            ConditionStatus::True,
            ConditionReason::Serving,
            "the API serves other hypervisors; there is no ingress",
        )
    } else if ingresses.is_empty() && endpoints.len() >= wanted && wanted > 0 {
        verdict(ConditionStatus::True, ConditionReason::Serving, "the API serves through every ingress")
    } else {
        verdict(ConditionStatus::False, ConditionReason::NotServing, "the API does not serve through every ingress")
    };
    let degraded = if broken.is_empty() {
        verdict(ConditionStatus::False, ConditionReason::AllReady, "every component is ready")
    } else {
        verdict(ConditionStatus::True, ConditionReason::NotReady, format!("not ready: {}", broken.join(", ")))
    };
    let (available, degraded) = in_sleep.filter(|_| !deleted).unwrap_or((available, degraded));
    status.replicas = replicas;
    status.endpoints = endpoints;
    status.observed_generation = generation;
    condition::set(&mut status.conditions, "Available", available, generation, now);
    condition::set(&mut status.conditions, "Degraded", degraded, generation, now);
}

fn endpoints(plan: &Plan, world: &ValidatedDocuments, id: &ClusterId, cluster: &ValidatedCluster) -> Vec<String> {
    let ingresses = plan.documents.components_of(id);
    let ingresses = ingresses.filter(|(_, component)| component.spec.role == Role::Ingress && !component.is_leaving());
    let mut urls = Vec::new();
    for (_, ingress) in ingresses {
        let port = ingress.spec.port(keelway_api::role::API);
        if let Some(host) = &cluster.host {
            urls.push(format!("https://{host}:{port}"));
        } else {
            let machine = world.machines.get(&ingress.spec.hypervisor);
            let addresses = machine.map(|machine| machine.public.as_slice()).unwrap_or_default();
            urls.extend(addresses.iter().map(|address| format!("https://{}", SocketAddr::new(*address, port))));
        }
    }
    urls.dedup();
    urls
}
