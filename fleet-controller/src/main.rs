//! `keelway-fleet-controller`: registers workload clusters in a fleet, observes their heartbeats, and places objects in them.

use std::{net::SocketAddr, path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};
use keelway_component::daemon;
use keelway_fleet_controller::FleetControllerOptions;

/// Run the controller of a fleet.
#[derive(Debug, Parser)]
#[command(name = "keelway-fleet-controller", version)]
struct FleetControllerArguments {
    #[command(subcommand)]
    program: FleetControllerCommand,
}

#[derive(Debug, Subcommand)]
enum FleetControllerCommand {
    /// Register workload clusters, observe their heartbeats, and place objects in them.
    Run {
        /// Configuration file, in YAML or JSON.
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// Unique name of this replica.
        #[arg(long)]
        identity: String,
        /// Loopback address of the health server, which requires no authentication.
        #[arg(long, value_name = "ADDRESS:PORT", value_parser = daemon::loopback)]
        health: SocketAddr,
        /// Unix socket of the metrics server, in a directory of its own.
        #[arg(long, value_name = "FILE")]
        metrics: Option<PathBuf>,
    },
}

fn main() -> ExitCode {
    let FleetControllerCommand::Run { config, identity, health, metrics } = FleetControllerArguments::parse().program;
    let process = FleetControllerOptions { config, identity, health, metrics };
    daemon::run(|stop| async move { Box::pin(keelway_fleet_controller::run(&process, stop.cancelled_owned())).await })
}
