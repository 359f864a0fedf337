//! `keelway-manager`: keeps every cluster as its documents say.

mod definitions;

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use anyhow::Context as _;
use clap::{Parser, Subcommand};
use keelway_api::jiff::Timestamp;
use keelway_manager::{
    Reports,
    client::DEFAULT_SOCKET,
    directory::Directory,
    kubernetes::Kubernetes,
    server::{Listener, serve},
};
use keelway_reconciler::{
    Changing, ConnectedMachines, Context, DialledComponents, PkiMinter, Run, Silent, Store, keep,
};
use kube::{
    Config,
    config::{KubeConfigOptions, Kubeconfig},
};
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
    /// Prints the definitions of Keelway's kinds, which a management cluster needs.
    #[command(after_help = "Example:\n  keelway-manager crds | kubectl apply --server-side -f -")]
    Crds(CrdsArguments),
}

#[derive(Debug, clap::Args)]
struct CrdsArguments {
    /// Writes a file for each into this directory instead.
    #[arg(long, value_name = "DIRECTORY")]
    directory: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct RunArguments {
    /// Where documents are: dir:PATH, a directory with one file a document, which is made where there is none; or kubernetes, custom
    /// resources of a cluster.
    #[arg(long, value_name = "STORE", value_parser = store)]
    store: StoreArgument,
    /// With a store in Kubernetes: how its API is reached. Else as a pod of that cluster reaches it.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// With a directory: the socket that `keelway apply`, `get`, `edit`, `delete` and `watch` ask, of mode 0660.
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET)]
    listen: PathBuf,
    /// Archives of images, which go to machines instead of those of a registry.
    #[arg(long, value_name = "DIRECTORY", default_value = "/var/cache/keelway/images")]
    images: PathBuf,
}

#[derive(Debug, Clone)]
enum StoreArgument {
    Directory(PathBuf),
    Kubernetes,
}

fn store(text: &str) -> Result<StoreArgument, &'static str> {
    match text.split_once(':') {
        Some(("dir", path)) if !path.is_empty() => Ok(StoreArgument::Directory(path.into())),
        None if text == "kubernetes" => Ok(StoreArgument::Kubernetes),
        _ => Err("write dir:PATH, such as dir:/var/lib/keelway-manager, or kubernetes"),
    }
}

fn main() -> ExitCode {
    let arguments = match Arguments::parse().command {
        Command::Run(arguments) => arguments,
        Command::Crds(CrdsArguments { directory }) => return ended(definitions::write(directory.as_deref())),
    };
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

/// The end of a command for people.
fn ended(done: anyhow::Result<()>) -> ExitCode {
    let Err(error) = done else { return ExitCode::SUCCESS };
    let _ = writeln!(io::stderr(), "keelway-manager: {error:#}");
    ExitCode::FAILURE
}

#[tokio::main(worker_threads = 2)]
async fn run(arguments: RunArguments) -> anyhow::Result<()> {
    let stop = CancellationToken::new();
    cancel_on_signal(stop.clone())?;
    match &arguments.store {
        StoreArgument::Directory(path) => {
            let store = Arc::new(Directory::open(path)?);
            let listener = Listener::bind(&arguments.listen)?;
            let serving = tokio::spawn(serve(listener, store.clone(), stop.clone()));
            tracing::info!(store = %path.display(), "begins");
            over(store, arguments.images, stop).await;
            serving.await??;
        }
        StoreArgument::Kubernetes => {
            let client = client(arguments.kubeconfig.as_deref()).await?;
            tracing::info!(store = "kubernetes", "begins");
            over(Arc::new(Kubernetes::open(client)), arguments.images, stop).await;
        }
    }
    tracing::info!("ends");
    Ok(())
}

/// Passes over a store.
async fn over<S: Store + Changing + 'static>(store: Arc<S>, images: PathBuf, stop: CancellationToken) {
    let machines = Arc::new(ConnectedMachines::new(images));
    let components = Arc::new(DialledComponents::new(machines.clone()));
    let run = Run { stop, progress: Arc::new(Silent) };
    let context = Context { store: store.clone(), machines, components, clock: Arc::new(Timestamp::now), run };
    let mut minter = PkiMinter::new(StdRng::from_rng(&mut rand::rng()));
    keep(&context, &mut minter, &*store, &mut Reports::default()).await;
    context.machines.part().await;
}

/// The API of a store in Kubernetes.
async fn client(kubeconfig: Option<&Path>) -> anyhow::Result<kube::Client> {
    let config = match kubeconfig {
        Some(path) => {
            let read = Kubeconfig::read_from(path).with_context(|| format!("could not read {}", path.display()))?;
            let made = Config::from_custom_kubeconfig(read, &KubeConfigOptions::default()).await;
            made.with_context(|| format!("could not use {}", path.display()))?
        }
        None => Config::incluster().context("this is no pod of a cluster: give --kubeconfig")?,
    };
    kube::Client::try_from(config).context("could not make a client of the kubeconfig")
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
