//! How a machine is a worker no more: the cluster forgets it, and then it is as it was.

mod drain;

use std::{net::SocketAddr, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use keelway_api::worker::WireGuardPeer;
use keelway_vpn::error::ErrorChain;
use kube::{Api, Client, api::DeleteParams};
use tokio::time::{sleep, timeout};

use crate::{
    api::{self, ApiCredentials, ApiError},
    certificate,
    files::NodeFileError,
    information::TrustedInformation,
    service::{self, ServiceError},
    settings::Layout,
    undo::{self, UndoError},
};

/// How soon something is asked again.
const AGAIN: Duration = Duration::from_secs(1);

/// How long the cluster may say that it cannot now.
const PATIENCE: Duration = Duration::from_secs(15);

/// How long the cluster may take to delete the Node of a worker that left.
const NODE_GONE: Duration = Duration::from_secs(10);

/// What `leave` is asked for.
#[derive(Debug, Clone)]
pub struct LeaveOptions {
    /// Where the worker's files are.
    pub layout: Layout,
    /// How long pods may take to end.
    pub drain_timeout: Duration,
    /// Leaves also where pods do not end, or the cluster cannot be reached.
    pub force: bool,
}

/// The machine is still a worker.
#[derive(Debug, thiserror::Error)]
pub enum LeaveError {
    /// It is none.
    #[error("this machine is no worker: there is nothing in {0}")]
    NoWorker(String),
    /// The cluster cannot be asked.
    #[error(
        "the cluster cannot be told: mend that, or leave with --force, or run `keelway node forget` and delete the Node and WireGuardPeer {node} there; to stay a worker, `kubectl uncordon {node}`"
    )]
    Cluster {
        /// The Node.
        node: String,
        /// Why.
        #[source]
        source: ApiError,
    },
    /// Pods do not end.
    #[error("{} pods did not end within {} s: {}; give --drain-timeout more, or say --force; to stay a worker, `kubectl uncordon {node}`", .pods.len(), .limit.as_secs(), .pods.join(", "))]
    Pods {
        /// Which.
        pods: Vec<String>,
        /// For how long they had.
        limit: Duration,
        /// The Node.
        node: String,
    },
    /// The daemon does not stop.
    #[error(transparent)]
    Service(#[from] ServiceError),
    /// A file failed.
    #[error(transparent)]
    File(#[from] NodeFileError),
    /// The machine is not what it was.
    #[error(transparent)]
    Undo(#[from] UndoError),
}

/// What is being done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaveStep {
    /// These pods are waited for, `NAMESPACE/NAME`.
    Drain {
        /// They were evicted, and end.
        ending: Vec<String>,
        /// Their PodDisruptionBudgets hold them.
        held: Vec<String>,
    },
    /// The cluster said nothing, or that it cannot now, and is asked again.
    Again(String),
    /// The pods that are left end, and the machine becomes what it was.
    Undo,
    /// The cluster still has a Node and a `WireGuardPeer` of this name.
    Known(String),
}

/// Leaves the cluster, and makes the machine what it was.
pub async fn leave(options: &LeaveOptions, mut told: impl FnMut(&LeaveStep)) -> Result<(), LeaveError> {
    let (layout, force) = (&options.layout, options.force);
    let Some(node) = layout.read_options()? else {
        return Ok(undo::forget(layout).await.map(drop)?);
    };
    let failed = |source| LeaveError::Cluster { node: node.name.clone(), source };
    // A join that was cut off before it had a certificate has nothing in the cluster.
    let is_known = unless_forced(force, client(layout).map_err(failed))?.flatten().is_some();
    let connect = || client(layout)?.ok_or(ApiError::NoIdentity);
    if is_known {
        unless_forced(force, drain::drain(connect, &node.name, options.drain_timeout, &mut told).await)?;
    }
    told(&LeaveStep::Undo);
    // While the daemon runs, plugins reach the API.
    undo::end_pods(layout, &node).await?;
    service::stop(node.service, layout).await?;
    let gone = if is_known {
        unless_forced(force, unregister(connect, &node.name).await.map_err(failed))?.is_some()
    } else {
        !layout.identity().exists()
    };
    undo::forget(layout).await?;
    if !gone {
        told(&LeaveStep::Known(node.name));
    }
    Ok(())
}

/// What failed, unless it does not matter.
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

/// The API as this node, by an ingress: the worker's own balancer is about to go. None where it never had a certificate.
fn client(layout: &Layout) -> Result<Option<Client>, ApiError> {
    let Some(known) = TrustedInformation::load(layout).map_err(ApiError::File)? else { return Ok(None) };
    if !layout.identity().exists() {
        return Ok(None);
    }
    let held =
        certificate::load_valid(layout, Timestamp::now()).map_err(ApiError::File)?.ok_or(ApiError::NoIdentity)?;
    let identity = ApiCredentials::Certificate { certificate: &held.certificate, key: held.key.expose() };
    let reachable = known.cluster.endpoints.iter().map(|endpoint| endpoint.address).find(is_reachable);
    let first = known.cluster.endpoints.first().map(|endpoint| endpoint.address);
    let Some(address) = reachable.or(first) else { return Err(ApiError::NoIdentity) };
    api::client_without_retries(address, api::certificates(&known.authorities)?, &identity).map(Some)
}

fn is_reachable(address: &SocketAddr) -> bool {
    std::net::TcpStream::connect_timeout(address, Duration::from_secs(3)).is_ok()
}

async fn unregister(connect: impl Fn() -> Result<Client, ApiError>, name: &str) -> Result<(), ApiError> {
    let deleted = api::persist(PATIENCE, async || {
        let peers: Api<WireGuardPeer> = Api::all(connect()?);
        let deleted = peers.delete(name, &DeleteParams::default()).await;
        deleted.map(drop).map_err(ApiError::request(format!("delete the WireGuardPeer {name}")))
    });
    match deleted.await {
        Err(error) if error.code() == Some(404) => {}
        outcome => outcome?,
    }
    // The cluster-controller takes the Node away.
    let nodes: Api<Node> = Api::all(connect()?);
    let gone = async {
        while !matches!(api::follow(&nodes, name, |node| node.is_none().then_some(())).await, Ok(Some(()))) {
            sleep(AGAIN).await;
        }
    };
    if timeout(NODE_GONE, gone).await.is_err() {
        tracing::warn!(node = name, "the Node is still there: the cluster takes it away");
    }
    Ok(())
}
