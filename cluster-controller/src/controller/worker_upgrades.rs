//! Orders upgrades of kubelets, a limited number at a time. The daemon of a worker carries out the order that its Node has.

mod decision;

use std::{pin::pin, sync::Arc, time::Duration};

use futures::StreamExt;
use k8s_openapi::api::core::v1::Node;
use keelway_api::worker::{DRAIN_TIMEOUT, KUBELET_RELEASE, KubeletOrder};
use keelway_component::{requests::ignore_conflict, watching::watch_backoff};
use kube::{
    Api, ResourceExt,
    api::{Patch, PatchParams},
    runtime::{WatchStreamExt, events::EventType, reflector, watcher},
};
use serde_json::{Map, Value, json};
use tokio::time::timeout;

pub use self::decision::KubeletUpgrades;
use self::decision::{OrderChange, WorkerKubelet, decide};
use super::{
    ControllerContext, ControllerError,
    registry::{WatchFailureLog, is_whole},
};

/// The pause before a failed write is retried.
const AGAIN: Duration = Duration::from_secs(2);

/// Follows all Nodes.
pub(super) async fn run(context: Arc<ControllerContext>) {
    let nodes = Api::<Node>::all(context.client.clone());
    let (store, writer) = reflector::store::<Node>();
    let events = watcher(nodes, watcher::Config::default()).backoff(watch_backoff());
    let mut events = pin!(events.modify(forget_what_is_not_read).reflect(writer));
    let mut log = WatchFailureLog::new("Nodes");
    let mut is_behind = false;
    loop {
        let next = if is_behind { timeout(AGAIN, events.next()).await } else { Ok(events.next().await) };
        match next {
            Ok(Some(event)) => {
                if log.passed(event).is_none() {
                    continue;
                }
            }
            Err(_) => {}
            Ok(None) => return,
        }
        // An incomplete list would lack workers that are unavailable.
        if is_whole(&store).await.is_err() {
            continue;
        }
        is_behind = false;
        let nodes = store.state();
        let workers: Vec<WorkerKubelet> = nodes.iter().filter_map(|node| kubelet_of(node)).collect();
        for (name, change) in decide(context.configuration.kubelets.as_ref(), &workers) {
            let Some(node) = nodes.iter().find(|node| node.name_any() == name) else { continue };
            if let Err(error) = write(&context, node, &change).await {
                is_behind = true;
                context.metrics.count_failure();
                let error = format!("{:#}", anyhow::Error::from(error));
                tracing::warn!(error, node = name, "cannot write the order to upgrade the kubelet");
            }
        }
    }
}

/// Removes the large parts of a Node.
fn forget_what_is_not_read(node: &mut Node) {
    node.metadata.managed_fields = None;
    if let Some(status) = &mut node.status {
        status.images = None;
    }
}

fn kubelet_of(node: &Node) -> Option<WorkerKubelet> {
    let status = node.status.as_ref()?;
    let mut conditions = status.conditions.iter().flatten();
    Some(WorkerKubelet {
        name: node.name_any(),
        is_ready: conditions.any(|condition| condition.type_ == "Ready" && condition.status == "True"),
        version: status.node_info.as_ref()?.kubelet_version.clone(),
        order: KubeletOrder::of(&node.metadata),
    })
}

/// Writes the change to this version of the Node only: the decision is valid for no other.
async fn write(context: &ControllerContext, node: &Node, change: &OrderChange) -> Result<(), ControllerError> {
    context.fence.check()?;
    let annotations: Map<String, Value> = match change {
        OrderChange::Order(order) => {
            order.annotations().into_iter().map(|(key, value)| (key.to_owned(), json!(value))).collect()
        }
        OrderChange::Withdraw => {
            [KUBELET_RELEASE, DRAIN_TIMEOUT].map(|key| (key.to_owned(), Value::Null)).into_iter().collect()
        }
    };
    let patch = json!({ "metadata": { "resourceVersion": node.resource_version(), "annotations": annotations } });
    let nodes = Api::<Node>::all(context.client.clone());
    let (name, parameters, patch) = (node.name_any(), PatchParams::default(), Patch::Merge(&patch));
    let patched = nodes.patch(&name, &parameters, &patch);
    if ignore_conflict("write the order to upgrade the kubelet", patched).await?.is_none() {
        return Ok(());
    }
    if let OrderChange::Order(order) = change {
        tracing::info!(node = name, release = order.release, "ordered an upgrade of the kubelet");
        let text = format!("the worker is to drain itself, and to run the kubelet of {}", order.release);
        context.publish(node, EventType::Normal, "KubeletUpgradeOrdered", &text).await;
    }
    Ok(())
}
