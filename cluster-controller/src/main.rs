//! `keelway-cluster-controller`: the programs that connect a control plane with its workers.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use keelway_cluster_controller::{controller, controller::ControllerOptions, egress, gateway};
use keelway_component::daemon;

/// Run the programs that connect a control plane with its workers.
#[derive(Debug, Parser)]
#[command(name = "keelway-cluster-controller", version)]
struct ClusterControllerArguments {
    #[command(subcommand)]
    program: ClusterControllerCommand,
}

#[derive(Debug, Subcommand)]
enum ClusterControllerCommand {
    /// Manage the workers of a cluster: certificates, addresses, policies and add-ons.
    Run {
        #[command(flatten)]
        configured: Configured,
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
    /// Run a VPN gateway for workers. Requires no privileges.
    Gateway(Configured),
    /// Run the egress of an API server, which opens its connections through two sockets.
    Egress(Configured),
}

#[derive(Debug, Args)]
struct Configured {
    /// Configuration file, in YAML or JSON.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

fn main() -> ExitCode {
    match ClusterControllerArguments::parse().program {
        ClusterControllerCommand::Run { configured: Configured { config }, identity, health, metrics } => {
            let process = ControllerOptions { config, identity, health, metrics };
            daemon::run(|stop| async move { Box::pin(controller::run(&process, stop.cancelled_owned())).await })
        }
        ClusterControllerCommand::Gateway(configured) => {
            daemon::run(|stop| async move { gateway::run(&configured.config, stop).await })
        }
        ClusterControllerCommand::Egress(configured) => {
            daemon::run(|stop| async move { egress::run(&configured.config, stop).await })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn health_at(address: &str) -> Result<ClusterControllerArguments, clap::Error> {
        let words = ["keelway-cluster-controller", "run", "--config=a.json", "--identity=a"];
        ClusterControllerArguments::try_parse_from(
            words.map(str::to_owned).into_iter().chain([format!("--health={address}")]),
        )
    }

    #[test]
    fn health_is_served_on_loopback_only() {
        for address in ["127.0.0.1:20001", "[::1]:20001"] {
            assert!(health_at(address).is_ok(), "{address}");
        }
        for (address, help) in [("0.0.0.0:20001", "must be a loopback address"), ("127.0.0.1", "use a form such as")] {
            let error = health_at(address).unwrap_err().to_string();
            assert!(error.contains("--health <ADDRESS:PORT>") && error.contains(help), "{error}");
        }
    }
}
