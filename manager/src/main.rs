//! `keelway-manager`: keeps every cluster in the state that its documents describe.

mod definitions;
mod elect;
mod store_reconciler;

use std::{
    io::{self, Write},
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use anyhow::{Context as _, bail};
use clap::{Parser, Subcommand};
use elect::ElectArguments;
use keelway_api::jiff::Timestamp;
use keelway_base::signals::TerminationSignals;
use keelway_http_proxy::{KubeClientConfig, ProxySettings};
use keelway_lease::Election;
use keelway_manager::{
    fenced_machines::FencedMachines,
    health::{self, HealthListener},
    metrics::ManagerMetrics,
    server::{ManagerUnixSocket, serve},
    traces::Traces,
};
use keelway_manager_client::client::DEFAULT_SOCKET;
use keelway_planner::Waves;
use keelway_reconciler::{ConnectedMachines, Driver, Machines};
use keelway_stores::{DocumentSource, directory::DirectoryStore, kubernetes::KubernetesStore};
use store_reconciler::StoreReconciler;
use tokio_util::sync::CancellationToken;
use tracing_subscriber::{
    EnvFilter, Layer as _,
    filter::{FilterExt as _, filter_fn},
    layer::SubscriberExt as _,
    util::SubscriberInitExt as _,
};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Reconciles the documents of all clusters continuously.
#[derive(Debug, Parser)]
#[command(name = "keelway-manager", version)]
struct ManagerArguments {
    #[command(subcommand)]
    command: ManagerCommand,
}

#[derive(Debug, Subcommand)]
enum ManagerCommand {
    /// Run the manager until SIGTERM or SIGINT.
    ///
    /// Components keep running when the manager exits.
    #[command(after_help = "Example:\n  keelway-manager run --store dir:/var/lib/keelway-manager")]
    Run(ManagerRunArguments),
    /// Print the CustomResourceDefinitions that a management cluster needs.
    #[command(after_help = "Example:\n  keelway-manager crds | kubectl apply --server-side -f -")]
    Crds(CrdsArguments),
}

#[derive(Debug, clap::Args)]
struct CrdsArguments {
    /// Write one file for each definition into DIRECTORY instead of stdout.
    #[arg(long, value_name = "DIRECTORY")]
    directory: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct ManagerRunArguments {
    /// The store of the documents: dir:PATH, a directory with one file for each document, which is created if it is missing; or kubernetes,
    /// for custom resources of a management cluster.
    #[arg(long, value_name = "STORE", value_parser = store)]
    store: StoreArgument,
    /// The kubeconfig of the management cluster. The default is the service account of the pod. Only for the store kubernetes. The HTTP proxy in
    /// HTTPS_PROXY applies to its API server, unless NO_PROXY has it.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// The Unix socket for `keelway apply`, `get`, `edit`, `delete` and `watch`, with mode 0660. Only for a directory.
    #[arg(long, value_name = "PATH", default_value = DEFAULT_SOCKET)]
    listen: PathBuf,
    /// The address of `/healthz`, `/readyz` and `/metrics`, without authentication; `:PORT` for all addresses, or `off`.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = health::DEFAULT_ADDRESS, value_parser = metrics_listen)]
    metrics_listen: MetricsListen,
    /// The directory of image archives, which the manager loads on machines so that they need no registry.
    #[arg(long, value_name = "DIRECTORY", default_value = "/var/cache/keelway/images")]
    images: PathBuf,
    /// The waves in which clusters move to a new release of Keelway: numbers or percentages of clusters. A wave starts once all clusters of
    /// the previous waves run the release and are healthy. 100% moves all clusters at once.
    #[arg(long, value_name = "WAVES", default_value_t)]
    upgrade_waves: Waves,
    #[command(flatten)]
    elect: ElectArguments,
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
        _ => Err("must be dir:PATH, such as dir:/var/lib/keelway-manager, or kubernetes"),
    }
}

/// The addresses for health and metrics. The first one that can be bound is used. If there are none, nothing is served.
#[derive(Debug, Clone)]
struct MetricsListen(Vec<SocketAddr>);

fn metrics_listen(text: &str) -> Result<MetricsListen, &'static str> {
    let help = "must be ADDRESS:PORT, such as 127.0.0.1:9743; :PORT for all addresses; or off";
    if text == "off" {
        return Ok(MetricsListen(Vec::new()));
    }
    if let Some(port) = text.strip_prefix(':') {
        let port: u16 = port.parse().map_err(|_| help)?;
        // The IPv6 address serves both families if the machine has both.
        return Ok(MetricsListen(vec![(Ipv6Addr::UNSPECIFIED, port).into(), (Ipv4Addr::UNSPECIFIED, port).into()]));
    }
    text.parse().map(|address| MetricsListen(vec![address])).map_err(|_| help)
}

fn main() -> ExitCode {
    match ManagerArguments::parse().command {
        ManagerCommand::Run(arguments) => run(arguments),
        ManagerCommand::Crds(CrdsArguments { directory }) => ended(definitions::write(directory.as_deref())),
    }
}

/// Reports the result of a command on stderr.
fn ended(done: anyhow::Result<()>) -> ExitCode {
    let Err(error) = done else { return ExitCode::SUCCESS };
    let _ = writeln!(io::stderr(), "keelway-manager: {error:#}");
    ExitCode::FAILURE
}

#[tokio::main(worker_threads = 2)]
async fn run(arguments: ManagerRunArguments) -> ExitCode {
    let traces = match Traces::begin() {
        Ok(traces) => traces,
        Err(error) => return ended(Err(error.into())),
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new("info"));
    // Each log line contains its pass as span, which has the cluster, and no spans of the steps of a pass.
    let filter = filter.and(filter_fn(|of| !of.is_span() || of.name() == "pass"));
    let log = tracing_subscriber::fmt::layer().json().with_span_list(false).with_writer(io::stderr).with_filter(filter);
    tracing_subscriber::registry().with(log).with(traces.as_ref().map(Traces::layer)).init();
    let done = manage(arguments).await;
    if let Err(error) = &done {
        tracing::error!("{error:#}");
    }
    if let Some(traces) = traces {
        traces.end().await;
    }
    if done.is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

async fn manage(arguments: ManagerRunArguments) -> anyhow::Result<()> {
    let stop = CancellationToken::new();
    TerminationSignals::new().context("cannot handle signals")?.cancel(stop.clone());
    match &arguments.store {
        StoreArgument::Directory(path) => {
            if arguments.elect.leader_elect {
                bail!("--leader-elect requires the store kubernetes; a directory has a lock instead");
            }
            let store = Arc::new(DirectoryStore::open(path)?);
            let metrics = serve_metrics(store.clone(), &arguments.metrics_listen).await?;
            let listener = ManagerUnixSocket::bind(&arguments.listen)?;
            let serving = tokio::spawn(serve(listener, store.clone(), stop.clone()));
            tracing::info!(store = %path.display(), "begins");
            let machines = Arc::new(ConnectedMachines::new(arguments.images));
            let work = StoreReconciler { store, machines, metrics, waves: arguments.upgrade_waves, events: None };
            let _ = work.run_passes(Driver::Alone, &stop).await;
            serving.await??;
        }
        StoreArgument::Kubernetes => {
            let config = config(arguments.kubeconfig.as_deref()).await?;
            over_kubernetes(&arguments, config, &stop).await?;
        }
    }
    tracing::info!("ends");
    Ok(())
}

/// Reconciles the store as its only manager, or with leader election.
async fn over_kubernetes(
    arguments: &ManagerRunArguments,
    config: KubeClientConfig,
    stop: &CancellationToken,
) -> anyhow::Result<()> {
    let connect = move || config.client();
    let client = connect().context("could not create a client from the kubeconfig")?;
    let election = arguments.elect.election(&client)?;
    let fence = election.as_ref().map(Election::fence);
    let client = fence.as_ref().map_or(client.clone(), |fence| fence.guard(client));
    let store = Arc::new(KubernetesStore::open(client));
    let metrics = serve_metrics(store.clone(), &arguments.metrics_listen).await?;
    let mut machines: Arc<dyn Machines> = Arc::new(ConnectedMachines::new(arguments.images.clone()));
    if let Some(fence) = fence {
        machines = Arc::new(FencedMachines::new(machines, fence));
    }
    let events = Some(store.event_sender());
    let waves = arguments.upgrade_waves.clone();
    let work = StoreReconciler { store, machines, metrics, waves, events };
    tracing::info!(store = "kubernetes", "begins");
    match election {
        None => {
            let _ = work.run_passes(Driver::Alone, stop).await;
            Ok(())
        }
        Some(election) => work.run_with_lease(&election, connect, stop).await,
    }
}

/// Serves the metrics of a store and the health of the manager at these addresses, if there are any, and returns the metrics.
async fn serve_metrics(store: Arc<dyn DocumentSource>, listen: &MetricsListen) -> anyhow::Result<Arc<ManagerMetrics>> {
    let metrics = Arc::new(ManagerMetrics::new(store, Timestamp::now()));
    let MetricsListen(addresses) = listen;
    if !addresses.is_empty() {
        let entrance = HealthListener::open(addresses).await?;
        tracing::info!(address = %entrance.address()?, "serving health and metrics");
        tokio::spawn(entrance.serve(metrics.clone()));
    }
    Ok(metrics)
}

/// Returns the configuration of the client for a store in Kubernetes.
async fn config(kubeconfig: Option<&Path>) -> anyhow::Result<KubeClientConfig> {
    match kubeconfig {
        Some(path) => {
            let made = KubeClientConfig::read(path, &ProxySettings::from_environment()).await;
            made.with_context(|| format!("could not use {}", path.display()))
        }
        None => KubeClientConfig::in_cluster().context("not running in a pod; set --kubeconfig"),
    }
}
