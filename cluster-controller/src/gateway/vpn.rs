//! The gateway's access to the VPN: its members, and connections to them.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use keelway_vpn::relay::{Dialer, RelayStream, StreamKeepalive};
use keelway_vpn::{PublicKey, Relay, SystemClock};
use tokio::time::{Instant, sleep};

use super::gateway_peers::GatewayPeers;
use super::streams::StreamRegistry;
use crate::connect::{ConnectRefusal, OpenedTunnel, RefusalReason, TunnelOpener, TunnelRegistry, TunnelTarget};
use crate::connects::Connects;

/// How long a worker may take to accept a connection.
const DIAL: Duration = Duration::from_secs(3);
/// How long a kubelet may refuse connections, because it is being restarted.
const KUBELET_RESTART: Duration = Duration::from_secs(5);
/// The pause between two attempts to connect to it.
const KUBELET_AGAIN: Duration = Duration::from_millis(200);
/// The port on which kubelets serve logs and commands.
const KUBELET: u16 = 10250;
/// The interval of keepalive probes on an open connection.
const ASKED_EVERY: Duration = Duration::from_secs(3);
/// How long a worker may be silent. Then its tunnels are reset.
const DEAD_AFTER: Duration = Duration::from_secs(9);

/// The target of a tunnel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PeerRoute {
    /// The peer that owns the address.
    pub(super) peer: PublicKey,
    /// The address of the peer.
    pub(super) address: IpAddr,
    /// When the tunnel was opened, on the clock of [`SystemClock`].
    pub(super) since: Duration,
}

/// The relay, its peers, and the tunnels to them.
pub(super) struct Vpn {
    pub(super) relay: Relay,
    pub(super) tunnels: Arc<TunnelRegistry<PeerRoute>>,
    pub(super) connects: Connects,
    /// The streams of workers whose network lets no UDP through.
    pub(super) streams: Arc<StreamRegistry>,
    members: RwLock<Arc<GatewayPeers>>,
    dialer: Dialer,
}

impl Vpn {
    /// Creates a VPN without members, so that no tunnel can be opened yet.
    pub(super) fn new(relay: Relay, most_tunnels: usize) -> Self {
        let dialer = relay.dialer().with_liveness(StreamKeepalive { interval: ASKED_EVERY, dead_after: DEAD_AFTER });
        let members = RwLock::new(Arc::new(GatewayPeers::default()));
        let (tunnels, streams) = (TunnelRegistry::new(most_tunnels), Arc::default());
        Self { relay, tunnels, connects: Connects::default(), streams, members, dialer }
    }

    /// Returns the current members.
    pub(super) fn members(&self) -> Arc<GatewayPeers> {
        Arc::clone(&self.members.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the members, and resets tunnels to all others. Returns the previous members.
    pub(super) fn admit_only(&self, members: GatewayPeers) -> Arc<GatewayPeers> {
        let members = Arc::new(members);
        let before =
            std::mem::replace(&mut *self.members.write().unwrap_or_else(PoisonError::into_inner), Arc::clone(&members));
        let reset = self.tunnels.reset(|way| members.owner(way.address) != Some(way.peer));
        if reset > 0 {
            tracing::info!(tunnels = reset, "reset tunnels to addresses that no longer belong to a peer");
        }
        before
    }

    /// Resets the tunnels to dead peers. Open connections send keepalive probes, so that a live peer is heard.
    pub(super) fn reset_dead(&self) {
        if self.tunnels.len() == 0 {
            return;
        }
        let now = SystemClock.now().elapsed;
        let stats = self.relay.stats();
        let heard: BTreeMap<PublicKey, Option<Duration>> =
            stats.into_iter().map(|peer| (peer.public_key, peer.last_received)).collect();
        let reset = self.tunnels.reset(|way| {
            let heard = heard.get(&way.peer).copied().flatten().unwrap_or_default().max(way.since);
            now.saturating_sub(heard) >= DEAD_AFTER
        });
        if reset > 0 {
            tracing::info!(tunnels = reset, "reset tunnels to peers that sent nothing for {DEAD_AFTER:?}");
        }
    }

    /// Returns when a worker was last heard, on the clock of [`SystemClock`].
    pub(super) fn last_heard(&self) -> Option<Duration> {
        let members = self.members();
        let stats = self.relay.stats().into_iter();
        let workers = stats.filter(|peer| members.by_key.contains_key(&peer.public_key));
        workers.filter_map(|peer| peer.last_received).max()
    }

    /// Whether the endpoint of a peer is known.
    fn is_met(&self, peer: &PublicKey) -> bool {
        self.relay.stats().iter().any(|known| known.public_key == *peer && known.endpoint.is_some())
    }

    async fn try_dial(&self, to: SocketAddr) -> Result<RelayStream, ErrorKind> {
        match tokio::time::timeout(DIAL, self.dialer.dial(to, DIAL)).await {
            Ok(dialled) => dialled.map_err(|error| error.kind()),
            Err(_) => Err(ErrorKind::TimedOut),
        }
    }

    async fn dial(&self, to: SocketAddr) -> Result<RelayStream, ConnectRefusal> {
        let dialled =
            if to.port() == KUBELET { until_accepted(|| self.try_dial(to)).await } else { self.try_dial(to).await };
        let error = match dialled {
            Ok(stream) => return Ok(stream),
            Err(error) => error,
        };
        if error == ErrorKind::TimedOut {
            let text = format!("{to} did not respond within {} s", DIAL.as_secs());
            return Err(ConnectRefusal::new(RefusalReason::TimedOut, text));
        }
        Err(ConnectRefusal::new(RefusalReason::Unreachable, format!("{to} cannot be reached: {error}")))
    }
}

impl TunnelOpener for Vpn {
    type Stream = RelayStream;
    type Key = PeerRoute;

    async fn open(&self, target: &TunnelTarget) -> Result<OpenedTunnel<RelayStream, PeerRoute>, ConnectRefusal> {
        let TunnelTarget::Address(to) = target else {
            return Err(ConnectRefusal::new(
                RefusalReason::Forbidden,
                "the target must be an address of a peer, not a name",
            ));
        };
        let Some(peer) = self.members().owner(to.ip()) else {
            let text = format!("{} is not an address of a peer of this cluster", to.ip());
            return Err(ConnectRefusal::new(RefusalReason::Forbidden, text));
        };
        if !self.is_met(&peer) {
            let text = format!("the worker with the address {} has not connected yet", to.ip());
            return Err(ConnectRefusal::new(RefusalReason::Unreachable, text));
        }
        let way = PeerRoute { peer, address: to.ip(), since: SystemClock.now().elapsed };
        let tunnel = self.tunnels.enter(way);
        let tunnel = tunnel
            .ok_or_else(|| ConnectRefusal::new(RefusalReason::Busy, "the limit of concurrent tunnels is reached"))?;
        let stream = self.dial(*to).await?;
        Ok(OpenedTunnel { stream, tunnel })
    }

    fn connects(&self) -> &Connects {
        &self.connects
    }
}

/// Repeats an attempt to connect while it is refused.
async fn until_accepted<S, F>(mut dial: impl FnMut() -> F) -> Result<S, ErrorKind>
where
    F: Future<Output = Result<S, ErrorKind>>,
{
    let end = Instant::now() + KUBELET_RESTART;
    loop {
        match dial().await {
            Err(ErrorKind::ConnectionRefused) if Instant::now() < end => sleep(KUBELET_AGAIN).await,
            dialled => return dialled,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the result of attempts of which the first ones fail with this error, and how long they took.
    async fn dialled(failures: usize, error: ErrorKind) -> (Result<usize, ErrorKind>, Duration) {
        let (began, mut attempts) = (Instant::now(), 0);
        let dialled = until_accepted(|| {
            attempts += 1;
            std::future::ready(if attempts > failures { Ok(attempts) } else { Err(error) })
        });
        (dialled.await, began.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_kubelet_that_restarts_is_waited_for() {
        assert_eq!(dialled(10, ErrorKind::ConnectionRefused).await, (Ok(11), KUBELET_AGAIN * 10));
        let (refused, took) = dialled(1000, ErrorKind::ConnectionRefused).await;
        assert_eq!((refused, took), (Err(ErrorKind::ConnectionRefused), KUBELET_RESTART));
        let (silent, took) = dialled(1000, ErrorKind::TimedOut).await;
        assert_eq!((silent, took), (Err(ErrorKind::TimedOut), Duration::ZERO));
    }
}
