//! `keelway fleet`.

use clap::Subcommand;

use crate::commands::fleet_inject::FleetInjectArguments;

#[derive(Subcommand)]
pub(crate) enum FleetCommand {
    /// Add a fleet to the documents: a Cluster that is one Kubernetes API over many clusters
    #[command(
        after_help = "Example:\n  keelway fleet inject --name f1 < world.yaml | keelway reconcile > f1.yaml\n  keelway fleet inject --name f1 --replicas 3 --ingress-replicas 2 < world.yaml"
    )]
    Inject(Box<FleetInjectArguments>),
}
