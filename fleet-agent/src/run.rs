//! The process: what it reads at its start, and its tasks.

use std::{
    io,
    path::PathBuf,
    sync::{Arc, atomic::Ordering},
};

use keelway_fleet::{FleetToken, FleetTokenError};
use keelway_http_proxy::{HttpProxies, InvalidHttpProxy, KubeClientConfig, KubeClientError, ProxySettings};
use prometheus_client::registry::Registry;
use tokio::{
    select,
    sync::{mpsc, watch},
};
use tokio_util::sync::CancellationToken;

use crate::{
    AgentDuties, HealthError,
    engine::WorkEngine,
    fleet::FleetConnection,
    health::{self, AgentHealth, HealthAddresses},
    identity::IdentityStore,
    inventory,
    kind_watch::KindWatches,
    metrics::AgentMetrics,
    record_store::{RecordStore, RecordStoreError},
    reports::PendingReports,
    workload_api::WorkloadApi,
};

/// How many events wait for the engine. Each may hold a manifest.
const EVENTS: usize = 64;

/// The agent cannot run.
#[derive(Debug, thiserror::Error)]
pub enum AgentRunError {
    /// The token cannot be read.
    #[error("cannot read the fleet token from {}", path.display())]
    TokenFile {
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The token is malformed.
    #[error(transparent)]
    Token(#[from] FleetTokenError),
    /// The proxies of the environment cannot be used.
    #[error(transparent)]
    Proxy(#[from] InvalidHttpProxy),
    /// The API of the agent's own cluster cannot be used.
    #[error("cannot use the API of this cluster")]
    Workload(#[source] Box<KubeClientError>),
    /// A client cannot be built.
    #[error("cannot create a client of this cluster")]
    Client(#[source] Box<kube::Error>),
    /// The files of applied Works cannot be used.
    #[error(transparent)]
    Store(#[from] RecordStoreError),
    /// The health endpoint cannot be opened.
    #[error(transparent)]
    Health(#[from] HealthError),
    /// The fleet refuses the agent, and its token was replaced since.
    #[error("the fleet refuses this agent, and there is a new token; the next start uses it")]
    AnotherToken,
    /// A task ended that should run forever.
    #[error("a task of the agent ended")]
    Ended,
}

/// The options of the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentOptions {
    /// The file with the fleet token.
    pub token: PathBuf,
    /// The namespace of the agent.
    pub namespace: String,
    /// The directory of applied Works.
    pub state: PathBuf,
    /// The kubeconfig of the agent's own cluster. The default is the ServiceAccount of its pod.
    pub kubeconfig: Option<PathBuf>,
    /// The addresses of health and metrics.
    pub health: HealthAddresses,
    /// What the agent leaves to others.
    pub duties: AgentDuties,
}

/// Runs the agent until `stop`.
pub async fn run(options: &AgentOptions, stop: CancellationToken) -> Result<(), AgentRunError> {
    let text = std::fs::read_to_string(&options.token)
        .map_err(|source| AgentRunError::TokenFile { path: options.token.clone(), source })?;
    let token = FleetToken::parse(&text)?;
    let settings = ProxySettings::from_environment();
    let api = Arc::new(WorkloadApi::new(workload_client(options, &settings).await?));
    let (works, received) = mpsc::channel(EVENTS);
    let (kinds, seen) = mpsc::channel(EVENTS);
    let (nodes, inventory) = watch::channel(None);
    let mut registry = Registry::default();
    let metrics = AgentMetrics::new(&mut registry);
    let reports = Arc::new(PendingReports::new(metrics.pending_reports().clone()));
    let health = Arc::new(AgentHealth::default());
    let store = RecordStore::open(&options.state)?;
    let duties = options.duties;
    let watches = KindWatches::new(Arc::clone(&api), kinds, duties.orchestrates);
    let reported = (Arc::clone(&reports), metrics.clone());
    let engine = WorkEngine::load(Arc::clone(&api), store, reported, watches, duties.orchestrates)?;
    let fleet = FleetConnection {
        identities: IdentityStore::new(api.client().clone(), &options.namespace, (&token, &text)),
        proxies: HttpProxies::parse(&settings)?,
        own_namespace: options.namespace.clone(),
        holder: format!("{}_{:016x}", token.cluster, rand::random::<u64>()),
        token,
        token_file: (options.token.clone(), text),
        works,
        reports,
        inventory: inventory.clone(),
        metrics,
        duties,
        is_refused: Arc::clone(&health.is_refused),
    };
    select! {
        () = stop.cancelled() => Ok(()),
        () = engine.run(received, seen) => Err(AgentRunError::Ended),
        () = inventory::observe(api, nodes) => Err(AgentRunError::Ended),
        () = fleet.run() => Err(AgentRunError::AnotherToken),
        served = serve(&options.health, inventory, health, &registry) => served,
    }
}

async fn workload_client(options: &AgentOptions, settings: &ProxySettings) -> Result<kube::Client, AgentRunError> {
    let config = match &options.kubeconfig {
        Some(path) => KubeClientConfig::read(path, settings).await,
        None => KubeClientConfig::in_cluster(),
    };
    let config = config.map_err(|error| AgentRunError::Workload(Box::new(error)))?;
    config.client().map_err(|error| AgentRunError::Client(Box::new(error)))
}

/// Serves health and metrics. The agent is ready once its own API server has listed its nodes and pods, because it also works while the fleet is
/// unreachable.
async fn serve(
    addresses: &HealthAddresses,
    mut inventory: watch::Receiver<Option<inventory::ClusterInventory>>,
    health: Arc<AgentHealth>,
    registry: &Registry,
) -> Result<(), AgentRunError> {
    let Some(listener) = addresses.listen().await? else { return std::future::pending().await };
    let ready = async {
        if inventory.wait_for(Option::is_some).await.is_ok() {
            health.is_ready.store(true, Ordering::Relaxed);
        }
        std::future::pending::<()>().await;
    };
    select! {
        () = health::serve(listener, Arc::clone(&health), registry) => Ok(()),
        () = ready => Ok(()),
    }
}
