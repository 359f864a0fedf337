//! `keelway fleet`.

use super::fleet_inject;
use crate::{
    args::{FleetCommand, GlobalArguments},
    exit::{Code, CommandFailure},
};

pub(super) fn run(global: &GlobalArguments, command: FleetCommand) -> Result<Code, CommandFailure> {
    match command {
        FleetCommand::Inject(arguments) => fleet_inject::run(global, *arguments),
    }
}
