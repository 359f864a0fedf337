//! Machines that accept nothing from these documents, whatever the documents contain about them.

use alloc::{collections::BTreeMap, string::ToString, vec::Vec};

use keelway_api::{
    Documents, Hypervisor,
    hypervisor::Applied,
    machine::{ConfigFormat, MachineState, ObservedValue},
    name::HypervisorName,
};

use crate::{
    PassObservation,
    machine_refusal::MachineRefusal,
    term::{HIGHEST_NUMBER, next_number},
};

/// Marks machines that refuse these documents as unreachable, so that nothing is planned on them, and records why in `refused`.
pub fn refuse(documents: &Documents, seen: &mut PassObservation) {
    for (name, other) in twins(documents, seen) {
        let refused = MachineRefusal::SameMachine { other };
        seen.machines.insert(name.clone(), ObservedValue::unreachable(refused.to_string()));
        seen.refused.insert(name, refused);
    }
    for (name, document) in &documents.hypervisors {
        let Some(state) = seen.machine(name) else { continue };
        let Some(refused) = refusal(document, state) else { continue };
        seen.machines.insert(name.clone(), ObservedValue::unreachable(refused.to_string()));
        // If the machine is lost, nothing that it reports counts, not even that the documents are stale.
        if !(refused.is_stale() && document.is_lost()) {
            seen.refused.insert(name.clone(), refused);
        }
    }
}

/// Hypervisors whose agent also responds for another Hypervisor, each with that other one: the one with components, or the first by name.
/// Otherwise members of one store could share the machine, and each document would undo the config of the other.
fn twins(documents: &Documents, seen: &PassObservation) -> Vec<(HypervisorName, HypervisorName)> {
    let mut by_agent: BTreeMap<&str, Vec<&HypervisorName>> = BTreeMap::new();
    for name in documents.hypervisors.keys() {
        if let Some(agent) = seen.machine(name).and_then(|state| state.agent_id.as_deref()) {
            by_agent.entry(agent).or_default().push(name);
        }
    }
    let mut found = Vec::new();
    for mut names in by_agent.into_values().filter(|names| names.len() > 1) {
        names.sort_by_key(|name| !documents.components.values().any(|component| component.spec.hypervisor == **name));
        if let Some((first, others)) = names.split_first() {
            found.extend(others.iter().map(|other| ((*other).clone(), (*first).clone())));
        }
    }
    found
}

/// Returns why a machine accepts nothing from the documents. None: it accepts their configs.
#[must_use]
pub fn refusal(document: &Hypervisor, state: &MachineState) -> Option<MachineRefusal> {
    if state.kubelet_pods > 0 {
        return Some(MachineRefusal::Kubelet { pods: state.kubelet_pods });
    }
    let status = document.status.as_ref();
    let installation = status.and_then(|status| status.installation.as_ref());
    if let Some(owner) = state.owner.as_ref().filter(|owner| Some(*owner) != installation) {
        return Some(MachineRefusal::AnotherInstallation { owner: owner.clone() });
    }
    if state.term > HIGHEST_NUMBER {
        return Some(MachineRefusal::NoSuchTerm { term: state.term });
    }
    let issued = status.and_then(|status| status.issued.as_ref());
    if let Some(issued) = issued.filter(|issued| next_number(issued.generation).is_none()) {
        return Some(MachineRefusal::NoNumberLeft { issued: issued.clone() });
    }
    // Stale documents are reported first: documents of a newer release may be the newest.
    let refused = state.applied.as_ref().and_then(|applied| stale(applied, issued));
    let unknown = ConfigFormat::understood_by(state.formats).is_none();
    refused.or_else(|| unknown.then_some(MachineRefusal::UnknownFormats { formats: state.formats }))
}

/// Compares what a machine holds with what the documents record. None: it is the same or older.
fn stale(applied: &Applied, issued: Option<&Applied>) -> Option<MachineRefusal> {
    let place = |applied: &Applied| (applied.term, applied.generation);
    match issued {
        Some(issued) if place(applied) < place(issued) => None,
        Some(issued) if place(applied) > place(issued) => {
            Some(MachineRefusal::Stale { applied: applied.clone(), issued: Some(issued.clone()) })
        }
        Some(issued) => {
            (issued.digest != applied.digest).then(|| MachineRefusal::TwoWriters { applied: applied.clone() })
        }
        None => Some(MachineRefusal::Stale { applied: applied.clone(), issued: None }),
    }
}
