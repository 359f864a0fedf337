//! The egress: runs beside an API server and makes its connections.
//!
//! An API server waits forever for the response to a CONNECT, and reads its client certificate only once. It therefore connects to the egress,
//! on two sockets. The egress responds to each CONNECT in bounded time, whatever the state of gateways and workers.

mod address_policy;
mod cluster;
mod config;
mod control_plane;
mod gateways;
mod metrics;
mod socket;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use keelway_base::error_chain::ErrorChain;
use keelway_base::unix_listener;
use rustls_pki_types::{InvalidDnsNameError, ServerName};
use tokio::net::UnixListener;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use keelway_tls::FilesVersion;
use keelway_tls::{TlsClient, TlsError};

use self::cluster::ClusterDialer;
pub use self::config::{ClusterEgress, ControlPlaneEgress, EgressConfig, EgressGateway, SocketMode};
use self::control_plane::{ControlPlaneDialer, ForbiddenRanges};
use self::gateways::Gateways;
use crate::connect::TunnelRegistry;
use crate::connects::Connects;
use keelway_component::configuration::{self, ConfigurationError};
use keelway_component::health::{self, HealthListeners, HealthServerError, ProcessHealth};
use keelway_component::tasks::{self, TaskError};

/// How long a CONNECT may take: five seconds, minus the time for the response on a busy machine.
const BUDGET: Duration = Duration::from_secs(4);

/// The egress cannot run.
#[derive(Debug, thiserror::Error)]
pub enum EgressError {
    /// The configuration cannot be used.
    #[error("cannot use the configuration")]
    Configuration(#[source] ConfigurationError),
    /// The gateways' server name is invalid.
    #[error("cluster.serverName is not a valid DNS name")]
    ServerName(#[source] InvalidDnsNameError),
    /// The certificates cannot be used.
    #[error("cannot use the certificates")]
    Tls(#[source] TlsError),
    /// A task of the egress ended.
    #[error("a task ended unexpectedly")]
    Task(#[source] TaskError),
    /// The task that checks a gateway panicked.
    #[error("a task that checks a gateway panicked")]
    Unwatched,
    /// A socket cannot be opened.
    #[error("cannot listen on {}", path.display())]
    Socket {
        /// The path of the socket.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The health server cannot be started.
    #[error("cannot serve health and metrics")]
    Health(#[source] HealthServerError),
}

/// Runs an egress until `stop`, and then until the API server has closed its tunnels or the grace period is over.
pub async fn run(path: &Path, stop: CancellationToken) -> Result<(), EgressError> {
    let stamp = FilesVersion::of([path]);
    let config: EgressConfig = configuration::read(path).map_err(EgressError::Configuration)?;
    let client = TlsClient::new(config.cluster.tls.clone()).map_err(EgressError::Tls)?;
    let name = ServerName::try_from(config.cluster.server_name.clone()).map_err(EgressError::ServerName)?;
    let [to_cluster, to_others] = [Connects::default(), Connects::default()];
    let others = TunnelRegistry::new(config.max_tunnels);
    let gateways = Gateways::new(client, name, TunnelRegistry::new(config.max_tunnels));
    let health = HealthListeners::open(config.health, config.metrics.as_deref()).await.map_err(EgressError::Health)?;
    let cluster_socket = open(&config.cluster.socket, config.socket_mode)?;
    let control_plane_socket = open(&config.control_plane.socket, config.socket_mode)?;
    gateways.set(&config.cluster.gateways);
    let mut tasks = JoinSet::new();
    let registry = metrics::registry(&gateways, &others, [&to_cluster, &to_others]);
    tasks.spawn(health::serve(health, egress_health(registry, &gateways)));
    tasks.spawn(socket::accept(cluster_socket, Arc::new(ClusterDialer::new(Arc::clone(&gateways), to_cluster))));
    let forbidden = Arc::new(ForbiddenRanges::default());
    forbidden.set(config.control_plane.forbidden_cidrs);
    let control_plane = ControlPlaneDialer::new(Arc::clone(&forbidden), Arc::clone(&others), to_others);
    tasks.spawn(socket::accept(control_plane_socket, Arc::new(control_plane)));
    tasks.spawn(follow(path.to_owned(), stamp, Arc::clone(&gateways), forbidden));
    tracing::info!(gateways = config.cluster.gateways.len(), "up");
    tokio::select! {
        () = stop.cancelled() => {}
        failure = tasks::failure(&mut tasks) => return Err(EgressError::Task(failure)),
        () = gateways.wait_for_unwatched() => return Err(EgressError::Unwatched),
    }
    // The API server drains at the same time, and may still open connections.
    let drained = async { tokio::join!(gateways.tunnels.drained(), others.drained()) };
    if timeout(Duration::from_secs(config.shutdown_grace_seconds), drained).await.is_err() {
        tracing::warn!("closing tunnels that are still open");
    }
    tasks.shutdown().await;
    tracing::info!("down");
    Ok(())
}

fn open(path: &Path, mode: SocketMode) -> Result<UnixListener, EgressError> {
    unix_listener::listen(path, mode.0).map_err(|source| EgressError::Socket { path: path.to_owned(), source })
}

/// Applies changes of gateways and forbidden ranges without a restart, which would break the API server's connections.
async fn follow(path: PathBuf, mut known: FilesVersion, gateways: Arc<Gateways>, forbidden: Arc<ForbiddenRanges>) {
    loop {
        known = known.next(&[&path]).await;
        match configuration::read::<EgressConfig>(&path) {
            Ok(config) => {
                tracing::info!(gateways = config.cluster.gateways.len(), "reloaded gateways and forbidden ranges");
                gateways.set(&config.cluster.gateways);
                forbidden.set(config.control_plane.forbidden_cidrs);
            }
            Err(error) => {
                tracing::warn!("cannot reload the configuration; keeping the previous one: {}", ErrorChain(&error));
            }
        }
    }
}

fn egress_health(registry: prometheus_client::registry::Registry, gateways: &Arc<Gateways>) -> ProcessHealth {
    let gateways = Arc::downgrade(gateways);
    let readiness = move || {
        let all = gateways.upgrade().map(|gateways| gateways.all()).unwrap_or_default();
        if all.is_empty() || all.iter().any(|gateway| gateway.answers()) {
            return Ok(());
        }
        Err("no gateway responds".to_owned())
    };
    ProcessHealth { registry, liveness: Box::new(|| Ok(())), readiness: Box::new(readiness) }
}
