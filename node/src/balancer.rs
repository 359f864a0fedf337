//! The API of the cluster on the worker itself: it forwards connections to the reserved address to a healthy ingress.

mod ingress_check;
mod ingress_loss;

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
use keelway_http_proxy::HttpProxies;
use keelway_tls::component::{AgentTlsError, client_from_pem};
use keelway_vpn::liveness::keep_alive_within;
use rustls::ClientConfig;
use serde::{Deserialize, Serialize};
use socket2::SockRef;
use tokio::{
    io::copy_bidirectional_with_sizes,
    net::{TcpListener, TcpSocket, TcpStream},
    sync::Notify,
    time::{Instant, MissedTickBehavior, interval, sleep, timeout},
};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use self::{
    ingress_check::{CheckError, CheckSource, FailedCheck, IngressChecker, SLOW, UNKNOWN_AUTHORITY},
    ingress_loss::IngressLoss,
};

/// The interval of health checks of each ingress.
const CHECK_EVERY: Duration = Duration::from_secs(2);
/// How long one ingress may take to accept a connection before the next one is tried.
const CONNECT: Duration = Duration::from_secs(2);
/// How long an ingress may leave data of a connection unacknowledged. Health checks detect a loss sooner. A shorter time would end connections while
/// the worker has lost its own network for a moment.
const SILENCE: Duration = Duration::from_secs(60);
/// The buffer of one connection for each direction, in bytes.
const BUFFER: usize = 16 * 1024;
/// The most concurrent connections: in total, and per source address, so that one pod cannot exhaust the connections of others.
const MOST: usize = 4096;
const MOST_OF_ONE: usize = 1024;
/// The pause before accepting is retried after an error.
const AGAIN: Duration = Duration::from_millis(100);

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
    /// The HTTP proxy through which the ingress is reached, without credentials. Absent if it is reached directly.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub proxy: Option<String>,
    /// Why the ingress cannot be used, and what to do. Absent if that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
}

/// The result of the last check of an ingress.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum IngressHealth {
    Unchecked,
    Healthy(Instant),
    Failed,
    /// The worker does not know its authority.
    Untrusted,
}

impl IngressHealth {
    fn of(outcome: &Result<CheckSource, FailedCheck>) -> Self {
        match outcome {
            Ok(_) => Self::Healthy(Instant::now()),
            Err(FailedCheck { error: CheckError::UnknownAuthority, .. }) => Self::Untrusted,
            Err(_) => Self::Failed,
        }
    }

    fn has_failed(self) -> bool {
        matches!(self, Self::Failed | Self::Untrusted)
    }
}

struct BalancedIngress {
    address: SocketAddr,
    health: Mutex<IngressHealth>,
    connections: AtomicUsize,
    /// Ends all current connections. After a reset, new connections use a new token.
    reset: Mutex<CancellationToken>,
    /// Notified if a connection failed although the last check succeeded.
    refused: Notify,
    /// Notified if another ingress is slow: whether this one responds decides what the slow one means.
    doubted: Notify,
}

impl BalancedIngress {
    fn new(address: SocketAddr) -> Arc<Self> {
        Arc::new(Self {
            address,
            health: Mutex::new(IngressHealth::Unchecked),
            connections: AtomicUsize::new(0),
            reset: Mutex::default(),
            refused: Notify::new(),
            doubted: Notify::new(),
        })
    }

    fn health(&self) -> IngressHealth {
        *self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answers(&self) -> Option<bool> {
        match self.health() {
            IngressHealth::Unchecked => None,
            IngressHealth::Healthy(_) => Some(true),
            IngressHealth::Failed | IngressHealth::Untrusted => Some(false),
        }
    }

    /// Returns when it responded last, if its last check succeeded.
    fn responded(&self) -> Option<Instant> {
        match self.health() {
            IngressHealth::Healthy(at) => Some(at),
            IngressHealth::Unchecked | IngressHealth::Failed | IngressHealth::Untrusted => None,
        }
    }

    /// Records the result of a check, and returns the previous one.
    fn note(&self, health: IngressHealth) -> IngressHealth {
        std::mem::replace(&mut *self.health.lock().unwrap_or_else(PoisonError::into_inner), health)
    }

    /// Requests a check over a new connection, because the ingress did not accept one.
    fn note_refusal(&self) {
        if self.responded().is_some() {
            self.refused.notify_one();
        }
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

/// The authorities that verify ingresses: as PEM, and as configuration.
struct BalancerTrust {
    authorities: String,
    config: Arc<ClientConfig>,
}

impl BalancerTrust {
    fn new(authorities: &str) -> Result<Self, AgentTlsError> {
        let config = Arc::new(client_from_pem(authorities.as_bytes(), None)?);
        Ok(Self { authorities: authorities.to_owned(), config })
    }
}

pub(crate) struct Balancer {
    proxies: HttpProxies,
    trust: Mutex<BalancerTrust>,
    known: Mutex<IngressTasks>,
    /// Notified after each check that succeeded.
    responded: Notify,
    turn: AtomicUsize,
    clients: Arc<ConnectionCounts>,
}

impl Balancer {
    /// Creates a balancer without ingresses. `authorities` is PEM.
    pub(crate) fn new(authorities: &str, proxies: HttpProxies) -> Result<Arc<Self>, AgentTlsError> {
        Ok(Arc::new(Self {
            proxies,
            trust: Mutex::new(BalancerTrust::new(authorities)?),
            known: Mutex::default(),
            responded: Notify::new(),
            turn: AtomicUsize::new(0),
            clients: Arc::default(),
        }))
    }

    fn known(&self) -> MutexGuard<'_, IngressTasks> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn trust(&self) -> MutexGuard<'_, BalancerTrust> {
        self.trust.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn config(&self) -> Arc<ClientConfig> {
        Arc::clone(&self.trust().config)
    }

    /// Replaces the ingresses and authorities. Connections through an ingress that is no longer listed are reset once another one responds, because
    /// it is about to stop.
    pub(crate) fn set(self: &Arc<Self>, ingresses: &[SocketAddr], authorities: &str) -> Result<(), AgentTlsError> {
        // The same configuration keeps the connections of checks.
        if self.trust().authorities != authorities {
            *self.trust() = BalancerTrust::new(authorities)?;
        }
        let mut known = self.known();
        known.retain(|address, (ingress, _)| {
            let is_wanted = ingresses.contains(address);
            if !is_wanted {
                tokio::spawn(Arc::clone(self).retire(Arc::clone(ingress)));
            }
            is_wanted
        });
        for address in ingresses {
            known.entry(*address).or_insert_with(|| {
                let ingress = BalancedIngress::new(*address);
                let watched = tokio::spawn(watch(Arc::clone(self), Arc::clone(&ingress)));
                (ingress, AbortOnDropHandle::new(watched))
            });
        }
        Ok(())
    }

    /// Returns when the other ingresses responded last.
    fn responses_of_others(&self, ingress: &BalancedIngress) -> Vec<Instant> {
        let known = self.known();
        let others = known.values().filter(|(other, _)| other.address != ingress.address);
        others.filter_map(|(other, _)| other.responded()).collect()
    }

    /// Requests a check of all ingresses but this one.
    fn check_others(&self, ingress: &BalancedIngress) {
        let known = self.known();
        let others = known.values().filter(|(other, _)| other.address != ingress.address);
        others.for_each(|(other, _)| other.doubted.notify_one());
    }

    /// Resets the connections of an ingress that is no longer listed, once a listed one responds.
    async fn retire(self: Arc<Self>, ingress: Arc<BalancedIngress>) {
        loop {
            let responded = self.responded.notified();
            if self.known().values().any(|(listed, _)| listed.responded().is_some()) {
                return ingress.reset();
            }
            responded.await;
        }
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
            proxy: self.proxies.of_address(ingress.address).map(ToString::to_string),
            problem: (ingress.health() == IngressHealth::Untrusted).then(|| UNKNOWN_AUTHORITY.to_owned()),
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
    let mut checker = IngressChecker::new(ingress.address, balancer.proxies.clone());
    let mut loss = IngressLoss::default();
    loop {
        tokio::select! {
            _ = turns.tick() => {}
            () = ingress.doubted.notified() => {}
            () = ingress.refused.notified() => checker.close(),
            () = balancer.responded.notified(), if loss.is_pending() => {
                reset_if_lost(&balancer, &ingress, &mut loss);
                continue;
            }
        }
        let began = Instant::now();
        let config = balancer.config();
        let mut check = Box::pin(checker.check(&config));
        let outcome = if let Ok(soon) = timeout(SLOW, &mut check).await {
            soon
        } else {
            if loss.is_over() {
                balancer.check_others(&ingress);
            }
            check.await
        };
        note(&ingress, &outcome);
        match outcome {
            Ok(source) => {
                loss.end();
                balancer.responded.notify_waiters();
                if source == CheckSource::Changed {
                    ingress.reset();
                }
            }
            Err(failed) if failed.error.is_loss() => {
                if loss.record(failed.failures, began, Instant::now()) {
                    turns.reset_immediately();
                }
            }
            Err(_) => loss.end(),
        }
        reset_if_lost(&balancer, &ingress, &mut loss);
    }
}

/// Records and logs the result of a check.
fn note(ingress: &BalancedIngress, outcome: &Result<CheckSource, FailedCheck>) {
    let now = IngressHealth::of(outcome);
    let before = ingress.note(now);
    let ingress = ingress.address;
    match outcome {
        Ok(CheckSource::Changed) => {
            tracing::info!(%ingress, "this worker's uplink changed: resetting the connections of its previous address");
        }
        Ok(CheckSource::Same) if before.has_failed() => tracing::info!(%ingress, "ingress responds again"),
        Err(failed) if before != now => {
            tracing::warn!(%ingress, "health check of the ingress failed: {}", ErrorChain(&failed.error));
        }
        Ok(CheckSource::Same) | Err(_) => {}
    }
}

fn reset_if_lost(balancer: &Balancer, ingress: &BalancedIngress, loss: &mut IngressLoss) {
    if loss.resets(balancer.responses_of_others(ingress)) {
        ingress.reset();
    }
}

/// Forwards one connection until it ends or its ingress is lost.
async fn pass(balancer: Arc<Balancer>, mut client: TcpStream, _admitted: Admitted) {
    let _ = client.set_nodelay(true);
    for ingress in balancer.in_order() {
        let token = ingress.token();
        let Ok(Ok(mut server)) = timeout(CONNECT, balancer.proxies.connect(ingress.address)).await else {
            ingress.note_refusal();
            continue;
        };
        let _ = server.set_nodelay(true);
        keep_alive_within(&server, SILENCE);
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
mod tests;
