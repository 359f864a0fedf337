//! What the fleet learns about this cluster: the release of Kubernetes, and what its nodes can run. It is reported when it changes.

use std::{collections::BTreeMap, pin::pin, sync::Arc, time::Duration};

use futures::StreamExt;
use k8s_openapi::api::core::v1::Node;
use keelway_fleet::{NodeReport, WorkloadCluster, WorkloadTaint, names::AGENT_FIELD_MANAGER};
use kube::{
    Api, Client, Error, ResourceExt,
    api::{Patch, PatchParams},
    runtime::{
        WatchStreamExt,
        watcher::{self, Event, watcher},
    },
};
use serde_json::json;
use tokio::{sync::watch, time::sleep};

use crate::{kind_watch::SteadyPause, workload_api::WorkloadApi};

/// How many nodes a page of a list has.
const PAGE: u32 = 100;
/// The shortest time between two reports.
const ROUND: Duration = Duration::from_secs(1);

/// What is reported of this cluster.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ClusterInventory {
    pub(crate) version: String,
    pub(crate) nodes: BTreeMap<String, NodeReport>,
}

/// Watches the nodes of this cluster, until the process ends.
pub(crate) async fn observe(api: Arc<WorkloadApi>, inventory: watch::Sender<Option<ClusterInventory>>) {
    let nodes: Api<Node> = Api::all(api.client().clone());
    let mut changes = pin!(watcher(nodes, watcher::Config::default().page_size(PAGE)).backoff(SteadyPause));
    let mut current = ClusterInventory::default();
    let mut listed = BTreeMap::new();
    let mut is_listing = true;
    while let Some(change) = changes.next().await {
        match change {
            Ok(Event::Init) => {
                is_listing = true;
                listed.clear();
            }
            Ok(Event::InitApply(node)) => {
                listed.insert(node.name_any(), report(&node));
            }
            Ok(Event::InitDone) => {
                is_listing = false;
                current.nodes = std::mem::take(&mut listed);
                // An upgrade of the API server ends its watches.
                if let Ok(version) = api.client().apiserver_version().await {
                    version.git_version.trim_start_matches('v').clone_into(&mut current.version);
                }
            }
            Ok(Event::Apply(node)) => {
                current.nodes.insert(node.name_any(), report(&node));
            }
            Ok(Event::Delete(node)) => {
                current.nodes.remove(&node.name_any());
            }
            Err(error) => tracing::warn!(%error, "cannot watch the nodes of this cluster"),
        }
        if !is_listing {
            inventory.send_if_modified(|last| {
                let is_new = last.as_ref() != Some(&current);
                if is_new {
                    *last = Some(current.clone());
                }
                is_new
            });
        }
    }
}

/// Sends the inventory, and each change of it, until that fails.
pub(crate) async fn send(
    client: &Client,
    cluster: &str,
    mut inventory: watch::Receiver<Option<ClusterInventory>>,
) -> Error {
    let api: Api<WorkloadCluster> = Api::all(client.clone());
    inventory.mark_changed();
    loop {
        if inventory.changed().await.is_err() {
            return std::future::pending().await;
        }
        let Some(current) = inventory.borrow_and_update().clone() else { continue };
        if let Err(error) = send_once(&api, cluster, &current).await {
            // The fleet controller has not created the Cluster yet, or a person deleted it.
            if !matches!(&error, Error::Api(status) if matches!(status.code, 403 | 404 | 422)) {
                return error;
            }
            tracing::warn!(%error, "cannot report the status of this cluster");
            inventory.mark_changed();
            sleep(ROUND * 5).await;
        }
        sleep(ROUND).await;
    }
}

async fn send_once(api: &Api<WorkloadCluster>, cluster: &str, inventory: &ClusterInventory) -> Result<(), Error> {
    let allocatable = keelway_fleet::total(inventory.nodes.values().map(|node| &node.allocatable));
    let body = json!({
        "apiVersion": "fleet.keelway.dev/v1alpha1",
        "kind": "Cluster",
        "metadata": { "name": cluster },
        "status": {
            "kubernetesVersion": inventory.version,
            "agentVersion": env!("CARGO_PKG_VERSION"),
            "allocatable": allocatable,
            "nodes": inventory.nodes,
        },
    });
    api.patch_status(cluster, &PatchParams::apply(AGENT_FIELD_MANAGER).force(), &Patch::Apply(&body)).await?;
    Ok(())
}

fn report(node: &Node) -> NodeReport {
    let spec = node.spec.as_ref();
    let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
    let taints = spec.and_then(|spec| spec.taints.as_ref());
    NodeReport {
        allocatable: allocatable
            .into_iter()
            .flatten()
            .map(|(name, quantity)| (name.clone(), quantity.0.clone()))
            .collect(),
        taints: taints
            .into_iter()
            .flatten()
            .map(|taint| WorkloadTaint {
                key: taint.key.clone(),
                value: taint.value.clone(),
                effect: taint.effect.clone(),
            })
            .collect(),
    }
}
