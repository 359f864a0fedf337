//! Terms and generations: the documents get the numbers that the machines hold.

use alloc::{collections::BTreeMap, vec::Vec};

use keelway_api::{
    Documents, Hypervisor,
    hypervisor::Applied,
    machine::{MachineState, ObservedValue},
    name::HypervisorName,
};

use super::{AnsweringMachines, ConfigAge, DifferenceKind, HeldConfig, HeldMachine, RecoveryDifference};
use crate::{
    MachineRefusal, refusal,
    term::{HIGHEST_TOLD_TERM, next_number, term_of_documents},
};

/// Records the installation on machines without one: all machines of the documents belong to the same installation.
pub(super) fn share_installation(documents: &mut Documents) {
    let Some(installation) = documents.installation().cloned() else { return };
    let lacks = |document: &Hypervisor| document.status.as_ref().is_none_or(|status| status.installation.is_none());
    let names: Vec<HypervisorName> =
        documents.hypervisors.iter().filter(|(_, document)| lacks(document)).map(|(name, _)| name.clone()).collect();
    for name in names {
        if let Some(document) = documents.hypervisors.get_mut(&name) {
            document.status.get_or_insert_default().installation = Some(installation.clone());
        }
    }
}

/// Returns the machines that responded and accept configs of these documents, each with the age of its config.
pub(super) fn ages(
    documents: &Documents,
    held: &BTreeMap<HypervisorName, ObservedValue<HeldMachine>>,
    differences: &mut Vec<RecoveryDifference>,
) -> BTreeMap<HypervisorName, ConfigAge> {
    let mut ages = BTreeMap::new();
    for (name, document) in &documents.hypervisors {
        let machine = match held.get(name) {
            Some(ObservedValue::Known(machine)) => machine,
            // The machine is marked as lost.
            _ if document.is_lost() => continue,
            Some(ObservedValue::Unreachable { why, .. }) => {
                differences.push(RecoveryDifference::of(name, DifferenceKind::Silent { why: why.clone() }));
                continue;
            }
            None => continue,
        };
        match age(document, &machine.state) {
            Ok(age) => {
                ages.insert(name.clone(), age);
                if let (ConfigAge::Later, HeldConfig::Unknown(why)) = (age, &machine.config) {
                    differences.push(RecoveryDifference::of(name, DifferenceKind::UnknownConfig { why: why.clone() }));
                }
            }
            Err(refused) => differences.push(RecoveryDifference::of(name, DifferenceKind::Refused(refused))),
        }
    }
    ages
}

fn age(document: &Hypervisor, state: &MachineState) -> Result<ConfigAge, MachineRefusal> {
    match refusal(document, state) {
        Some(MachineRefusal::Stale { applied, .. } | MachineRefusal::TwoWriters { applied }) => {
            // No driver assigns such numbers: the record is damaged or forged.
            if applied.term > HIGHEST_TOLD_TERM {
                return Err(MachineRefusal::NoSuchTerm { term: applied.term });
            }
            if next_number(applied.generation).is_none() {
                return Err(MachineRefusal::NoNumberLeft { issued: applied });
            }
            Ok(ConfigAge::Later)
        }
        Some(refused) => Err(refused),
        None => {
            let status = document.status.as_ref();
            let issued = status.and_then(|status| status.issued.as_ref());
            let was_applied = status.is_some_and(|status| status.applied.is_some());
            Ok(match &state.applied {
                None if was_applied => ConfigAge::Emptied,
                held if held.as_ref() == issued || issued.is_none() => ConfigAge::Same,
                _ => ConfigAge::Older,
            })
        }
    }
}

/// Records for each machine the number that it holds. Afterwards the documents know the highest term that any machine knows, so the next
/// leader begins after it.
pub(super) fn realign(
    documents: &mut Documents,
    fleet: &AnsweringMachines<'_>,
    differences: &mut Vec<RecoveryDifference>,
) {
    let later = fleet.machines.iter().filter(|(_, (_, age))| *age == ConfigAge::Later);
    for (name, (machine, _)) in later {
        let Some(applied) = &machine.state.applied else { continue };
        let Some(document) = documents.hypervisors.get_mut(*name) else { continue };
        let status = document.status.get_or_insert_default();
        let issued = status.issued.replace(applied.clone());
        status.applied = Some(applied.clone());
        differences
            .push(RecoveryDifference::of(name, DifferenceKind::LaterConfig { applied: applied.clone(), issued }));
    }
    realign_term(documents, fleet, differences);
}

/// One machine is enough, because the term of a driver is the highest of the documents. That machine gets its config again with the new term.
fn realign_term(documents: &mut Documents, fleet: &AnsweringMachines<'_>, differences: &mut Vec<RecoveryDifference>) {
    let told = fleet.machines.iter().map(|(name, (machine, _))| (machine.state.term, *name));
    let Some((told, name)) = told.filter(|(told, _)| *told <= HIGHEST_TOLD_TERM).max() else { return };
    let known = term_of_documents(documents);
    if told <= known {
        return;
    }
    let Some(status) = documents.hypervisors.get_mut(name).and_then(|document| document.status.as_mut()) else {
        return;
    };
    let Some(issued) = &status.issued else { return };
    status.issued = Some(Applied { term: told, ..issued.clone() });
    differences.push(RecoveryDifference::of(name, DifferenceKind::LaterTerm { told, known }));
}
