//! `keelway fleet`.

use super::{
    fleet_agent_manifests, fleet_cluster, fleet_convert, fleet_diff, fleet_drain, fleet_explain, fleet_inject,
    fleet_manifests, fleet_observe, fleet_status, fleet_token,
};
use crate::{
    args::{FleetCommand, GlobalArguments},
    exit::{Code, CommandFailure},
};

pub(super) fn run(global: &GlobalArguments, command: FleetCommand) -> Result<Code, CommandFailure> {
    match command {
        FleetCommand::Inject(arguments) => fleet_inject::run(global, *arguments),
        FleetCommand::Manifests(arguments) => fleet_manifests::run(*arguments),
        FleetCommand::Kubeconfig(arguments) => fleet_manifests::kubeconfig(arguments),
        FleetCommand::Token(command) => fleet_token::run(&command),
        FleetCommand::AgentManifests(arguments) => fleet_agent_manifests::run(&arguments),
        FleetCommand::Cluster(command) => fleet_cluster::run(global, &command),
        FleetCommand::Cordon(arguments) => fleet_drain::cordon(&arguments),
        FleetCommand::Drain(arguments) => fleet_drain::drain(global, &arguments),
        FleetCommand::Uncordon(arguments) => fleet_drain::uncordon(&arguments),
        FleetCommand::Diff(arguments) => fleet_diff::run(global, &arguments),
        FleetCommand::Explain(arguments) => fleet_explain::run(&arguments),
        FleetCommand::Convert(arguments) => fleet_convert::run(&arguments),
        FleetCommand::Observe(arguments) => fleet_observe::run(&arguments),
        FleetCommand::Status(arguments) => fleet_status::run(&arguments),
    }
}
