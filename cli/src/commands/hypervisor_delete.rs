//! `keelway hypervisor delete`.

use keelway_api::{Documents, Time, jiff::Timestamp};

use super::{named::missing_document_error, print_documents};
use crate::{
    args::{GlobalArguments, HypervisorNames},
    exit::{Code, CommandFailure},
    input::Input,
};

pub(super) fn run(global: &GlobalArguments, names: &HypervisorNames) -> Result<Code, CommandFailure> {
    let input = Input::read_some(&global.files)?;
    let documents = delete(&input, names).map_err(|failure| failure.with_echo(&input))?;
    print_documents(&documents)?;
    Ok(Code::Done)
}

/// Marks the documents. Passes remove them once nothing relies on the machines.
fn delete(input: &Input, names: &HypervisorNames) -> Result<Documents, CommandFailure> {
    let mut documents = input.documents()?;
    for name in &names.names {
        let there = documents.hypervisors.keys().map(ToString::to_string).collect();
        let missing = || missing_document_error("Hypervisor", name.as_str(), &there);
        let machine = documents.hypervisors.get_mut(name).ok_or_else(missing)?;
        machine.metadata.deletion_timestamp.get_or_insert(Time(Timestamp::now()));
    }
    Ok(documents)
}
