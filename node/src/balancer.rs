//! The API of the cluster on the worker itself: it forwards connections to the reserved address to a healthy ingress.

use std::{
    collections::BTreeMap,
    io,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use keelway_base::error_chain::ErrorChain;
use keelway_tls::{
    component::{AgentTlsError, client_from_pem},
    https::{self, GetError},
};
use keelway_vpn::liveness::keep_alive;
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

/// The interval of health checks of each ingress.
const CHECK_EVERY: Duration = Duration::from_secs(2);
/// How long the response to a health check may take.
const CHECK: Duration = Duration::from_secs(2);
/// The number of consecutive failed checks after which the connections of an ingress are reset.
const MISSES: u32 = 2;
/// How long one ingress may take to accept a connection before the next one is tried.
const CONNECT: Duration = Duration::from_secs(2);
/// The buffer of one connection for each direction, in bytes.
const BUFFER: usize = 16 * 1024;
/// The most concurrent connections: in total, and per source address, so that one pod cannot exhaust the connections of others.
const MOST: usize = 4096;
const MOST_OF_ONE: usize = 1024;
/// The pause before accepting is retried after an error.
const AGAIN: Duration = Duration::from_millis(100);

/// An ingress failed its health check.
#[derive(Debug, thiserror::Error)]
enum CheckError {
    #[error("cannot connect")]
    Connect(#[source] io::Error),
    #[error("no response within {} s", CHECK.as_secs())]
    Silent,
    #[error("invalid response")]
    Ask(#[source] GetError),
    #[error("no API server behind the ingress is ready (status {0})")]
    NotReady(u16),
}

impl CheckError {
    /// Whether connections through the ingress are dead. An API server that is about to stop is not ready, but still serves its connections.
    fn is_loss(&self) -> bool {
        !matches!(self, Self::NotReady(_))
    }
}

/// The state of one ingress in `node status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct IngressStatus {
    /// The address of the ingress.
    pub address: SocketAddr,
    /// Whether the last check succeeded. Absent before the first check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answers: Option<bool>,
    /// The number of connections through the ingress.
    pub connections: usize,
}

struct BalancedIngress {
    address: SocketAddr,
    answers: Mutex<Option<bool>>,
    connections: AtomicUsize,
    /// Ends all current connections. After a reset, new connections use a new token.
    reset: Mutex<CancellationToken>,
}

impl BalancedIngress {
    fn answers(&self) -> Option<bool> {
        *self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records the result of a check, and returns the previous one.
    fn note(&self, answers: bool) -> Option<bool> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner).replace(answers)
    }

    fn token(&self) -> CancellationToken {
        self.reset.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn reset(&self) {
        let mut token = self.reset.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *token).cancel();
    }
}

/// The number of connections of each source address.
#[derive(Default)]
struct ConnectionCounts(Mutex<BTreeMap<IpAddr, usize>>);

impl ConnectionCounts {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<IpAddr, usize>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts one more connection of this address, unless a limit is reached.
    fn admit(self: &Arc<Self>, address: IpAddr) -> Option<Admitted> {
        let mut all = self.lock();
        let (sum, own) = (all.values().sum::<usize>(), all.get(&address).copied().unwrap_or_default());
        (sum < MOST && own < MOST_OF_ONE).then(|| {
            all.insert(address, own + 1);
            Admitted { clients: Arc::clone(self), address }
        })
    }
}

/// Counts one connection until it is dropped.
struct Admitted {
    clients: Arc<ConnectionCounts>,
    address: IpAddr,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut all = self.clients.lock();
        let left = all.get(&self.address).copied().unwrap_or_default().saturating_sub(1);
        if left == 0 {
            all.remove(&self.address);
        } else {
            all.insert(self.address, left);
        }
    }
}

/// The ingresses, each with the task that checks it. Dropping an entry ends its task.
type IngressTasks = BTreeMap<SocketAddr, (Arc<BalancedIngress>, AbortOnDropHandle<()>)>;

pub(crate) struct Balancer {
    config: Mutex<Arc<ClientConfig>>,
    known: Mutex<IngressTasks>,
    turn: AtomicUsize,
    clients: Arc<ConnectionCounts>,
}

impl Balancer {
    /// Creates a balancer without ingresses. `authorities` is PEM.
    pub(crate) fn new(authorities: &str) -> Result<Arc<Self>, AgentTlsError> {
        let config = Arc::new(client_from_pem(authorities.as_bytes(), None)?);
        let config = Mutex::new(config);
        Ok(Arc::new(Self { config, known: Mutex::default(), turn: AtomicUsize::new(0), clients: Arc::default() }))
    }

    fn known(&self) -> MutexGuard<'_, IngressTasks> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.config.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the ingresses and authorities. Connections through an ingress that is no longer listed are reset, because it is about to stop.
    pub(crate) fn set(self: &Arc<Self>, ingresses: &[SocketAddr], authorities: &str) -> Result<(), AgentTlsError> {
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
                let ingress = Arc::new(BalancedIngress {
                    address: *address,
                    answers: Mutex::default(),
                    connections: AtomicUsize::new(0),
                    reset: Mutex::default(),
                });
                let watched = tokio::spawn(watch(Arc::clone(self), Arc::clone(&ingress)));
                (ingress, AbortOnDropHandle::new(watched))
            });
        }
        Ok(())
    }

    /// Returns all ingresses: healthy ones first, in rotation, then unchecked ones, then those that failed.
    fn in_order(&self) -> Vec<Arc<BalancedIngress>> {
        let mut all: Vec<Arc<BalancedIngress>> =
            self.known().values().map(|(ingress, _)| Arc::clone(ingress)).collect();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let start = turn % all.len().max(1);
        all.rotate_left(start);
        all.sort_by_key(|ingress| match ingress.answers() {
            Some(true) => 0,
            None => 1,
            Some(false) => 2,
        });
        all
    }

    /// Returns the state of all ingresses, ordered by address.
    pub(crate) fn status(&self) -> Vec<IngressStatus> {
        let known = self.known();
        let status = known.values().map(|(ingress, _)| IngressStatus {
            address: ingress.address,
            answers: ingress.answers(),
            connections: ingress.connections.load(Ordering::Relaxed),
        });
        status.collect()
    }

    /// Accepts connections while it is polled.
    pub(crate) async fn serve(self: Arc<Self>, listener: TcpListener) {
        let mut is_full = false;
        loop {
            match listener.accept().await {
                Ok((client, from)) => {
                    let admitted = self.clients.admit(from.ip());
                    if admitted.is_none() && !is_full {
                        tracing::warn!(from = %from.ip(), "refusing connections to the API: too many connections are open");
                    }
                    is_full = admitted.is_none();
                    match admitted {
                        Some(admitted) => drop(tokio::spawn(pass(Arc::clone(&self), client, admitted))),
                        None => reset(&client),
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection to the API");
                    sleep(AGAIN).await;
                }
            }
        }
    }

    async fn check(&self, ingress: &BalancedIngress) -> Result<(), CheckError> {
        let config = self.config();
        let asked = async {
            let stream = TcpStream::connect(ingress.address).await.map_err(CheckError::Connect)?;
            https::get(config, SERVER_NAME, stream, ingress.address, "/readyz").await.map_err(CheckError::Ask)
        };
        let status = timeout(CHECK, asked).await.map_err(|_| CheckError::Silent)??;
        if status.is_success() { Ok(()) } else { Err(CheckError::NotReady(status.as_u16())) }
    }
}

/// Listens on the reserved address, which must already be an address of this machine. A daemon that has just ended may still hold it.
pub(crate) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(1024)
}

async fn watch(balancer: Arc<Balancer>, ingress: Arc<BalancedIngress>) {
    let mut turns = interval(CHECK_EVERY);
    turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut misses = 0;
    loop {
        turns.tick().await;
        let outcome = balancer.check(&ingress).await;
        let before = ingress.note(outcome.is_ok());
        let Err(error) = outcome else {
            misses = 0;
            if before == Some(false) {
                tracing::info!(ingress = %ingress.address, "ingress responds again");
            }
            continue;
        };
        if before != Some(false) {
            tracing::warn!(ingress = %ingress.address, "health check of the ingress failed: {}", ErrorChain(&error));
        }
        misses = if error.is_loss() { misses + 1 } else { 0 };
        if misses == MISSES {
            ingress.reset();
        } else if misses == 1 {
            // Check again at once.
            turns.reset_immediately();
        }
    }
}

/// Forwards one connection until it ends or its ingress is lost.
async fn pass(balancer: Arc<Balancer>, mut client: TcpStream, _admitted: Admitted) {
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
            reset(&client);
        }
        return;
    }
    reset(&client);
}

/// Makes the close of `client` a reset, so that the client observes the failure at once.
fn reset(client: &TcpStream) {
    let _ = SockRef::from(client).set_linger(Some(Duration::ZERO));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_client_address_cannot_use_up_the_connections_of_others() {
        let clients = Arc::new(ConnectionCounts::default());
        let address = |last: u8| IpAddr::from([10, 244, 0, last]);
        let greedy: Vec<_> = (0..MOST_OF_ONE).map(|_| clients.admit(address(1)).unwrap()).collect();
        assert!(clients.admit(address(1)).is_none());
        let others: Vec<_> = (2..5)
            .map(|last| (0..MOST_OF_ONE).map(|_| clients.admit(address(last)).unwrap()).collect::<Vec<_>>())
            .collect();
        assert!(clients.admit(address(9)).is_none(), "all of them are too many");
        drop(greedy);
        assert!(clients.admit(address(9)).is_some());
        drop(others);
        assert!(clients.lock().is_empty());
    }
}
