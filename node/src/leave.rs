//! Removes a worker from its cluster, and then restores the machine.

mod drain;

use std::{fmt, net::SocketAddr, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use keelway_api::worker::WireGuardPeer;
use keelway_base::error_chain::ErrorChain;
use keelway_http_proxy::HttpProxies;
use kube::{Api, Client, api::DeleteParams};
use tokio::time::{sleep, timeout};

pub(crate) use self::drain::drain;
use crate::{
    api::{self, ApiCredentials, ApiError},
    certificate,
    files::NodeFileError,
    information::TrustedInformation,
    service::{self, ServiceError},
    settings::Layout,
    undo::{self, UndoError},
};

/// The pause before a retry.
const AGAIN: Duration = Duration::from_secs(1);

/// How long an ingress may take to accept a connection before the next one is tried.
const CONNECT: Duration = Duration::from_secs(3);

/// How long transient errors of the cluster are retried.
const PATIENCE: Duration = Duration::from_secs(15);

/// How long the cluster may take to delete the Node of a worker that left.
const NODE_GONE: Duration = Duration::from_secs(10);

/// Options of `leave`.
#[derive(Debug, Clone)]
pub struct LeaveOptions {
    /// The location of the worker's files.
    pub layout: Layout,
    /// How long pods may take to end.
    pub drain_timeout: Duration,
    /// Whether to leave even if pods do not end or the cluster cannot be reached.
    pub force: bool,
}

/// Pods of a worker, `NAMESPACE/NAME`, that did not end in time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UndrainedPods {
    /// Evicted pods that have not ended yet.
    pub ending: Vec<String>,
    /// Pods that a PodDisruptionBudget holds.
    pub held: Vec<String>,
    /// How long they had.
    pub limit: Duration,
}

impl fmt::Display for UndrainedPods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [("have not terminated", &self.ending), ("are held by PodDisruptionBudgets", &self.held)];
        let parts = parts.iter().filter(|(_, pods)| !pods.is_empty());
        let parts: Vec<String> = parts.map(|(what, pods)| format!("{what}: {}", pods.join(", "))).collect();
        write!(f, "after {} s, pods {}", self.limit.as_secs(), parts.join("; pods "))
    }
}

/// The machine is still a worker.
#[derive(Debug, thiserror::Error)]
pub enum LeaveError {
    /// The machine is not a worker.
    #[error("this machine is not a worker: {0} does not exist")]
    NoWorker(String),
    /// A request to the cluster failed.
    #[error(
        "cannot remove the worker from the cluster: fix the cause and retry, use --force, or run `keelway node forget` and delete the Node and WireGuardPeer {node} in the cluster; to stay a worker, run `kubectl uncordon {node}`"
    )]
    Cluster {
        /// The name of the Node.
        node: String,
        /// The error of the API.
        #[source]
        source: ApiError,
    },
    /// Pods did not end in time.
    #[error("{pods}; increase --drain-timeout, or use --force; to stay a worker, run `kubectl uncordon {node}`")]
    Pods {
        /// The pods.
        pods: UndrainedPods,
        /// The name of the Node.
        node: String,
    },
    /// The daemon does not stop.
    #[error(transparent)]
    Service(#[from] ServiceError),
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] NodeFileError),
    /// The machine could not be restored.
    #[error(transparent)]
    Undo(#[from] UndoError),
}

/// The current step of `leave`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaveStep {
    /// Waits for these pods, `NAMESPACE/NAME`.
    Drain {
        /// Evicted pods that have not ended yet.
        ending: Vec<String>,
        /// Pods that a PodDisruptionBudget holds.
        held: Vec<String>,
    },
    /// A request to the cluster failed with a transient error and is retried.
    Again(String),
    /// Ends the remaining pods and restores the machine.
    Undo,
    /// The cluster still has a Node and a `WireGuardPeer` of this name.
    Known(String),
}

/// Leaves the cluster, and restores the machine.
pub async fn leave(options: &LeaveOptions, mut on_step: impl FnMut(&LeaveStep)) -> Result<(), LeaveError> {
    let (layout, force) = (&options.layout, options.force);
    let Some(node) = layout.read_options()? else {
        return Ok(undo::forget(layout).await.map(drop)?);
    };
    let failed = |source| LeaveError::Cluster { node: node.name.clone(), source };
    // A join that was interrupted before it had a certificate left nothing in the cluster.
    let is_known = unless_forced(force, client(layout).await.map_err(failed))?.flatten().is_some();
    let connect = async || client(layout).await?.ok_or(ApiError::NoIdentity);
    if is_known {
        unless_forced(force, drain(&connect, &node.name, options.drain_timeout, &mut on_step).await)?;
    }
    on_step(&LeaveStep::Undo);
    // The daemon still runs, so that CNI plugins can reach the API.
    undo::end_pods(layout, &node).await?;
    service::stop(node.service, layout).await?;
    let gone = if is_known {
        unless_forced(force, unregister(&connect, &node.name).await.map_err(failed))?.is_some()
    } else {
        !layout.identity().exists()
    };
    undo::forget(layout).await?;
    if !gone {
        on_step(&LeaveStep::Known(node.name));
    }
    Ok(())
}

/// Returns an error, unless `force` is set: then it only logs the error.
fn unless_forced<T>(force: bool, outcome: Result<T, LeaveError>) -> Result<Option<T>, LeaveError> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(error) if force => {
            tracing::warn!("{}", ErrorChain(&error));
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Returns a client of the API as this node, through an ingress, because the worker's own balancer stops. `None` without a certificate.
pub(crate) async fn client(layout: &Layout) -> Result<Option<Client>, ApiError> {
    let Some(known) = TrustedInformation::load(layout).map_err(ApiError::File)? else { return Ok(None) };
    if !layout.identity().exists() {
        return Ok(None);
    }
    let held =
        certificate::load_valid(layout, Timestamp::now()).map_err(ApiError::File)?.ok_or(ApiError::NoIdentity)?;
    let identity = ApiCredentials::Certificate { certificate: &held.certificate, key: held.key.expose() };
    let options = layout.read_options().map_err(ApiError::File)?;
    let proxies = options.map(|options| options.proxies()).transpose()?.unwrap_or_default();
    let endpoints: Vec<SocketAddr> = known.cluster.endpoints.iter().map(|endpoint| endpoint.address).collect();
    let reachable = first_reachable(&endpoints, &proxies).await;
    let Some(address) = reachable.or(endpoints.first().copied()) else { return Err(ApiError::NoIdentity) };
    api::client_without_retries(address, api::certificates(&known.authorities)?, &identity, &proxies).map(Some)
}

async fn first_reachable(endpoints: &[SocketAddr], proxies: &HttpProxies) -> Option<SocketAddr> {
    for endpoint in endpoints {
        if matches!(timeout(CONNECT, proxies.connect(*endpoint)).await, Ok(Ok(_))) {
            return Some(*endpoint);
        }
    }
    None
}

async fn unregister(connect: impl AsyncFn() -> Result<Client, ApiError>, name: &str) -> Result<(), ApiError> {
    let deleted = api::persist(PATIENCE, async || {
        let peers: Api<WireGuardPeer> = Api::all(connect().await?);
        let deleted = peers.delete(name, &DeleteParams::default()).await;
        deleted.map(drop).map_err(ApiError::request(format!("delete the WireGuardPeer {name}")))
    });
    match deleted.await {
        Err(error) if error.code() == Some(404) => {}
        outcome => outcome?,
    }
    // The cluster-controller deletes the Node.
    let nodes: Api<Node> = Api::all(connect().await?);
    let gone = async {
        while !matches!(api::follow(&nodes, name, |node| node.is_none().then_some(())).await, Ok(Some(()))) {
            sleep(AGAIN).await;
        }
    };
    if timeout(NODE_GONE, gone).await.is_err() {
        tracing::warn!(node = name, "the Node still exists; the cluster deletes it later");
    }
    Ok(())
}
