//! Removes replicas in this order: the others are ready, nothing relies on the replica any more, then the machine stops it.

use alloc::{format, vec, vec::Vec};

use keelway_api::{
    Documents,
    component::{ComponentSpec, ComponentStage},
    documents::SecretName,
    machine::{MachineState, ServerAdmin},
    name::{ClusterId, ComponentName, HypervisorName, PodName},
    role::Role,
    validated::ValidatedCluster,
};

use crate::{
    ComponentRef, Decision, PassObservation, WaitBlocker, WaitKind, Waiting,
    component_set::{are_colocated, count_staying, of_role},
    deletion::{answers, is_machine_lost},
    fleet::FleetCapacity,
    haproxy_name::server_name,
    plan::Plan,
    text::count,
};

/// What a component waits for, and whether that ends without help.
type ComponentWait = (WaitKind, WaitBlocker);

/// Records each component that is ready for the first time. From then on other components may rely on it.
pub(crate) fn note_ready(plan: &mut Plan, seen: &PassObservation, id: &ClusterId) {
    for (pod, component) in plan.documents.components_of_mut(id) {
        if component.stage() == ComponentStage::Joining && seen.healthy(pod) {
            component.status.get_or_insert_default().stage = ComponentStage::Serving;
        }
    }
}

/// Retires replicas above the wanted number, those on drained machines first, then those with the highest number. The members of a created store
/// are not its concern ([`crate::membership`]).
pub(crate) fn retire_surplus(
    plan: &mut Plan,
    seen: &PassObservation,
    fleet: &mut FleetCapacity,
    (id, cluster): (&ClusterId, &ValidatedCluster),
    role: Role,
    wanted: u32,
) {
    let rank = |spec: &ComponentSpec| (must_move(fleet, spec), spec.index);
    let mut stay: Vec<((bool, u32), PodName)> = of_role(&plan.documents, id, role)
        .filter(|(_, component)| !component.is_leaving())
        .map(|(pod, component)| (rank(&component.spec), pod.clone()))
        .collect();
    stay.sort();
    let surplus = stay.split_off(stay.len().min(wanted as usize));
    for ((drained, _), pod) in surplus {
        let component = ComponentRef::of(&cluster.reference, &pod);
        if let Some(others) = still_needed(&plan.documents, seen, role, drained, &stay) {
            plan.wait_in_progress(component, WaitBlocker::ReadyReplicas(others));
        } else {
            let reason = match plan.documents.components.get(&pod).filter(|_| drained) {
                Some(document) => format!("{} is drained, and its replacement is ready", document.spec.hypervisor),
                None => format!("the cluster needs {} of {role}", count(wanted as usize, "replica")),
            };
            set_stage(plan, &pod, ComponentStage::Leaving);
            plan.decisions.push(Decision::RetireComponent { component, reason });
        }
    }
    let leaving: Vec<PodName> = of_role(&plan.documents, id, role)
        .filter(|(_, component)| component.is_leaving())
        .map(|(pod, _)| pod.clone())
        .collect();
    for pod in leaving {
        if let Some(wait) = sender_to(&plan.documents, seen, &pod) {
            wait_for(plan, cluster, &pod, wait);
        } else {
            stop(plan, seen, fleet, cluster, &pod);
        }
    }
}

/// Stops a component on which nothing relies. Its document is removed after its machine was observed without it.
pub(crate) fn stop(
    plan: &mut Plan,
    seen: &PassObservation,
    fleet: &mut FleetCapacity,
    cluster: &ValidatedCluster,
    pod: &PodName,
) {
    set_stage(plan, pod, ComponentStage::Stopping);
    match still_held(&plan.documents, seen, pod) {
        Some(wait) => wait_for(plan, cluster, pod, wait),
        None => remove(plan, fleet, pod),
    }
}

fn wait_for(plan: &mut Plan, cluster: &ValidatedCluster, pod: &PodName, (kind, blocker): ComponentWait) {
    let component = ComponentRef::of(&cluster.reference, pod);
    plan.waiting.push(Waiting::of_cluster(component, kind, blocker));
}

pub(crate) fn set_stage(plan: &mut Plan, pod: &PodName, stage: ComponentStage) {
    let is_other = plan.documents.components.get(pod).is_some_and(|component| component.stage() != stage);
    if is_other && let Some(document) = plan.documents.components.get_mut(pod) {
        document.status.get_or_insert_default().stage = stage;
    }
}

/// Keeps components that are leaving if the cluster needs them again, the lowest number first.
pub(crate) fn call_back(plan: &mut Plan, (id, cluster): (&ClusterId, &ValidatedCluster), role: Role, wanted: u32) {
    let missing = (wanted as usize).saturating_sub(count_staying(&plan.documents, id, role));
    let mut leaving: Vec<(u32, PodName)> = of_role(&plan.documents, id, role)
        .filter(|(_, component)| component.is_leaving())
        .map(|(pod, component)| (component.spec.index, pod.clone()))
        .collect();
    leaving.sort();
    for (_, pod) in leaving.into_iter().take(missing) {
        if let Some(document) = plan.documents.components.get_mut(&pod) {
            // Others rely on it again after it was observed to be ready.
            document.status.get_or_insert_default().stage = ComponentStage::Joining;
            let component = ComponentRef::of(&cluster.reference, &pod);
            plan.decisions.push(Decision::KeepComponent { component });
        }
    }
}

/// Whether a component is to move to another machine. Members of created stores are replaced by [`crate::membership`].
pub(crate) fn must_move(fleet: &FleetCapacity, spec: &ComponentSpec) -> bool {
    spec.role != Role::Etcd && fleet.drains(&spec.hypervisor)
}

/// The components that have to be ready before a surplus one leaves.
fn still_needed(
    documents: &Documents,
    seen: &PassObservation,
    role: Role,
    drained: bool,
    stay: &[((bool, u32), PodName)],
) -> Option<Vec<ComponentName>> {
    let gateways = || (role == Role::Ingress).then(|| first_unready_gateway(documents, seen, stay)).flatten();
    let first = || first_unready(seen, stay).or_else(gateways).map(|first| vec![first]);
    if drained { first() } else { unready(seen, role, stay) }
}

/// The first staying component that is not ready. A component leaves a drained machine after all that stay are ready.
fn first_unready(seen: &PassObservation, stay: &[((bool, u32), PodName)]) -> Option<ComponentName> {
    stay.iter().find(|(_, pod)| !seen.healthy(pod)).map(|(_, pod)| pod.component.clone())
}

/// The first gateway beside a staying ingress that is not ready. Workers lose the gateway beside an ingress together with that ingress.
fn first_unready_gateway(
    documents: &Documents,
    seen: &PassObservation,
    stay: &[((bool, u32), PodName)],
) -> Option<ComponentName> {
    stay.iter().find_map(|(_, pod)| {
        let ingress = documents.components.get(pod)?;
        let mut gateways = of_role(documents, &pod.cluster, Role::Gateway);
        let (gateway, _) = gateways.find(|(_, gateway)| are_colocated(&gateway.spec, &ingress.spec))?;
        (!seen.healthy(gateway)).then(|| gateway.component.clone())
    })
}

/// All staying replicas, if the role carries requests and none of them is ready.
fn unready(seen: &PassObservation, role: Role, stay: &[((bool, u32), PodName)]) -> Option<Vec<ComponentName>> {
    let carries = match role {
        Role::KubeApiserver | Role::Ingress | Role::Gateway => true,
        Role::Etcd
        | Role::KubeControllerManager
        | Role::KubeScheduler
        | Role::ClusterController
        | Role::FleetController => false,
    };
    let ready = stay.is_empty() || stay.iter().any(|(_, pod)| seen.healthy(pod));
    (carries && !ready).then(|| stay.iter().map(|(_, pod)| pod.component.clone()).collect())
}

/// An ingress that sends connections to an API server that is leaving, or may do so.
fn sender_to(documents: &Documents, seen: &PassObservation, server: &PodName) -> Option<ComponentWait> {
    let spec = &documents.components.get(server)?.spec;
    let mut ingresses = of_role(documents, &server.cluster, Role::Ingress).filter(|_| spec.role == Role::KubeApiserver);
    ingresses.find_map(|(ingress, component)| {
        let machine = &component.spec.hypervisor;
        let Some(state) = seen.machine(machine) else {
            return unseen(documents, machine, ingress);
        };
        let sender = || (WaitKind::InProgress, WaitBlocker::Sender(ingress.component.clone()));
        sends(state, ingress, server).then(sender)
    })
}

/// A component stays in the documents until its machine was observed without it: it may still receive requests, and it holds keys.
fn still_held(documents: &Documents, seen: &PassObservation, pod: &PodName) -> Option<ComponentWait> {
    let machine = &documents.components.get(pod)?.spec.hypervisor;
    let Some(state) = seen.machine(machine) else {
        return unseen(documents, machine, pod);
    };
    state.holds(pod).then(|| (WaitKind::InProgress, WaitBlocker::Stop(machine.clone())))
}

/// The wait for a component on a machine that was not observed. None: the machine is lost.
fn unseen(documents: &Documents, machine: &HypervisorName, pod: &PodName) -> Option<ComponentWait> {
    let (name, component) = (machine.clone(), pod.component.clone());
    if is_machine_lost(documents, machine) {
        None
    } else if answers(documents, machine) {
        // It responds, but is receiving a config and was not observed.
        Some((WaitKind::InProgress, WaitBlocker::UnobservedMachine { machine: name, component }))
    } else {
        Some((WaitKind::Blocked, WaitBlocker::SilentMachine { machine: name, component }))
    }
}

/// Whether a haproxy sends connections to a server. If a running haproxy does not report its servers, it counts as sending.
fn sends(state: &MachineState, ingress: &PodName, server: &PodName) -> bool {
    match state.servers.get(ingress) {
        Some(servers) => servers.get(&server_name(server)).is_some_and(|found| found.admin == ServerAdmin::Serves),
        None => state.runs(ingress),
    }
}

fn remove(plan: &mut Plan, fleet: &mut FleetCapacity, pod: &PodName) {
    if let Some(document) = plan.documents.components.remove(pod) {
        fleet.leave(&document.spec);
    }
    plan.documents.secrets.remove(&SecretName::of(&pod.cluster, pod.component.as_str()));
}
