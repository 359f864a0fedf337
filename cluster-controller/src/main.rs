//! `keelway-cluster-controller`: the programs that stand between a control plane and its workers.

mod daemon;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use keelway_cluster_controller::{controller, egress, gateway};

/// The programs that stand between a control plane and its workers.
#[derive(Debug, Parser)]
#[command(name = "keelway-cluster-controller", version)]
struct Arguments {
    #[command(subcommand)]
    program: Program,
}

#[derive(Debug, Subcommand)]
enum Program {
    /// Serves the cluster's workers: certificates, addresses, policies, add-ons.
    Run {
        #[command(flatten)]
        configured: Configured,
        /// The name of this replica, which no other one has.
        #[arg(long)]
        identity: String,
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
    match Arguments::parse().program {
        Program::Run { configured, identity } => daemon::run(|stop| async move {
            Box::pin(controller::run(&configured.config, &identity, stop.cancelled_owned())).await
        }),
        Program::Gateway(configured) => daemon::run(|stop| async move { gateway::run(&configured.config, stop).await }),
        Program::Egress(configured) => daemon::run(|stop| async move { egress::run(&configured.config, stop).await }),
    }
}
