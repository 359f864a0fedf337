//! The health endpoint of the agent, for the kubelet's probes.

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use http::StatusCode;
use keelway_local_http::{LocalListener, LocalResponse, text};
use tokio::net::TcpListener;

/// The health endpoint cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}")]
pub struct HealthError {
    address: SocketAddr,
    #[source]
    source: io::Error,
}

/// Listens on an address.
pub(crate) async fn listen(address: SocketAddr) -> Result<TcpListener, HealthError> {
    TcpListener::bind(address).await.map_err(|source| HealthError { address, source })
}

/// Serves requests until the process ends. They show nothing but whether the agent is ready.
pub(crate) async fn serve(listener: TcpListener, is_ready: Arc<AtomicBool>) {
    keelway_local_http::serve(LocalListener::Loopback(listener), |path| respond(path, &is_ready)).await;
}

fn respond(path: &str, is_ready: &AtomicBool) -> LocalResponse {
    match path {
        "/healthz" => text(StatusCode::OK, "ok\n".to_owned()),
        "/readyz" if is_ready.load(Ordering::Relaxed) => text(StatusCode::OK, "ok\n".to_owned()),
        "/readyz" => {
            text(StatusCode::SERVICE_UNAVAILABLE, "the API server of this cluster has not responded yet\n".to_owned())
        }
        _ => text(StatusCode::NOT_FOUND, "not found; the paths are /healthz and /readyz\n".to_owned()),
    }
}
