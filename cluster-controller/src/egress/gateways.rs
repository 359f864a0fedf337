//! The gateways of a cluster, and which of them respond.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt as _;
use keelway_base::error_chain::ErrorChain;
use rustls_pki_types::ServerName;
use tokio::net::{TcpSocket, TcpStream};
use tokio::time::{MissedTickBehavior, timeout};
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use keelway_tls::{HandshakeError, TlsClient};
use keelway_vpn::liveness::keep_alive;

use super::config::EgressGateway;
use crate::connect::{AskError, GatewayConnection, TunnelRegistry, probe};

/// The interval of health checks of each gateway.
const CHECK_EVERY: Duration = Duration::from_secs(2);
/// How long a check may take, including a new connection.
const CHECK: Duration = Duration::from_millis(1500);
/// The number of consecutive failed checks after which the tunnels of a gateway are reset: three to five seconds after it stopped responding.
const MISSES: usize = 2;

/// The receive buffer of a connection to a gateway, in bytes. The kernel grows a buffer up to several MiB otherwise, which count as memory of the egress
/// while the API server does not read.
const RECEIVE_BUFFER: u32 = 64 * 1024;

/// A health check of a gateway failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum GatewayConnectionError {
    #[error("cannot connect")]
    Connect(#[source] io::Error),
    #[error("the TLS handshake failed")]
    Handshake(#[source] HandshakeError),
    #[error("invalid response")]
    Ask(#[source] AskError),
    #[error("no response within {} s", CHECK.as_secs_f32())]
    Silent,
}

pub(super) struct KnownGateway {
    pub(super) name: String,
    pub(super) address: SocketAddr,
    answers: AtomicBool,
}

impl KnownGateway {
    /// Whether the last check succeeded.
    pub(super) fn answers(&self) -> bool {
        self.answers.load(Ordering::Relaxed)
    }
}

/// The gateways, each with the task that checks it. Dropping an entry ends its task.
type GatewayTasks = BTreeMap<EgressGateway, (Arc<KnownGateway>, AbortOnDropHandle<()>)>;

/// All gateways of the cluster.
pub(super) struct Gateways {
    client: TlsClient,
    server_name: ServerName<'static>,
    pub(super) tunnels: Arc<TunnelRegistry<String>>,
    known: Mutex<GatewayTasks>,
    turn: AtomicUsize,
    /// Cancelled if the task that checks a gateway panicked.
    unwatched: CancellationToken,
}

impl Gateways {
    pub(super) fn new(
        client: TlsClient,
        server_name: ServerName<'static>,
        tunnels: Arc<TunnelRegistry<String>>,
    ) -> Arc<Self> {
        let (turn, unwatched) = (AtomicUsize::new(0), CancellationToken::new());
        Arc::new(Self { client, server_name, tunnels, known: Mutex::default(), turn, unwatched })
    }

    fn known(&self) -> MutexGuard<'_, GatewayTasks> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces the list of gateways. Tunnels through removed gateways continue until they end.
    pub(super) fn set(self: &Arc<Self>, wanted: &[EgressGateway]) {
        let mut known = self.known();
        known.retain(|gateway, _| wanted.contains(gateway));
        for gateway in wanted {
            known.entry(gateway.clone()).or_insert_with(|| {
                let answers = AtomicBool::new(false);
                let new = KnownGateway { name: gateway.name.clone(), address: gateway.address, answers };
                let new = Arc::new(new);
                let watched = AssertUnwindSafe(watch(Arc::clone(self), Arc::clone(&new))).catch_unwind();
                let unwatched = self.unwatched.clone();
                let watched = tokio::spawn(async move {
                    let _ = watched.await;
                    unwatched.cancel();
                });
                (new, AbortOnDropHandle::new(watched))
            });
        }
    }

    /// Waits until the task of a listed gateway has ended.
    pub(super) async fn wait_for_unwatched(&self) {
        self.unwatched.cancelled().await;
    }

    /// Returns all gateways in the order in which to try them: healthy ones first, in rotation.
    pub(super) fn in_order(&self) -> Vec<Arc<KnownGateway>> {
        let mut all = self.all();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let start = turn % all.len().max(1);
        all.rotate_left(start);
        all.sort_by_key(|gateway| !gateway.answers());
        all
    }

    /// Returns all gateways, ordered by name.
    pub(super) fn all(&self) -> Vec<Arc<KnownGateway>> {
        self.known().values().map(|(gateway, _)| Arc::clone(gateway)).collect()
    }

    /// Connects to a gateway.
    pub(super) async fn connect(&self, gateway: &KnownGateway) -> Result<TlsStream<TcpStream>, GatewayConnectionError> {
        let stream = dial(gateway.address).await.map_err(GatewayConnectionError::Connect)?;
        let _ = stream.set_nodelay(true);
        keep_alive(&stream);
        self.client.connect(self.server_name.clone(), stream).await.map_err(GatewayConnectionError::Handshake)
    }

    /// Checks a gateway, over the existing connection if there is one.
    async fn check(
        &self,
        gateway: &KnownGateway,
        kept: &mut Option<GatewayConnection>,
    ) -> Result<(), GatewayConnectionError> {
        let checked = timeout(CHECK, async {
            if let Some(mut connection) = kept.take()
                && connection.check().await.is_ok()
            {
                *kept = Some(connection);
                return Ok(());
            }
            *kept = Some(probe(self.connect(gateway).await?).await.map_err(GatewayConnectionError::Ask)?);
            Ok(())
        });
        checked.await.unwrap_or(Err(GatewayConnectionError::Silent))
    }

    fn note(&self, gateway: &KnownGateway, outcome: Result<(), GatewayConnectionError>, misses: &mut usize) {
        let answered = outcome.is_ok();
        let before = gateway.answers.swap(answered, Ordering::Relaxed);
        match outcome {
            Ok(()) => {
                *misses = 0;
                if !before {
                    tracing::info!(gateway = gateway.name, "gateway responds again");
                }
            }
            Err(error) => {
                *misses += 1;
                if before || *misses == 1 {
                    tracing::warn!(
                        gateway = gateway.name,
                        "health check of the gateway failed: {}",
                        ErrorChain(&error)
                    );
                }
                // This also applies after further misses: a tunnel that opened in between is dead, too.
                if *misses >= MISSES {
                    let reset = self.tunnels.reset(|name| *name == gateway.name);
                    if reset > 0 || *misses == MISSES {
                        tracing::warn!(gateway = gateway.name, tunnels = reset, "reset the tunnels of the gateway");
                    }
                }
            }
        }
    }
}

async fn dial(address: SocketAddr) -> io::Result<TcpStream> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    // The size is negotiated when the connection opens.
    socket.set_recv_buffer_size(RECEIVE_BUFFER)?;
    socket.connect(address).await
}

async fn watch(gateways: Arc<Gateways>, gateway: Arc<KnownGateway>) {
    let mut turns = tokio::time::interval(CHECK_EVERY);
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let (mut kept, mut misses) = (None, 0);
    loop {
        turns.tick().await;
        let outcome = gateways.check(&gateway, &mut kept).await;
        if outcome.is_err() && misses + 1 < MISSES {
            // Check again at once.
            turns.reset_immediately();
        }
        gateways.note(&gateway, outcome, &mut misses);
    }
}
