//! The status of a worker, over a socket of the daemon that only root can use.

use std::{io, path::Path, time::Duration};

use http::StatusCode;
use jiff::Timestamp;
use keelway_base::unix_listener;
use keelway_local_http::LocalListener;
use serde::{Deserialize, Serialize};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
    time::{sleep, timeout},
};

pub use crate::{balancer::IngressStatus, kubelet::KubeletStatus, tunnels::TunnelStatus};
use crate::{direct_paths::DirectPathStatus, files::NodeFileError, settings::Layout, worker_metrics};

/// How long the daemon may take to respond.
const ANSWER: Duration = Duration::from_secs(10);
/// The pause before accepting is retried after an error.
const AGAIN: Duration = Duration::from_millis(100);

/// The status of a worker.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerStatus {
    /// The Node's name.
    pub node: String,
    /// The cluster's release.
    pub version: String,
    /// The daemon's process id.
    pub pid: u32,
    /// The daemon's memory, in KiB.
    pub resident_kib: u64,
    /// The worker's addresses in the VPN.
    pub addresses: Vec<String>,
    /// The ranges of the worker's pods.
    #[serde(rename = "podCIDRs")]
    pub pod_cidrs: Vec<String>,
    /// The tunnels, one per gateway.
    pub tunnels: Vec<TunnelStatus>,
    /// The paths to other workers without a gateway.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub direct_paths: Vec<DirectPathStatus>,
    /// The ingresses of the balancer.
    pub ingresses: Vec<IngressStatus>,
    /// The state of the kubelet.
    pub kubelet: KubeletStatus,
    /// The kubelet's certificates.
    pub certificates: Vec<CertificateStatus>,
    /// Settings that pods need and that the kernel does not have, for example if `br_netfilter` is not loaded.
    #[serde(default)]
    pub absent_settings: Vec<String>,
    /// What other programs did on the machine that keeps pods from getting the cluster's network, each with what to do.
    #[serde(default)]
    pub pod_network_conflicts: Vec<String>,
    /// What firewalls of other programs drop of the cluster's packets, each with what to do.
    #[serde(default)]
    pub firewall_drops: Vec<String>,
    /// The connections that fail from the place of a pod, each with what to do.
    #[serde(default)]
    pub pod_probe_failures: Vec<String>,
    /// Why the cluster has no Node of this worker, and what to do. Absent if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_problem: Option<String>,
    /// What else on the machine uses ranges of the cluster, each with what to do.
    #[serde(default)]
    pub range_clashes: Vec<String>,
}

/// A certificate of the kubelet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CertificateStatus {
    /// `client` or `serving`.
    pub name: String,
    /// The start of its validity.
    pub not_before: Timestamp,
    /// The end of its validity.
    pub not_after: Timestamp,
}

/// The status cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum StatusError {
    /// The machine is not a worker.
    #[error("this machine is not a worker: {0} does not exist; join it with `keelway node join`")]
    NoWorker(String),
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] NodeFileError),
    /// The daemon does not respond.
    #[error(
        "the worker's daemon does not respond; start it with `systemctl start keelway-node`, or `keelway node run`"
    )]
    Ask(#[source] io::Error),
    /// The daemon did not respond in time.
    #[error("the worker's daemon did not respond within {} s", ANSWER.as_secs())]
    Silent,
    /// The response cannot be parsed.
    #[error("cannot parse the daemon's response: the daemon is of another release; restart it")]
    Form(#[source] serde_json::Error),
}

/// Reads the status from the daemon.
pub async fn ask(layout: &Layout) -> Result<WorkerStatus, StatusError> {
    if layout.read_options()?.is_none() {
        return Err(StatusError::NoWorker(layout.options().display().to_string()));
    }
    let asked = async {
        let mut stream = UnixStream::connect(layout.socket()).await?;
        let mut text = Vec::new();
        stream.read_to_end(&mut text).await?;
        Ok(text)
    };
    let text = timeout(ANSWER, asked).await.map_err(|_| StatusError::Silent)?.map_err(StatusError::Ask)?;
    serde_json::from_slice(&text).map_err(StatusError::Form)
}

/// Listens, and replaces the socket of a daemon that has ended.
pub(crate) fn listen(path: &Path) -> io::Result<UnixListener> {
    unix_listener::listen(path, 0o600)
}

/// Serves `/metrics` while it is polled. Only root can read it.
pub(crate) async fn serve_metrics(listener: UnixListener, status: impl Fn() -> WorkerStatus) {
    keelway_local_http::serve(LocalListener::Socket(listener), |path| match path {
        "/metrics" => keelway_local_http::metrics(&worker_metrics::registry(status(), Timestamp::now())),
        _ => keelway_local_http::text(StatusCode::NOT_FOUND, "not found; the path is /metrics\n".to_owned()),
    })
    .await;
}

/// Sends the status to each client that connects, while it is polled.
pub(crate) async fn serve(listener: UnixListener, status: impl Fn() -> WorkerStatus) {
    loop {
        match listener.accept().await {
            Ok((mut stream, _)) => {
                // The serialization of plain data cannot fail.
                let text = serde_json::to_vec(&status()).unwrap_or_default();
                let sent = timeout(ANSWER, stream.write_all(&text)).await;
                if !matches!(sent, Ok(Ok(()))) {
                    tracing::debug!("a client of the status socket disconnected early");
                }
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection on the status socket");
                sleep(AGAIN).await;
            }
        }
    }
}

/// Returns this process' memory, in KiB.
pub(crate) fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt};

    use super::*;
    use crate::samples::worker_status;

    async fn get(socket: &Path, path: &str) -> String {
        let mut stream = UnixStream::connect(socket).await.unwrap();
        let request = format!("GET {path} HTTP/1.1\r\nHost: worker\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).await.unwrap();
        response
    }

    #[tokio::test]
    async fn metrics_are_served_on_a_socket_of_root_only() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("metrics.sock");
        let listener = listen(&socket).unwrap();
        assert_eq!(fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
        let asking = async {
            let response = get(&socket, "/metrics").await;
            assert!(response.starts_with("HTTP/1.1 200") && response.contains("openmetrics-text"), "{response}");
            assert!(response.contains("\nkeelway_worker_kubelet_running 0.0\n"), "{response}");
            let response = get(&socket, "/").await;
            assert!(response.starts_with("HTTP/1.1 404") && response.contains("the path is /metrics"), "{response}");
        };
        tokio::select! {
            () = serve_metrics(listener, worker_status) => panic!("it serves until it is dropped"),
            () = asking => {}
        }
    }
}
