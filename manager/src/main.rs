//! `keelway-manager`: keeps every cluster as its documents say.

use std::{io, path::PathBuf, process::ExitCode, sync::Arc};

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use keelway_api::jiff::Timestamp;
use keelway_manager::{
    Reports,
    client::DEFAULT_SOCKET,
    directory::Directory,
    server::{Listener, serve},
};
use keelway_reconciler::{ConnectedMachines, Context, DialledComponents, PkiMinter, Run, Silent, keep};
use rand::{SeedableRng, rngs::StdRng};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::EnvFilter;

/// Keeps every cluster as its documents say.
#[derive(Debug, Parser)]
#[command(name = "keelway-manager", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs until SIGTERM or SIGINT.
    ///
    /// What it placed goes on running when it ends.
    #[command(after_help = "Example:\n  keelway-manager run --store dir:/var/lib/keelway-manager")]
    Run(RunArguments),
}

#[derive(Debug, clap::Args)]
struct RunArguments {
    /// Where documents are: dir:PATH, a directory with one file a document, which is made where there is none.
    #[arg(long, value_name = "STORE", value_parser = store)]
    store: PathBuf,
    /// The socket that `keelway apply`, `get`, `edit`, `delete` and `watch` ask, of mode 0660.
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET)]
    listen: PathBuf,
    /// Archives of images, which go to machines instead of those of a registry.
    #[arg(long, value_name = "DIRECTORY", default_value = "/var/cache/keelway/images")]
    images: PathBuf,
}

fn store(text: &str) -> Result<PathBuf, &'static str> {
    match text.split_once(':') {
        Some(("dir", path)) if !path.is_empty() => Ok(path.into()),
        _ => Err("write dir:PATH, such as dir:/var/lib/keelway-manager"),
    }
}

fn main() -> ExitCode {
    let Command::Run(arguments) = Arguments::parse().command;
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    tracing_subscriber::fmt().json().with_env_filter(filter).with_writer(io::stderr).init();
    match run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

#[tokio::main(worker_threads = 2)]
async fn run(arguments: RunArguments) -> anyhow::Result<()> {
    let stop = CancellationToken::new();
    cancel_on_signal(stop.clone())?;
    let store = Arc::new(Directory::open(&arguments.store)?);
    let listener = Listener::bind(&arguments.listen)?;
    let serving = tokio::spawn(serve(listener, store.clone(), stop.clone()));
    let machines = Arc::new(ConnectedMachines::new(arguments.images));
    let components = Arc::new(DialledComponents::new(machines.clone()));
    let run = Run { stop, progress: Arc::new(Silent) };
    let context = Context { store: store.clone(), machines, components, clock: Arc::new(Timestamp::now), run };
    let mut minter = PkiMinter::new(StdRng::from_rng(&mut rand::rng()));
    tracing::info!(store = %arguments.store.display(), "begins");
    keep(&context, &mut minter, &*store, &mut Reports::default()).await;
    context.machines.part().await;
    serving.await??;
    tracing::info!("ends");
    Ok(())
}

fn cancel_on_signal(stop: CancellationToken) -> anyhow::Result<()> {
    let mut interrupt = signal(SignalKind::interrupt()).context("could not listen for SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("could not listen for SIGTERM")?;
    tokio::spawn(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        stop.cancel();
    });
    Ok(())
}
