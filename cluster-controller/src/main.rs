//! `keelway-cluster-controller`: the programs that stand between a control plane and its workers.

mod daemon;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use keelway_cluster_controller::{controller, controller::ControllerOptions, egress, gateway};

/// The programs that stand between a control plane and its workers.
#[derive(Debug, Parser)]
#[command(name = "keelway-cluster-controller", version)]
struct ClusterControllerArguments {
    #[command(subcommand)]
    program: ClusterControllerCommand,
}

#[derive(Debug, Subcommand)]
enum ClusterControllerCommand {
    /// Serves the cluster's workers: certificates, addresses, policies, add-ons.
    Run {
        #[command(flatten)]
        configured: Configured,
        /// The name of this replica, which no other one has.
        #[arg(long)]
        identity: String,
        /// Where health is asked for, without authentication: an address of loopback.
        #[arg(long, value_name = "ADDRESS:PORT", value_parser = loopback)]
        health: SocketAddr,
        /// Where metrics are asked for: a socket, in a folder of the program's own.
        #[arg(long, value_name = "FILE")]
        metrics: Option<PathBuf>,
    },
    /// The end of the VPN that workers reach. Needs no privilege.
    Gateway(Configured),
    /// What makes an API server's connections, on two sockets beside it.
    Egress(Configured),
}

#[derive(Debug, Args)]
struct Configured {
    /// The configuration, YAML or JSON.
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

/// An address that others on the machine reach, and nobody else.
fn loopback(text: &str) -> Result<SocketAddr, &'static str> {
    let address: SocketAddr = text.parse().map_err(|_| "write it as 127.0.0.1:20001")?;
    if address.ip().is_loopback() { Ok(address) } else { Err("anybody could read it; use a loopback address") }
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
    fn health_is_told_on_loopback_only() {
        for address in ["127.0.0.1:20001", "[::1]:20001"] {
            assert!(health_at(address).is_ok(), "{address}");
        }
        for (address, help) in [("0.0.0.0:20001", "use a loopback address"), ("127.0.0.1", "write it as")] {
            let error = health_at(address).unwrap_err().to_string();
            assert!(error.contains("--health <ADDRESS:PORT>") && error.contains(help), "{error}");
        }
    }
}
