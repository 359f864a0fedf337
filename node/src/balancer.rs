//! The API of the cluster on the worker itself: connections to the reserved address go on to an ingress that is well.

use std::{
    collections::BTreeMap,
    io,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use keelway_hypervisor_agent::{
    https::{self, GetError},
    tls::{TlsError, client_from_pem},
};
use keelway_vpn::{error::Chain, liveness::keep_alive};
use rustls::ClientConfig;
use serde::{Deserialize, Serialize};
use socket2::SockRef;
use tokio::{
    io::copy_bidirectional_with_sizes,
    net::{TcpListener, TcpSocket, TcpStream},
    time::{MissedTickBehavior, interval, sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use crate::authority::SERVER_NAME;

/// How often each ingress is asked.
const CHECK_EVERY: Duration = Duration::from_secs(2);
/// How long its answer may take.
const CHECK: Duration = Duration::from_secs(2);
/// After so many checks in a row without an answer its connections are reset.
const MISSES: u32 = 2;
/// How long one ingress may take to accept a connection before the next is tried.
const CONNECT: Duration = Duration::from_secs(2);
/// What is on its way in one connection, each way.
const BUFFER: usize = 16 * 1024;
/// How soon accepting is tried again that failed.
const AGAIN: Duration = Duration::from_millis(100);

/// An ingress does not answer as an API server does.
#[derive(Debug, thiserror::Error)]
enum CheckError {
    #[error("it cannot be connected to")]
    Connect(#[source] io::Error),
    #[error("it did not answer within {} s", CHECK.as_secs())]
    Silent,
    #[error("it does not answer as an API server")]
    Ask(#[source] GetError),
    #[error("no API server behind it is ready (status {0})")]
    NotReady(u16),
}

impl CheckError {
    /// Whether connections through it are dead: one whose API server is about to stop lets them go on until it has.
    fn is_loss(&self) -> bool {
        !matches!(self, Self::NotReady(_))
    }
}

/// One ingress, as `node status` tells of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IngressStatus {
    /// Where it is.
    pub address: SocketAddr,
    /// Whether it answered last.
    pub answers: bool,
    /// Connections through it.
    pub connections: usize,
}

struct Ingress {
    address: SocketAddr,
    answers: AtomicBool,
    connections: AtomicUsize,
    /// Ends all connections of now; there is a new one for those that come after.
    reset: Mutex<CancellationToken>,
}

impl Ingress {
    fn token(&self) -> CancellationToken {
        self.reset.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn reset(&self) {
        let mut token = self.reset.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *token).cancel();
    }
}

/// Each with the task that asks it, which ends when it is forgotten.
type Known = BTreeMap<SocketAddr, (Arc<Ingress>, AbortOnDropHandle<()>)>;

/// The balancer.
pub(crate) struct Balancer {
    config: Mutex<Arc<ClientConfig>>,
    known: Mutex<Known>,
    turn: AtomicUsize,
}

impl Balancer {
    /// For no ingress yet. `authorities`: PEM.
    pub(crate) fn new(authorities: &str) -> Result<Arc<Self>, TlsError> {
        let config = Arc::new(client_from_pem(authorities.as_bytes(), None)?);
        Ok(Arc::new(Self { config: Mutex::new(config), known: Mutex::default(), turn: AtomicUsize::new(0) }))
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.config.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Uses these ingresses and authorities from now on. Connections through one that is forgotten end: it is on its way out.
    pub(crate) fn set(self: &Arc<Self>, ingresses: &[SocketAddr], authorities: &str) -> Result<(), TlsError> {
        let config = Arc::new(client_from_pem(authorities.as_bytes(), None)?);
        *self.config.lock().unwrap_or_else(PoisonError::into_inner) = config;
        let mut known = self.known();
        known.retain(|address, (ingress, _)| {
            let is_wanted = ingresses.contains(address);
            if !is_wanted {
                ingress.reset();
            }
            is_wanted
        });
        for address in ingresses {
            known.entry(*address).or_insert_with(|| {
                let ingress = Arc::new(Ingress {
                    address: *address,
                    answers: AtomicBool::new(true),
                    connections: AtomicUsize::new(0),
                    reset: Mutex::default(),
                });
                let watched = tokio::spawn(watch(Arc::clone(self), Arc::clone(&ingress)));
                (ingress, AbortOnDropHandle::new(watched))
            });
        }
        Ok(())
    }

    /// All of them: those that answer first, in turns.
    fn in_order(&self) -> Vec<Arc<Ingress>> {
        let mut all: Vec<Arc<Ingress>> = self.known().values().map(|(ingress, _)| Arc::clone(ingress)).collect();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let start = turn % all.len().max(1);
        all.rotate_left(start);
        all.sort_by_key(|ingress| !ingress.answers.load(Ordering::Relaxed));
        all
    }

    /// How they are, by address.
    pub(crate) fn status(&self) -> Vec<IngressStatus> {
        let known = self.known();
        let status = known.values().map(|(ingress, _)| IngressStatus {
            address: ingress.address,
            answers: ingress.answers.load(Ordering::Relaxed),
            connections: ingress.connections.load(Ordering::Relaxed),
        });
        status.collect()
    }

    /// Takes connections for as long as it is polled.
    pub(crate) async fn serve(self: Arc<Self>, listener: TcpListener) {
        loop {
            match listener.accept().await {
                Ok((client, _)) => drop(tokio::spawn(pass(Arc::clone(&self), client))),
                Err(error) => {
                    tracing::warn!(%error, "a connection to the API is not accepted");
                    sleep(AGAIN).await;
                }
            }
        }
    }

    async fn check(&self, ingress: &Ingress) -> Result<(), CheckError> {
        let config = self.config();
        let asked = async {
            let stream = TcpStream::connect(ingress.address).await.map_err(CheckError::Connect)?;
            https::get(config, SERVER_NAME, stream, ingress.address, "/readyz").await.map_err(CheckError::Ask)
        };
        let status = timeout(CHECK, asked).await.map_err(|_| CheckError::Silent)??;
        if status.is_success() { Ok(()) } else { Err(CheckError::NotReady(status.as_u16())) }
    }
}

/// Listens on the reserved address, which must be one of this machine's by now. A daemon that has just ended may still hold it.
pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(1024)
}

async fn watch(balancer: Arc<Balancer>, ingress: Arc<Ingress>) {
    let mut turns = interval(CHECK_EVERY);
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut misses = 0;
    loop {
        turns.tick().await;
        let outcome = balancer.check(&ingress).await;
        let before = ingress.answers.swap(outcome.is_ok(), Ordering::Relaxed);
        let Err(error) = outcome else {
            misses = 0;
            if !before {
                tracing::info!(ingress = %ingress.address, "it answers");
            }
            continue;
        };
        if before {
            tracing::warn!(ingress = %ingress.address, "it does not answer: {}", Chain(&error));
        }
        misses = if error.is_loss() { misses + 1 } else { 0 };
        if misses == MISSES {
            ingress.reset();
        } else if misses == 1 {
            // The second look comes at once.
            turns.reset_immediately();
        }
    }
}

/// One connection, until it ends or its ingress is lost.
async fn pass(balancer: Arc<Balancer>, mut client: TcpStream) {
    let _ = client.set_nodelay(true);
    for ingress in balancer.in_order() {
        let token = ingress.token();
        let Ok(Ok(mut server)) = timeout(CONNECT, TcpStream::connect(ingress.address)).await else { continue };
        let _ = server.set_nodelay(true);
        keep_alive(&server);
        ingress.connections.fetch_add(1, Ordering::Relaxed);
        let passed = tokio::select! {
            passed = copy_bidirectional_with_sizes(&mut client, &mut server, BUFFER, BUFFER) => passed.is_ok(),
            () = token.cancelled() => false,
        };
        ingress.connections.fetch_sub(1, Ordering::Relaxed);
        if !passed {
            // The client learns at once that what it waits for does not come.
            let _ = SockRef::from(&client).set_linger(Some(Duration::ZERO));
        }
        return;
    }
    let _ = SockRef::from(&client).set_linger(Some(Duration::ZERO));
}
