//! `keelway-fleet-agent`: runs a fleet's objects in a workload cluster.

use std::{error::Error, io, path::PathBuf, process::ExitCode};

use clap::{ArgAction, Parser, Subcommand};
use keelway_base::{error_chain::ErrorChain, signals::TerminationSignals};
use keelway_fleet_agent::{AgentDuties, AgentOptions, HealthAddresses, run};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

/// Run a fleet's objects in a workload cluster.
#[derive(Debug, Parser)]
#[command(name = "keelway-fleet-agent", version)]
struct FleetAgentArguments {
    #[command(subcommand)]
    program: FleetAgentCommand,
}

#[derive(Debug, Subcommand)]
enum FleetAgentCommand {
    /// Connect this cluster with its fleet, and apply the objects that the fleet places here.
    Run {
        /// File with the fleet token.
        #[arg(long, value_name = "FILE")]
        token: PathBuf,
        /// Namespace of the agent, in which no object of the fleet is applied.
        #[arg(long, env = "POD_NAMESPACE", value_name = "NAME")]
        namespace: String,
        /// Directory for what was applied last. It has to outlive the container.
        #[arg(long, value_name = "DIRECTORY")]
        state: PathBuf,
        /// Kubeconfig of this cluster. The default is the ServiceAccount of the pod.
        #[arg(long, value_name = "FILE")]
        kubeconfig: Option<PathBuf>,
        /// Address of health and metrics, which require no authentication. `:PORT` means all addresses.
        #[arg(long, value_name = "ADDRESS:PORT")]
        health: Option<HealthAddresses>,
        /// Apply the objects that the fleet places here. With false, another orchestrator submits them, and the agent only reports those with the
        /// label fleet.keelway.dev/schedule: "true".
        #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set)]
        orchestration_enabled: bool,
        /// Let the fleet look for another cluster by itself for what runs here. With false, failover moves nothing away.
        #[arg(long, value_name = "BOOL", default_value_t = true, action = ArgAction::Set)]
        rescheduling_enabled: bool,
    },
}

fn main() -> ExitCode {
    let FleetAgentCommand::Run {
        token,
        namespace,
        state,
        kubeconfig,
        health,
        orchestration_enabled: orchestrates,
        rescheduling_enabled: reschedules,
    } = FleetAgentArguments::parse().program;
    let duties = AgentDuties { orchestrates, reschedules };
    let options = AgentOptions { token, namespace, state, kubeconfig, health: health.unwrap_or_default(), duties };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().json().with_env_filter(filter).with_writer(io::stderr).init();
    match start(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{}", ErrorChain(&*error));
            ExitCode::FAILURE
        }
    }
}

/// One thread is enough: the agent waits for two API servers.
fn start(options: &AgentOptions) -> Result<(), Box<dyn Error>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let stop = CancellationToken::new();
        TerminationSignals::new()?.cancel(stop.clone());
        Ok(Box::pin(run(options, stop)).await?)
    })
}
