//! `keelway hypervisor cordon`, `uncordon` and `drain`: what may be on a hypervisor.

use keelway_api::{Documents, hypervisor::HypervisorSpec, role::Role};

use super::print_documents;
use crate::{
    args::{DrainArguments, Global, HypervisorNames},
    exit::{Code, Failure},
    input::Input,
};

pub(super) fn cordon(global: &Global, names: &HypervisorNames) -> Result<Code, Failure> {
    change(global, |documents| names.set(documents, |spec| spec.unschedulable = true))
}

pub(super) fn uncordon(global: &Global, names: &HypervisorNames) -> Result<Code, Failure> {
    change(global, |documents| {
        names.set(documents, |spec| {
            spec.unschedulable = false;
            spec.drain = false;
        })
    })
}

pub(super) fn drain(global: &Global, arguments: &DrainArguments) -> Result<Code, Failure> {
    change(global, |documents| {
        if !arguments.leave_etcd {
            arguments.hypervisors.refuse_members(documents)?;
        }
        arguments.hypervisors.set(documents, |spec| {
            spec.unschedulable = true;
            spec.drain = true;
        })
    })
}

fn change(global: &Global, change: impl FnOnce(&mut Documents) -> Result<(), Failure>) -> Result<Code, Failure> {
    let input = Input::read_some(&global.files)?;
    let changed = input.documents().and_then(|mut documents| change(&mut documents).map(|()| documents));
    print_documents(&changed.map_err(|failure| failure.echoing(&input))?)?;
    Ok(Code::Done)
}

impl HypervisorNames {
    fn set(&self, documents: &mut Documents, set: impl Fn(&mut HypervisorSpec)) -> Result<(), Failure> {
        for name in &self.names {
            let Some(document) = documents.hypervisors.get_mut(name) else {
                let there: Vec<String> = documents.hypervisors.keys().map(ToString::to_string).collect();
                let mend = match there.as_slice() {
                    [] => "the documents hold no Hypervisor".to_owned(),
                    _ => format!("the documents hold {}", there.join(", ")),
                };
                return Err(Failure::usage(format!("there is no hypervisor {name}"), mend));
            };
            set(&mut document.spec);
        }
        Ok(())
    }

    /// Members of a store do not move: each would have to be replaced by one with other data.
    fn refuse_members(&self, documents: &Documents) -> Result<(), Failure> {
        let members = documents.components.iter().filter(|(_, component)| component.spec.role == Role::Etcd);
        let here = members.filter(|(_, component)| self.names.contains(&component.spec.hypervisor));
        let names: Vec<String> = here
            .map(|(pod, component)| {
                format!("{}/{} on {}", component.spec.cluster, pod.component, component.spec.hypervisor)
            })
            .collect();
        if names.is_empty() {
            return Ok(());
        }
        Err(Failure::usage(
            format!("members of stores do not move yet: {}", names.join(", ")),
            "add --leave-etcd to move all but them",
        ))
    }
}
