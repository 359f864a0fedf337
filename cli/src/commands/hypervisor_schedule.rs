//! `keelway hypervisor cordon`, `uncordon`, `drain` and `delete`.

use keelway_api::{Documents, Hypervisor, Time, hypervisor::HypervisorSpec, jiff::Timestamp};

use super::print_documents;
use crate::{
    args::{GlobalArguments, HypervisorNames},
    exit::{Code, CommandFailure},
    input::Input,
};

pub(super) fn cordon(global: &GlobalArguments, names: &HypervisorNames) -> Result<Code, CommandFailure> {
    change(global, |documents| names.set(documents, |spec| spec.unschedulable = true))
}

pub(super) fn uncordon(global: &GlobalArguments, names: &HypervisorNames) -> Result<Code, CommandFailure> {
    change(global, |documents| {
        names.set(documents, |spec| {
            spec.unschedulable = false;
            spec.drain = false;
        })
    })
}

pub(super) fn drain(global: &GlobalArguments, names: &HypervisorNames) -> Result<Code, CommandFailure> {
    change(global, |documents| {
        names.set(documents, |spec| {
            spec.unschedulable = true;
            spec.drain = true;
        })
    })
}

/// Marks the documents. Passes remove them once nothing relies on the machines.
pub(super) fn delete(global: &GlobalArguments, names: &HypervisorNames) -> Result<Code, CommandFailure> {
    let now = Time(Timestamp::now());
    change(global, |documents| {
        names.change(documents, |machine| {
            machine.metadata.deletion_timestamp.get_or_insert_with(|| now.clone());
        })
    })
}

fn change(
    global: &GlobalArguments,
    change: impl FnOnce(&mut Documents) -> Result<(), CommandFailure>,
) -> Result<Code, CommandFailure> {
    let input = Input::read_some(&global.files)?;
    let changed = input.documents().and_then(|mut documents| change(&mut documents).map(|()| documents));
    print_documents(&changed.map_err(|failure| failure.with_echo(&input))?)?;
    Ok(Code::Done)
}

impl HypervisorNames {
    fn set(&self, documents: &mut Documents, set: impl Fn(&mut HypervisorSpec)) -> Result<(), CommandFailure> {
        self.change(documents, |machine| set(&mut machine.spec))
    }

    fn change(&self, documents: &mut Documents, change: impl Fn(&mut Hypervisor)) -> Result<(), CommandFailure> {
        for name in &self.names {
            let Some(document) = documents.hypervisors.get_mut(name) else {
                let there: Vec<String> = documents.hypervisors.keys().map(ToString::to_string).collect();
                let help = match there.as_slice() {
                    [] => "the documents contain no Hypervisor".to_owned(),
                    _ => format!("the documents contain {}", there.join(", ")),
                };
                return Err(CommandFailure::usage(format!("hypervisor {name} not found"), help));
            };
            change(document);
        }
        Ok(())
    }
}
