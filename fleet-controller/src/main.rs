//! `keelway-fleet-controller`: registers workload clusters in a fleet, observes their heartbeats, and places objects in them.

use std::{net::SocketAddr, path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};
use keelway_component::daemon;
use keelway_fleet_controller::{FleetControllerOptions, FleetHost};

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
        /// Loopback address of the health server, or 0.0.0.0 in a pod of a Kubernetes cluster. It requires no authentication.
        #[arg(long, value_name = "ADDRESS:PORT", value_parser = daemon::loopback_or_pod)]
        health: SocketAddr,
        /// Unix socket of the metrics server, in a directory of its own.
        #[arg(long, value_name = "FILE")]
        metrics: Option<PathBuf>,
    },
    /// In a Kubernetes cluster that hosts a fleet: apply the first bindings in the fleet, and report when it is ready.
    Host {
        /// Directory with kubeconfig.json, the identity that it names, and bindings.json.
        #[arg(long, value_name = "DIRECTORY")]
        files: PathBuf,
        /// Namespace of the control plane, to which the Events are written.
        #[arg(long)]
        namespace: String,
    },
}

fn main() -> ExitCode {
    match FleetControllerArguments::parse().program {
        FleetControllerCommand::Run { config, identity, health, metrics } => {
            let process = FleetControllerOptions { config, identity, health, metrics };
            daemon::run(|stop| async move {
                Box::pin(keelway_fleet_controller::run(&process, stop.cancelled_owned())).await
            })
        }
        FleetControllerCommand::Host { files, namespace } => {
            let host = FleetHost { files, namespace };
            daemon::run(|stop| async move { host.run(stop.cancelled_owned()).await })
        }
    }
}
