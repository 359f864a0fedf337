//! Connections to webhooks, OIDC issuers and the like. A tenant chooses their names, and must not reach every network that the egress can reach.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ipnet::IpNet;
use keelway_base::error_chain::ErrorChain;
use keelway_vpn::netlink::interface::local_addresses;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::{Instant, timeout, timeout_at};

use keelway_vpn::liveness::keep_alive;

use super::BUDGET;
use super::address_policy::check_address;
use crate::connect::{ConnectRefusal, OpenedTunnel, RefusalReason, TunnelOpener, TunnelRegistry, TunnelTarget};
use crate::connects::Connects;

/// How long the resolution of a name may take.
const RESOLUTION: Duration = Duration::from_millis(2500);
/// The most addresses of one name that are tried.
const MOST_ADDRESSES: usize = 4;

/// Ranges to which the egress never connects. They change as machines are added and removed.
#[derive(Default)]
pub(super) struct ForbiddenRanges(Mutex<Arc<Vec<IpNet>>>);

impl ForbiddenRanges {
    pub(super) fn set(&self, ranges: Vec<IpNet>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(ranges);
    }

    fn get(&self) -> Arc<Vec<IpNet>> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Connects to addresses that a control plane may reach.
pub(super) struct ControlPlaneDialer {
    forbidden: Arc<ForbiddenRanges>,
    tunnels: Arc<TunnelRegistry<()>>,
    connects: Connects,
}

impl ControlPlaneDialer {
    pub(super) fn new(forbidden: Arc<ForbiddenRanges>, tunnels: Arc<TunnelRegistry<()>>, connects: Connects) -> Self {
        Self { forbidden, tunnels, connects }
    }

    /// Returns the addresses to connect to. The caller connects to exactly the addresses that were checked here.
    async fn addresses(&self, target: &TunnelTarget) -> Result<Vec<SocketAddr>, ConnectRefusal> {
        let found = match target {
            TunnelTarget::Address(address) => BTreeSet::from([*address]),
            TunnelTarget::Name { host, port } => resolve(host, *port).await?,
        };
        let own = local_addresses().map_err(|error| {
            tracing::error!(
                "refusing all connections, because the machine's addresses cannot be read: {}",
                ErrorChain(&error)
            );
            ConnectRefusal::new(RefusalReason::Unreachable, "the machine's own addresses cannot be read")
        })?;
        let forbidden = self.forbidden.get();
        let mut refused = None;
        let mut allowed = Vec::new();
        for address in found {
            match check_address(address.ip(), &forbidden, &own) {
                Ok(()) => allowed.push(address),
                Err(why) => {
                    refused = Some(ConnectRefusal::new(RefusalReason::Forbidden, format!("{} is {why}", address.ip())));
                }
            }
        }
        match refused {
            Some(refusal) if allowed.is_empty() => Err(refusal),
            _ => Ok(allowed.into_iter().take(MOST_ADDRESSES).collect()),
        }
    }

    async fn dial(&self, target: &TunnelTarget) -> Result<TcpStream, ConnectRefusal> {
        let deadline = Instant::now() + BUDGET;
        let addresses = self.addresses(target).await?;
        let mut last = ConnectRefusal::new(RefusalReason::Unreachable, format!("{target} has no address"));
        let mut left = u32::try_from(addresses.len()).unwrap_or(u32::MAX);
        for address in addresses {
            let now = Instant::now();
            // Each address gets an equal share of the remaining time, so that the last one is tried, too.
            let share = now + deadline.saturating_duration_since(now) / left.max(1);
            left -= 1;
            last = match timeout_at(share, TcpStream::connect(address)).await {
                Ok(Ok(stream)) => return Ok(stream),
                Ok(Err(error)) => {
                    ConnectRefusal::new(RefusalReason::Unreachable, format!("{address} cannot be reached: {error}"))
                }
                Err(_) => ConnectRefusal::new(RefusalReason::TimedOut, format!("{address} did not respond in time")),
            };
        }
        Err(last)
    }
}

impl TunnelOpener for ControlPlaneDialer {
    type Stream = TcpStream;
    type Key = ();

    async fn open(&self, target: &TunnelTarget) -> Result<OpenedTunnel<TcpStream, ()>, ConnectRefusal> {
        let tunnel = self.tunnels.enter(());
        let tunnel = tunnel
            .ok_or_else(|| ConnectRefusal::new(RefusalReason::Busy, "the limit of concurrent tunnels is reached"))?;
        let stream = self.dial(target).await?;
        let _ = stream.set_nodelay(true);
        keep_alive(&stream);
        Ok(OpenedTunnel { stream, tunnel })
    }

    fn connects(&self) -> &Connects {
        &self.connects
    }
}

async fn resolve(host: &str, port: u16) -> Result<BTreeSet<SocketAddr>, ConnectRefusal> {
    match timeout(RESOLUTION, lookup_host((host, port))).await {
        Ok(Ok(found)) => Ok(found.collect()),
        Ok(Err(error)) => {
            Err(ConnectRefusal::new(RefusalReason::Unreachable, format!("{host} cannot be resolved: {error}")))
        }
        Err(_) => Err(ConnectRefusal::new(RefusalReason::TimedOut, format!("{host} was not resolved in time"))),
    }
}
