//! `keelway apply`.

use clap::Args;
use keelway_manager_client::proto::{Applied, Outcome};

use super::{client, failed, kubectl_name};
use crate::{
    args::{GlobalArguments, ServerArgument},
    commands::{print, session::runtime},
    exit::{Code, CommandFailure},
    input::Input,
};

#[derive(Args)]
pub(crate) struct ApplyArguments {
    #[command(flatten)]
    pub(crate) server: ServerArgument,
}

pub(in crate::commands) fn run(global: &GlobalArguments, arguments: &ApplyArguments) -> Result<Code, CommandFailure> {
    let input = Input::read(&global.files)?;
    // The command reports faults with their lines of the input. The manager checks the documents against each other.
    input.documents_apart()?;
    let runtime = runtime()?;
    let mut client = client(&runtime, &arguments.server);
    let applied = runtime.block_on(client.apply(input.bytes)).map_err(failed)?;
    print(&applied.iter().map(line).collect::<String>())?;
    Ok(Code::Done)
}

pub(super) fn line(applied: &Applied) -> String {
    let outcome = match applied.outcome() {
        Outcome::Created => "created",
        Outcome::Configured => "configured",
        Outcome::Unchanged | Outcome::Unspecified => "unchanged",
    };
    format!("{} {outcome}\n", kubectl_name(applied.name.as_ref()))
}
