//! Deleted machines: they stay while something relies on them, and nothing new is placed on them.

use alloc::{string::ToString, vec::Vec};

use keelway_api::{
    Documents, Hypervisor, Time,
    condition::{self, ConditionStatus, reason::ConditionReason},
    hypervisor::{AgentNetworkAddress, MachineTransport},
    machine::{MachineState, ObservedValue},
    name::HypervisorName,
};

use crate::{
    ComponentRef, Decision, PassObservation, WaitBlocker, enrollment,
    plan::{AgentOrder, Plan, PlanScope},
    verdict::verdict,
};

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
        let Some((reason, blocker)) = relies else {
            enrollment::forget_machine(&mut plan.documents, &name);
            plan.documents.hypervisors.remove(&name);
            plan.documents.forget_installations();
            plan.decisions.push(Decision::RemoveHypervisor { hypervisor: name });
            continue;
        };
        let says = verdict(ConditionStatus::True, reason, blocker.to_string());
        plan.wait(&name, blocker);
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
) -> Option<(ConditionReason, WaitBlocker)> {
    let placed = all.components.iter().filter(|(_, component)| component.spec.hypervisor == *name);
    let components: Vec<_> = placed.map(|(pod, component)| ComponentRef::of(&component.spec.cluster, pod)).collect();
    if !components.is_empty() {
        let blocker = WaitBlocker::HeldComponents { machine: name.clone(), components };
        return Some((ConditionReason::HoldsComponents, blocker));
    }
    if seen.machine(name).is_some_and(|state| has_pods_of(state, all)) {
        return Some((ConditionReason::HoldsComponents, WaitBlocker::Remains));
    }
    let others = machines.hypervisors.iter().filter(|(_, machine)| is_via(machine, name));
    let others: Vec<_> = others.map(|(name, _)| name.clone()).collect();
    (!others.is_empty()).then_some((ConditionReason::ReachesOthers, WaitBlocker::ReachedMachines(others)))
}

/// Stops the agent that Keelway started on the machine, once the machine holds nothing. Returns what has to happen before the document is removed.
fn stop_agent(
    plan: &mut Plan,
    name: &HypervisorName,
    seen: &PassObservation,
) -> Option<(ConditionReason, WaitBlocker)> {
    let document = plan.documents.hypervisors.get_mut(name)?;
    if document.spec.endpoint.cri().is_none() || document.is_lost() {
        return None;
    }
    let status = document.status.get_or_insert_default();
    let is_revoked = status.agent.as_ref().is_some_and(|agent| agent.revoked);
    let blocker = match seen.machines.get(name).map(|seen| &**seen) {
        Some(ObservedValue::Known(state)) if state.owner.is_some() && state.owner == status.installation => {
            WaitBlocker::AgentRecords
        }
        seen if matches!(seen, Some(ObservedValue::Known(_))) || is_revoked => {
            status.agent = None;
            plan.agents.insert(name.clone(), AgentOrder::Stop);
            WaitBlocker::AgentStop
        }
        _ if status.agent.is_none() => return None,
        _ => WaitBlocker::AgentToStop,
    };
    Some((ConditionReason::HoldsAgent, blocker))
}

fn has_pods_of(state: &MachineState, all: &Documents) -> bool {
    let known = all.clusters.values().filter_map(|cluster| cluster.id());
    let there: Vec<_> = state.clusters().collect();
    known.into_iter().any(|id| there.contains(id))
}

fn is_via(machine: &Hypervisor, name: &HypervisorName) -> bool {
    matches!(machine.spec.endpoint.way(), MachineTransport::Network(AgentNetworkAddress { via: Some(via), .. }) if via == name.as_str())
}
