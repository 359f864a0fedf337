//! Health and metrics of the agent, for the kubelet's probes and for Prometheus.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    str::FromStr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use http::StatusCode;
use keelway_local_http::{LocalListener, LocalResponse, metrics, text};
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;

/// The health endpoint cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}")]
pub struct HealthError {
    address: SocketAddr,
    #[source]
    source: io::Error,
}

/// The addresses for health and metrics. The agent listens on the first one that it can open. Without an address, it does not listen.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HealthAddresses(Vec<SocketAddr>);

/// A text is not an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("must be ADDRESS:PORT, or :PORT for all addresses, such as :8080")]
pub struct InvalidHealthAddress;

impl FromStr for HealthAddresses {
    type Err = InvalidHealthAddress;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some(port) = text.strip_prefix(':') {
            let port: u16 = port.parse().map_err(|_| InvalidHealthAddress)?;
            // The IPv6 address serves both families if the node has both.
            return Ok(Self(vec![(Ipv6Addr::UNSPECIFIED, port).into(), (Ipv4Addr::UNSPECIFIED, port).into()]));
        }
        text.parse().map(|address| Self(vec![address])).map_err(|_| InvalidHealthAddress)
    }
}

impl HealthAddresses {
    /// Listens on the first address that can be opened.
    pub(crate) async fn listen(&self) -> Result<Option<TcpListener>, HealthError> {
        let mut failed = None;
        for &address in &self.0 {
            match TcpListener::bind(address).await {
                Ok(listener) => return Ok(Some(listener)),
                Err(source) => failed = Some(HealthError { address, source }),
            }
        }
        failed.map_or(Ok(None), Err)
    }
}

/// Whether the agent can do its work.
#[derive(Debug, Default)]
pub(crate) struct AgentHealth {
    /// Whether the API server of the agent's own cluster has responded.
    pub(crate) is_ready: AtomicBool,
    /// Whether the fleet refuses the agent. It is not ready then, because it never gets another Work.
    pub(crate) is_refused: Arc<AtomicBool>,
}

/// Serves requests until the process ends. Metrics contain numbers and no names of objects.
pub(crate) async fn serve(listener: TcpListener, health: Arc<AgentHealth>, registry: &Registry) {
    keelway_local_http::serve(LocalListener::Tcp(listener), |path| respond(path, &health, registry)).await;
}

fn respond(path: &str, health: &AgentHealth, registry: &Registry) -> LocalResponse {
    let AgentHealth { is_ready, is_refused } = health;
    match path {
        "/healthz" => text(StatusCode::OK, "ok\n".to_owned()),
        "/readyz" if is_refused.load(Ordering::Relaxed) => {
            text(StatusCode::SERVICE_UNAVAILABLE, "the fleet refuses this agent; its log names the cause\n".to_owned())
        }
        "/readyz" if is_ready.load(Ordering::Relaxed) => text(StatusCode::OK, "ok\n".to_owned()),
        "/readyz" => {
            text(StatusCode::SERVICE_UNAVAILABLE, "the API server of this cluster has not responded yet\n".to_owned())
        }
        "/metrics" => metrics(registry),
        _ => text(StatusCode::NOT_FOUND, "not found; the paths are /healthz, /readyz and /metrics\n".to_owned()),
    }
}
