//! `keelway hypervisor adopt`.

use std::io::Write;

use clap::Args;
use keelway_api::name::{HypervisorName, InstallationId};

use super::{
    print_documents,
    session::{PipeSession, runtime_of_passes},
};
use crate::{
    args::GlobalArguments,
    exit::{Code, CommandFailure},
    input::Input,
};

#[derive(Args)]
pub(crate) struct AdoptArguments {
    /// The installation that the hypervisors obey now
    #[arg(long, value_name = "ID")]
    pub(crate) from: InstallationId,
    /// A hypervisor to adopt; can be repeated [default: all that obey that installation]
    #[arg(long = "name", value_name = "NAME")]
    pub(crate) names: Vec<HypervisorName>,
}

pub(super) fn run(global: &GlobalArguments, arguments: &AdoptArguments) -> Result<Code, CommandFailure> {
    let input = Input::read_some(&global.files)?;
    let documents = input.documents().map_err(|failure| failure.with_echo(&input))?;
    let mut session = PipeSession::new(global, documents);
    let (from, names) = (&arguments.from, &arguments.names);
    let adopted = keelway_reconciler::adopt(&session.context, &mut session.minter, from, names);
    let adopted = runtime_of_passes()?.block_on(adopted);
    drop(session.context);
    match adopted {
        Err(error) if session.pipe.saved() => {
            // A record may have been written to a machine, so that the command prints the documents of the last save.
            print_documents(&session.pipe.documents())?;
            Err(CommandFailure::other(error))
        }
        Err(error) => Err(CommandFailure::other(error).with_echo(&input)),
        Ok((documents, names)) => {
            print_documents(&documents)?;
            session.pipe.done();
            print_result(global, &names);
            Ok(Code::Done)
        }
    }
}

fn print_result(global: &GlobalArguments, names: &[HypervisorName]) {
    if !global.quiet {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let _ = writeln!(std::io::stderr(), "adopted: {}", names.join(", "));
    }
}
