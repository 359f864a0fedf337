//! `keelway-hypervisor-agent`: keeps a machine's control plane components running.

use std::{path::PathBuf, process::ExitCode};

use anyhow::Context;
use clap::{ArgAction, Parser, Subcommand};
use keelway_hypervisor_agent::agent::{Listener, own_machine, run};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

const EXAMPLE: &str = "\
Example:
  keelway-hypervisor-agent run --runtime-endpoint unix:///run/containerd/containerd.sock \\
    --listen unix:///run/keelway/agent.sock";

/// Keeps the control plane components of one machine running, with nobody else's help.
#[derive(Parser)]
#[command(name = "keelway-hypervisor-agent", version, after_help = EXAMPLE)]
struct Arguments {
    /// Say more on stderr
    #[arg(short, long, action = ArgAction::Count, global = true)]
    verbose: u8,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run until SIGTERM; what runs on the machine goes on running after that
    #[command(after_help = EXAMPLE)]
    Run {
        /// The socket of the container runtime
        #[arg(long, default_value = "unix:///run/containerd/containerd.sock", value_name = "ENDPOINT", value_parser = socket)]
        runtime_endpoint: PathBuf,
        /// The socket to make, for the process that drives this machine
        #[arg(long, default_value = "unix:///run/keelway/agent.sock", value_name = "ENDPOINT", value_parser = socket)]
        listen: PathBuf,
        /// A directory of image archives to look into before asking a registry
        #[arg(long, value_name = "DIRECTORY")]
        image_archives: Option<PathBuf>,
    },
}

/// `unix:///PATH`, or the path alone.
fn socket(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text.strip_prefix("unix://").unwrap_or(text));
    if path.is_absolute() { Ok(path) } else { Err("write unix:// and the absolute path of a socket".to_owned()) }
}

fn main() -> ExitCode {
    let Arguments { verbose, command } = Arguments::parse();
    let level = if verbose == 0 { "warn,keelway_hypervisor_agent=info" } else { "info,keelway_hypervisor_agent=debug" };
    tracing_subscriber::fmt()
        .with_env_filter(EnvFilter::new(level))
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .init();
    match serve(command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

#[tokio::main(flavor = "current_thread")]
async fn serve(command: Command) -> anyhow::Result<()> {
    let Command::Run { runtime_endpoint, listen, image_archives } = command;
    let stop = CancellationToken::new();
    let mut signals = [SignalKind::terminate(), SignalKind::interrupt()].map(signal);
    let machine = own_machine(&runtime_endpoint, image_archives)?;
    let listener = Listener::bind(&listen)?;
    sd_notify::notify(&[sd_notify::NotifyState::Ready]).context("cannot tell that the agent is ready")?;
    tokio::spawn({
        let stop = stop.clone();
        async move {
            let received = signals.iter_mut().filter_map(|signal| signal.as_mut().ok());
            futures::future::select_all(received.map(|signal| Box::pin(signal.recv()))).await;
            stop.cancel();
        }
    });
    Ok(run(machine, listener, stop).await?)
}
