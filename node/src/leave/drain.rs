//! Drains a worker: cordons its Node, and evicts its pods until they have ended or the time is over. PodDisruptionBudgets apply.

use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod};
use keelway_api::worker::WireGuardPeer;
use keelway_base::error_chain::ErrorChain;
use kube::{
    Api, Client, ResourceExt,
    api::{EvictParams, ListParams, Patch, PatchParams},
};
use serde_json::json;
use tokio::time::{sleep, timeout};

use super::{AGAIN, LeaveError, LeaveStep, PATIENCE, UndrainedPods};
use crate::api::{self, ApiError};

/// The cause of status 429 if a PodDisruptionBudget forbids an eviction (`pkg/registry/core/pod/storage/eviction.go`).
const BUDGET: &str = "DisruptionBudget";
const LIST: &str = "list the pods of this worker";

/// The remaining pods, `NAMESPACE/NAME`.
#[derive(Default)]
struct RemainingPods {
    /// Evicted pods that have not ended yet.
    ending: Vec<String>,
    /// Pods that a PodDisruptionBudget holds.
    held: Vec<String>,
    /// The last error of another eviction.
    failed: Option<ApiError>,
}

impl RemainingPods {
    fn is_empty(&self) -> bool {
        self.ending.is_empty() && self.held.is_empty() && self.failed.is_none()
    }

    fn step(&self) -> LeaveStep {
        LeaveStep::Drain { ending: self.ending.clone(), held: self.held.clone() }
    }
}

/// Cordons the Node and evicts its pods. Transient errors are retried, through an ingress that is reachable at that time.
pub(crate) async fn drain(
    connect: impl AsyncFn() -> Result<Client, ApiError>,
    name: &str,
    limit: Duration,
    on_step: &mut impl FnMut(&LeaveStep),
) -> Result<(), LeaveError> {
    let failed = |source| LeaveError::Cluster { node: name.to_owned(), source };
    match cordon(&connect, name).await {
        Err(error) if error.code() == Some(404) => return Ok(()),
        outcome => outcome.map_err(failed)?,
    }
    let (mut seen, mut last) = (None::<RemainingPods>, None);
    let drained = timeout(limit, async {
        let mut client = connect().await?;
        loop {
            match round(&client, name).await {
                Ok(left) if left.is_empty() => return Ok(()),
                Ok(left) => {
                    if seen.as_ref().map(RemainingPods::step) != Some(left.step()) {
                        on_step(&left.step());
                    }
                    last = None;
                    seen = Some(left);
                }
                Err(error) if error.is_transient() => {
                    on_step(&LeaveStep::Again(ErrorChain(&error).to_string()));
                    last = Some(error);
                    client = connect().await?;
                }
                Err(error) => return Err(error),
            }
            // A PodDisruptionBudget does not report when it permits an eviction.
            sleep(AGAIN).await;
        }
    });
    if let Ok(outcome) = drained.await {
        return outcome.map_err(failed);
    }
    let silent = || ApiError::Silent { operation: LIST.to_owned(), deadline: limit };
    Err(match (last, seen) {
        (Some(error), _) | (None, Some(RemainingPods { failed: Some(error), .. })) => failed(error),
        (None, Some(RemainingPods { ending, held, .. })) => {
            LeaveError::Pods { pods: UndrainedPods { ending, held, limit }, node: name.to_owned() }
        }
        (None, None) => failed(silent()),
    })
}

async fn cordon(connect: &impl AsyncFn() -> Result<Client, ApiError>, name: &str) -> Result<(), ApiError> {
    let cordon = json!({ "spec": { "unschedulable": true } });
    api::persist(PATIENCE, async || {
        let nodes: Api<Node> = Api::all(connect().await?);
        let patched = nodes.patch(name, &PatchParams::default(), &Patch::Merge(&cordon)).await;
        patched.map(drop).map_err(ApiError::request(format!("cordon the Node {name}")))
    })
    .await
}

/// Evicts all pods, and returns those to wait for.
async fn round(client: &Client, name: &str) -> Result<RemainingPods, ApiError> {
    let left = evict(client, name).await?;
    if left.ending.is_empty() && !left.is_empty() && is_last(client, name).await? {
        return Ok(RemainingPods::default());
    }
    Ok(left)
}

/// Whether there is no other worker. Then waiting for the pods would not move them anywhere.
async fn is_last(client: &Client, name: &str) -> Result<bool, ApiError> {
    let peers: Api<WireGuardPeer> = Api::all(client.clone());
    let all = peers.list(&ListParams::default()).await.map_err(ApiError::request("list the workers"))?;
    Ok(all.items.iter().all(|peer| peer.name_any() == name))
}

/// Evicts the pods of a node, and returns those that remain.
async fn evict(client: &Client, node: &str) -> Result<RemainingPods, ApiError> {
    let all: Api<Pod> = Api::all(client.clone());
    let selector = ListParams::default().fields(&format!("spec.nodeName={node}"));
    let pods = all.list(&selector).await.map_err(ApiError::request(LIST))?;
    let mut left = RemainingPods::default();
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
            Err(error) if api::code(&error) == Some(404) => {}
            Err(error) if is_budget(&error) => left.held.push(shown),
            Err(error) => {
                let error = ApiError::request(format!("evict the pod {shown}"))(error);
                if !error.is_transient() {
                    return Err(error);
                }
                left.failed = Some(error);
            }
        }
    }
    Ok(left)
}

fn is_budget(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else { return false };
    let mut causes = status.details.iter().flat_map(|details| &details.causes);
    status.code == 429 && causes.any(|cause| cause.reason == BUDGET)
}

/// Whether the pod is to be evicted. A DaemonSet would create its pods again, and static pods do not belong to the cluster.
fn is_drained(pod: &Pod) -> bool {
    let is_static = pod.annotations().contains_key("kubernetes.io/config.mirror");
    let is_daemon = pod.owner_references().iter().any(|owner| owner.kind == "DaemonSet");
    !is_static && !is_daemon
}

#[cfg(test)]
mod tests;
