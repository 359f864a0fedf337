//! How a machine is a worker no more: the cluster forgets it, and then it is as it was.

use std::{net::SocketAddr, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Node, Pod};
use keelway_api::worker::WireGuardPeer;
use keelway_vpn::error::Chain;
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, EvictParams, ListParams, Patch, PatchParams},
};
use serde::de::DeserializeOwned;
use serde_json::json;
use tokio::time::{sleep, timeout};

use crate::{
    api::{self, ApiError, Identity},
    certificate,
    files::FileError,
    information::Known,
    service::{self, ServiceError},
    settings::Layout,
    undo::{self, UndoError},
};

/// How soon a pod is evicted again that its PodDisruptionBudget held, or that is still ending.
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
        "the cluster cannot be told: mend that, or leave with --force, or run `keelway node forget` and delete the Node and WireGuardPeer {node} there"
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
    File(#[from] FileError),
    /// The machine is not what it was.
    #[error(transparent)]
    Undo(#[from] UndoError),
}

/// What is being done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LeaveStep {
    /// These pods are waited for, `NAMESPACE/NAME`.
    Drain(Vec<String>),
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
    let client = unless_forced(force, client(layout).map_err(failed))?.flatten();
    if let Some(client) = &client {
        unless_forced(force, drain(client, &node.name, options, &mut told).await)?;
    }
    told(&LeaveStep::Undo);
    // While the daemon runs, plugins reach the API.
    undo::end_pods(layout, &node).await?;
    service::stop(node.service, layout).await?;
    let gone = match client {
        Some(client) => unless_forced(force, unregister(client, &node.name).await.map_err(failed))?.is_some(),
        None => !layout.identity().exists(),
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
            tracing::warn!("{}", Chain(&error));
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// The API as this node, by an ingress: the worker's own balancer is about to go. None where it never had a certificate.
fn client(layout: &Layout) -> Result<Option<Client>, ApiError> {
    let Some(known) = Known::kept(layout).map_err(ApiError::File)? else { return Ok(None) };
    if !layout.identity().exists() {
        return Ok(None);
    }
    let held = certificate::held(layout, Timestamp::now()).map_err(ApiError::File)?.ok_or(ApiError::NoIdentity)?;
    let identity = Identity::Certificate { certificate: &held.certificate, key: held.key.expose() };
    let reachable = known.cluster.endpoints.iter().map(|endpoint| endpoint.address).find(is_reachable);
    let first = known.cluster.endpoints.first().map(|endpoint| endpoint.address);
    let Some(address) = reachable.or(first) else { return Err(ApiError::NoIdentity) };
    api::frank_client(address, api::certificates(&known.authorities)?, &identity).map(Some)
}

fn is_reachable(address: &SocketAddr) -> bool {
    std::net::TcpStream::connect_timeout(address, Duration::from_secs(3)).is_ok()
}

/// Lets no more pods come, and those that are there end elsewhere.
async fn drain(
    client: &Client,
    name: &str,
    options: &LeaveOptions,
    told: &mut impl FnMut(&LeaveStep),
) -> Result<(), LeaveError> {
    let failed = |source| LeaveError::Cluster { node: name.to_owned(), source };
    let nodes: Api<Node> = Api::all(client.clone());
    let cordon = json!({ "spec": { "unschedulable": true } });
    let cordoned = api::persist(PATIENCE, async || {
        let patched = nodes.patch(name, &PatchParams::default(), &Patch::Merge(&cordon)).await;
        patched.map_err(ApiError::request(format!("cordon the Node {name}")))
    });
    match cordoned.await {
        Err(error) if error.code() == Some(404) => return Ok(()),
        Err(error) => return Err(failed(error)),
        Ok(_) => {}
    }
    let is_last = is_last(client, name).await.map_err(failed)?;
    let (mut pods, mut last) = (Vec::new(), None);
    let drained = timeout(options.drain_timeout, async {
        loop {
            match evict(client, name).await {
                Ok(left) if left.ending.is_empty() && (is_last || left.held.is_empty()) => return Ok(()),
                Ok(left) => {
                    last = None;
                    let left = [left.ending, left.held].concat();
                    if left != pods {
                        told(&LeaveStep::Drain(left.clone()));
                        pods = left;
                    }
                }
                Err(error) if error.may_pass() => {
                    told(&LeaveStep::Again(Chain(&error).to_string()));
                    last = Some(error);
                }
                Err(error) => return Err(error),
            }
            // A budget that holds a pod tells nobody when it lets go.
            sleep(AGAIN).await;
        }
    });
    match (drained.await, last) {
        (Ok(outcome), _) => outcome.map_err(failed),
        (Err(_), Some(error)) => Err(failed(error)),
        (Err(_), None) => Err(LeaveError::Pods { pods, limit: options.drain_timeout, node: name.to_owned() }),
    }
}

/// Whether no other worker can take its pods, and so none of them can be kept up by waiting.
async fn is_last(client: &Client, name: &str) -> Result<bool, ApiError> {
    let peers: Api<WireGuardPeer> = Api::all(client.clone());
    let all = api::persist(PATIENCE, async || {
        peers.list(&ListParams::default()).await.map_err(ApiError::request("list the workers"))
    });
    Ok(all.await?.items.iter().all(|peer| peer.name_any() == name))
}

/// Pods that are still there, `NAMESPACE/NAME`.
#[derive(Default)]
struct Left {
    /// They were evicted, and end.
    ending: Vec<String>,
    /// Their budgets hold them.
    held: Vec<String>,
}

/// Evicts what is to be evicted, and returns what is still there of it.
async fn evict(client: &Client, node: &str) -> Result<Left, ApiError> {
    let all: Api<Pod> = Api::all(client.clone());
    let selector = ListParams::default().fields(&format!("spec.nodeName={node}"));
    let pods = all.list(&selector).await.map_err(ApiError::request("list the pods of this worker"))?;
    let mut left = Left::default();
    for pod in pods.items.iter().filter(|pod| is_drained(pod)) {
        let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
        let shown = format!("{namespace}/{name}");
        if pod.metadata.deletion_timestamp.is_some() {
            left.ending.push(shown);
            continue;
        }
        let pods: Api<Pod> = Api::namespaced(client.clone(), &namespace);
        match pods.evict(&name, &EvictParams::default()).await {
            Ok(_) => left.ending.push(shown),
            Err(error) => match api::code(&error) {
                Some(404) => {}
                Some(429) => left.held.push(shown),
                _ => return Err(ApiError::request(format!("evict the pod {shown}"))(error)),
            },
        }
    }
    Ok(left)
}

/// Pods of a DaemonSet would come again, and those of files of the machine are not the cluster's.
fn is_drained(pod: &Pod) -> bool {
    let is_static = pod.annotations().contains_key("kubernetes.io/config.mirror");
    let is_daemon = pod.owner_references().iter().any(|owner| owner.kind == "DaemonSet");
    !is_static && !is_daemon
}

async fn unregister(client: Client, name: &str) -> Result<(), ApiError> {
    delete::<WireGuardPeer>(Api::all(client.clone()), "WireGuardPeer", name).await?;
    // The cluster-controller takes the Node away.
    let nodes: Api<Node> = Api::all(client);
    if nodes.get_opt(name).await.is_ok_and(|node| node.is_none()) {
        return Ok(());
    }
    let gone = api::follow(&nodes, name, |node| node.is_none().then_some(()));
    if timeout(NODE_GONE, gone).await.is_err() {
        tracing::warn!(node = name, "the Node is still there: the cluster takes it away");
    }
    Ok(())
}

async fn delete<K>(api: Api<K>, kind: &str, name: &str) -> Result<(), ApiError>
where
    K: Clone + DeserializeOwned + core::fmt::Debug,
{
    let deleted = api::persist(PATIENCE, async || {
        let deleted = api.delete(name, &DeleteParams::default()).await;
        deleted.map_err(ApiError::request(format!("delete the {kind} {name}")))
    });
    match deleted.await {
        Err(error) if error.code() != Some(404) => Err(error),
        Ok(_) | Err(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests;
