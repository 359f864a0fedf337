//! `keelway hypervisor revoke`.

use keelway_api::{Documents, jiff::Timestamp};
use keelway_reconciler::{EnrollFault, revoke_agent};

use super::{print_documents, session::minter};
use crate::{
    args::{GlobalArguments, HypervisorNames},
    exit::{Code, CommandFailure},
    input::Input,
};

pub(super) fn run(global: &GlobalArguments, names: &HypervisorNames) -> Result<Code, CommandFailure> {
    let input = Input::read_some(&global.files)?;
    let revoked = input.documents().and_then(|documents| revoke(documents, names));
    print_documents(&revoked.map_err(|failure| failure.with_echo(&input))?)?;
    Ok(Code::Done)
}

fn revoke(documents: Documents, names: &HypervisorNames) -> Result<Documents, CommandFailure> {
    let (now, mut minter) = (Timestamp::now(), minter());
    names.names.iter().try_fold(documents, |documents, name| {
        revoke_agent(&documents, name, &mut minter, now).map_err(|error| match error {
            EnrollFault::Missing(_) => {
                CommandFailure::usage(error.to_string(), "list hypervisors with `keelway hypervisor get`")
            }
            EnrollFault::Never(_) => {
                CommandFailure::usage(error.to_string(), "delete its document, or block its address")
            }
            other
            @ (EnrollFault::Enrolled(_) | EnrollFault::Ttl | EnrollFault::Authority(_) | EnrollFault::Pass(_)) => {
                CommandFailure::other(other)
            }
        })
    })
}
