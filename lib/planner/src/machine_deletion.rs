//! Deleted machines: they stay while something relies on them, and nothing new is placed on them.

use alloc::{
    format,
    string::{String, ToString},
    vec::Vec,
};

use keelway_api::{
    Documents, Hypervisor, Time,
    condition::{self, ConditionStatus, ConditionValue, reason::ConditionReason},
    hypervisor::{AgentNetworkAddress, MachineTransport},
    machine::{MachineState, ObservedValue},
    name::HypervisorName,
};

use crate::{
    Decision, PassObservation, enrollment,
    plan::{AgentOrder, Plan, PlanScope},
    text::count,
};

/// The highest number of components in a message.
const MOST: usize = 8;

/// Removes the document of each deleted machine on which nothing relies, and reports on the others what does.
pub(crate) fn plan_deletions(plan: &mut Plan, part: PlanScope<'_>, seen: &PassObservation, now: &Time) {
    let deleted = plan.documents.hypervisors.iter().filter(|(_, machine)| machine.deleted());
    let deleted: Vec<HypervisorName> = deleted.map(|(name, _)| name.clone()).collect();
    for name in deleted {
        let all = match part {
            PlanScope::All | PlanScope::Cluster(_) => &plan.documents,
            PlanScope::Machines(of) => of.documents,
        };
        let relies = what_relies_on(&name, all, &plan.documents, seen).or_else(|| stop_agent(plan, &name, seen));
        let Some(says) = relies else {
            enrollment::forget_machine(&mut plan.documents, &name);
            plan.documents.hypervisors.remove(&name);
            plan.documents.forget_installations();
            plan.decisions.push(Decision::RemoveHypervisor { hypervisor: name });
            continue;
        };
        plan.wait(&name, says.message.clone());
        let Some(machine) = plan.documents.hypervisors.get_mut(&name) else { continue };
        let generation = machine.metadata.generation;
        let conditions = &mut machine.status.get_or_insert_default().conditions;
        condition::set(conditions, "Deleting", says, generation, now);
    }
}

/// A machine that does not respond is not observed: what the documents place on it counts.
fn what_relies_on(
    name: &HypervisorName,
    all: &Documents,
    machines: &Documents,
    seen: &PassObservation,
) -> Option<ConditionValue> {
    let placed = all.components.iter().filter(|(_, component)| component.spec.hypervisor == *name);
    let placed: Vec<String> =
        placed.map(|(pod, component)| format!("{}/{}", component.spec.cluster, pod.component)).collect();
    if !placed.is_empty() {
        return Some(verdict(ConditionReason::HoldsComponents, holds(name, &placed)));
    }
    if seen.machine(name).is_some_and(|state| has_pods_of(state, all)) {
        return Some(verdict(
            ConditionReason::HoldsComponents,
            "the remains of components on it to be removed".to_string(),
        ));
    }
    let others: Vec<&str> = machines
        .hypervisors
        .values()
        .filter(|machine| is_via(machine, name))
        .filter_map(|machine| own_name(machine))
        .collect();
    (!others.is_empty()).then(|| {
        let message = format!(
            "{} to be reached through another machine: change their spec.endpoint.agent.via",
            others.join(", ")
        );
        verdict(ConditionReason::ReachesOthers, message)
    })
}

/// Stops the agent that Keelway started on the machine, once the machine holds nothing. Returns what has to happen before the document is removed.
fn stop_agent(plan: &mut Plan, name: &HypervisorName, seen: &PassObservation) -> Option<ConditionValue> {
    let document = plan.documents.hypervisors.get_mut(name)?;
    if document.spec.endpoint.cri().is_none() || document.is_lost() {
        return None;
    }
    let status = document.status.get_or_insert_default();
    let is_revoked = status.agent.as_ref().is_some_and(|agent| agent.revoked);
    let waits = |on: &str| Some(verdict(ConditionReason::HoldsAgent, on.to_string()));
    match seen.machines.get(name).map(|seen| &**seen) {
        Some(ObservedValue::Known(state)) if state.owner.is_some() && state.owner == status.installation => {
            waits("its agent to remove what Keelway recorded on it")
        }
        seen if matches!(seen, Some(ObservedValue::Known(_))) || is_revoked => {
            status.agent = None;
            plan.agents.insert(name.clone(), AgentOrder::Stop);
            waits("its agent to stop")
        }
        _ if status.agent.is_none() => None,
        _ => waits("its agent to respond, which Keelway then stops; if the machine is gone for good, mark it as lost"),
    }
}

fn holds(name: &HypervisorName, placed: &[String]) -> String {
    let named: Vec<&str> = placed.iter().take(MOST).map(String::as_str).collect();
    let more = placed.len() - named.len();
    let more = if more == 0 { String::new() } else { format!(" and {} more", count(more, "component")) };
    format!(
        "{}{more} to leave it: `keelway hypervisor drain {name}` (spec.drain) moves all components but etcd members; etcd members \
         are removed with their clusters",
        named.join(", ")
    )
}

fn has_pods_of(state: &MachineState, all: &Documents) -> bool {
    let known = all.clusters.values().filter_map(|cluster| cluster.id());
    let there: Vec<_> = state.clusters().collect();
    known.into_iter().any(|id| there.contains(id))
}

fn is_via(machine: &Hypervisor, name: &HypervisorName) -> bool {
    matches!(machine.spec.endpoint.way(), MachineTransport::Network(AgentNetworkAddress { via: Some(via), .. }) if via == name.as_str())
}

fn own_name(machine: &Hypervisor) -> Option<&str> {
    machine.metadata.name.as_deref()
}

fn verdict(reason: ConditionReason, message: String) -> ConditionValue {
    ConditionValue { status: ConditionStatus::True, reason: reason.as_str().to_string(), message }
}
