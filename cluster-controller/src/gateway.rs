//! The gateway: terminates the VPN tunnels of workers, and connects API servers to workers.
//!
//! It is an ordinary process without privileges. It forwards packets from peer to peer inside the process, and its own connections use a TCP/IP
//! stack inside the process. It reads peers from the cluster and stores them on disk with their last endpoints, so that it serves while the
//! API is unreachable.

mod config;
mod drain;
mod gateway_peers;
mod metrics;
mod other_gateways;
mod peer_file;
mod peer_reconciler;
mod renewals;
mod socket_buffers;
mod streams;
mod vpn;
mod watch;
mod write_pace;

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use keelway_api::reserved::of_api_on_workers;
use keelway_base::bounded_tasks::BoundedTasks;
use keelway_base::error_chain::ErrorChain;
use keelway_vpn::{CoreLimits, InvalidKey, PrivateKey, Relay, RelayConfig, StartError};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;

use keelway_tls::{TlsError, TlsServer};
use keelway_vpn::liveness::keep_alive;

pub use self::config::{Connect, GatewayConfig, OtherGateway, PeerSource, WireGuard};
use self::drain::drain_workers;
use self::gateway_peers::PeerBounds;
use self::other_gateways::OtherGateways;
use self::peer_reconciler::PeerReconciler;
use self::streams::StreamListener;
pub use self::streams::StreamListenerConfig;
use self::vpn::Vpn;
use crate::connect::serve;
use keelway_component::configuration::{self, ConfigurationError};
use keelway_component::health::{self, HealthListeners, HealthServerError, ProcessHealth};
use keelway_component::tasks::{self, TaskError};

/// The interval of checks for dead peers.
const LOOK: Duration = Duration::from_millis(500);
/// The most connections that are not tunnels yet, for unauthenticated and for authenticated clients. One more unauthenticated client replaces the
/// oldest one, and one more authenticated client is refused.
const MOST_CONVERSATIONS: usize = 256;

/// The gateway cannot run.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// The configuration cannot be used.
    #[error("cannot use the configuration")]
    Configuration(#[source] ConfigurationError),
    /// The private key cannot be read.
    #[error("cannot read the private key {}", path.display())]
    ReadKey {
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
    /// The file does not contain a key.
    #[error("{} does not contain a valid WireGuard key", path.display())]
    Key {
        /// The path of the file.
        path: PathBuf,
        /// Why the key is invalid.
        #[source]
        source: InvalidKey,
    },
    /// The relay does not start.
    #[error("cannot start the relay")]
    Relay(#[source] StartError),
    /// The certificates cannot be used.
    #[error("cannot use the certificates")]
    Tls(#[source] TlsError),
    /// The health server cannot be started.
    #[error("cannot serve health and metrics")]
    Health(#[source] HealthServerError),
    /// A task of the gateway ended.
    #[error("a task ended unexpectedly")]
    Task(#[source] TaskError),
    /// A port cannot be opened.
    #[error("cannot listen on {address}")]
    Listen {
        /// The address to listen on.
        address: SocketAddr,
        /// The error of the operating system.
        #[source]
        source: io::Error,
    },
}

/// Runs a gateway until `stop`, and then until its workers have switched to other gateways.
pub async fn run(path: &Path, stop: CancellationToken) -> Result<(), GatewayError> {
    let config: GatewayConfig = configuration::read(path).map_err(GatewayError::Configuration)?;
    let others = OtherGateways::read(config.gateways_file.as_deref()).map_err(GatewayError::Configuration)?;
    let server =
        TlsServer::new(config.connect.tls.clone(), config.connect.clients.clone()).map_err(GatewayError::Tls)?;
    let vpn = Arc::new(Vpn::new(start_relay(&config)?, config.connect.max_tunnels));
    let events = vpn.relay.watch();
    let keeper = new_keeper(&config, &vpn, others.list.clone());
    let mut tasks = JoinSet::new();
    let entrance = ConnectListener::new(server, Arc::clone(&vpn));
    for address in &config.connect.listen {
        tasks.spawn(accept(listen(*address).await?, Arc::clone(&entrance), stop.clone()));
    }
    if let Some(streams) = &config.streams {
        let (port, registry) = (vpn.relay.listen_port(), Arc::clone(&vpn.streams));
        let entrance = StreamListener::new(streams.tls.clone(), port, registry, config.peers.kubeconfig.clone())
            .map_err(GatewayError::Tls)?;
        tasks.spawn(entrance.serve(listen(streams.listen).await?));
    }
    let entrances =
        HealthListeners::open(config.health, config.metrics.as_deref()).await.map_err(GatewayError::Health)?;
    let (sender, candidates) = tokio::sync::watch::channel(None);
    let has_kubeconfig = config.peers.kubeconfig.is_some();
    if let Some(kubeconfig) = config.peers.kubeconfig {
        tasks.spawn(watch::watch(kubeconfig, sender));
    }
    let gateways = others.follow(&mut tasks);
    tasks.spawn(reset_dead(Arc::clone(&vpn)));
    tasks.spawn(health::serve(entrances, gateway_health(&vpn, has_kubeconfig, candidates.clone())));
    tracing::info!(port = vpn.relay.listen_port(), peers = vpn.members().by_key.len(), "up");
    socket_buffers::report(vpn.relay.kernel_buffers());
    let done = CancellationToken::new();
    let leaves = async {
        drain_workers(&vpn, &stop).await;
        done.cancel();
    };
    tokio::select! {
        () = async { tokio::join!(keeper.run(candidates, gateways, events, done.clone()), leaves).0 } => {}
        failure = tasks::failure(&mut tasks) => return Err(GatewayError::Task(failure)),
    }
    tasks.shutdown().await;
    vpn.tunnels.reset(|_| true);
    tracing::info!("down");
    Ok(())
}

fn start_relay(config: &GatewayConfig) -> Result<Relay, GatewayError> {
    let path = &config.wire_guard.private_key_file;
    let text = std::fs::read_to_string(path).map_err(|source| GatewayError::ReadKey { path: path.clone(), source })?;
    let key: PrivateKey = text.trim().parse().map_err(|source| GatewayError::Key { path: path.clone(), source })?;
    Relay::start(RelayConfig {
        name: "gateway".to_owned(),
        private_key: Some(key),
        listen_port: config.wire_guard.listen_port,
        addresses: config.wire_guard.addresses.clone(),
        mtu: config.wire_guard.mtu,
        limits: CoreLimits::default(),
    })
    .map_err(GatewayError::Relay)
}

fn new_keeper(config: &GatewayConfig, vpn: &Arc<Vpn>, others: Vec<OtherGateway>) -> PeerReconciler {
    let wire_guard = &config.wire_guard;
    let of_api = wire_guard.address_cidrs.iter().map(of_api_on_workers);
    let reserved = wire_guard.addresses.iter().chain(&wire_guard.reserved_addresses);
    let own = PeerBounds {
        addresses: wire_guard.address_cidrs.clone(),
        pods: wire_guard.pod_cidrs.clone(),
        reserved: reserved.copied().chain(of_api).collect(),
        gateways: vpn.relay.public_key().into_iter().collect(),
    };
    let keepalive = wire_guard.persistent_keepalive_seconds;
    PeerReconciler::new(Arc::clone(vpn), config.peers.file.clone(), own, keepalive, others)
}

async fn listen(address: SocketAddr) -> Result<TcpListener, GatewayError> {
    TcpListener::bind(address).await.map_err(|source| GatewayError::Listen { address, source })
}

/// Accepts connections of egresses.
struct ConnectListener {
    server: TlsServer,
    vpn: Arc<Vpn>,
    /// Permits for authenticated clients.
    clients: Semaphore,
}

impl ConnectListener {
    fn new(server: TlsServer, vpn: Arc<Vpn>) -> Arc<Self> {
        Arc::new(Self { server, vpn, clients: Semaphore::new(MOST_CONVERSATIONS) })
    }

    /// Authenticates a client, and serves it in a task of its own.
    async fn authenticate(self: Arc<Self>, stream: TcpStream, from: SocketAddr) {
        let _ = stream.set_nodelay(true);
        keep_alive(&stream);
        socket_buffers::bound(&stream);
        match self.server.accept(stream).await {
            Ok(stream) => drop(tokio::spawn(async move { self.serve_client(stream, from).await })),
            Err(error) => tracing::debug!(%from, "refused a connection: {}", ErrorChain(&error)),
        }
    }

    async fn serve_client(&self, stream: TlsStream<TcpStream>, from: SocketAddr) {
        let Ok(_place) = self.clients.try_acquire() else {
            return tracing::warn!(%from, "closing a connection: too many connections are not tunnels yet");
        };
        if let Err(error) = serve(stream, Arc::clone(&self.vpn)).await {
            tracing::debug!(%from, %error, "a connection failed");
        }
    }
}

/// Accepts connections until `stop`. After that, egresses connect to other gateways.
async fn accept(listener: TcpListener, entrance: Arc<ConnectListener>, stop: CancellationToken) {
    let mut strangers = BoundedTasks::new(MOST_CONVERSATIONS);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            () = stop.cancelled() => break,
        };
        let Ok((stream, from)) = accepted else {
            // This error only means a shortage of file descriptors or memory. It takes a moment to end.
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        strangers.make_room().await;
        strangers.take(Arc::clone(&entrance).authenticate(stream, from));
    }
    drop(listener);
    std::future::pending::<()>().await;
}

async fn reset_dead(vpn: Arc<Vpn>) {
    let mut looks = tokio::time::interval(LOOK);
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        looks.tick().await;
        if !vpn.relay.is_running() {
            tracing::error!("the packet thread has ended, so the gateway ends");
            return;
        }
        vpn.reset_dead();
    }
}

fn gateway_health(
    vpn: &Arc<Vpn>,
    has_kubeconfig: bool,
    candidates: tokio::sync::watch::Receiver<Option<Vec<gateway_peers::Candidate>>>,
) -> ProcessHealth {
    let (registry, running, vpn) = (metrics::registry(vpn), Arc::downgrade(vpn), Arc::downgrade(vpn));
    let liveness = move || match running.upgrade() {
        Some(vpn) if !vpn.relay.is_running() => Err("the packet thread has ended".to_owned()),
        Some(_) | None => Ok(()),
    };
    let readiness = move || {
        let knows_peers = vpn.upgrade().is_some_and(|vpn| !vpn.members().by_key.is_empty());
        if knows_peers || !has_kubeconfig || candidates.borrow().is_some() {
            return Ok(());
        }
        Err("the peers are unknown: the API has not responded yet, and no peers are stored".to_owned())
    };
    ProcessHealth { registry, liveness: Box::new(liveness), readiness: Box::new(readiness) }
}

#[cfg(test)]
mod tests;
