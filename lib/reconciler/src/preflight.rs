//! Reads what the checks before an upgrade to another minor version need: kubelets, requests for deprecated APIs, and webhooks.

mod deprecated_apis;
mod webhooks;

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::core::v1::Node;
use keelway_api::{Documents, machine::ObservedValue, name::ClusterId};
use keelway_planner::UpgradePreflight;
use kube::{Api, ResourceExt};

use crate::{
    Machines,
    listing::list_all,
    managed_cluster::{driver, drivers},
    tls::TlsClients,
};

/// Reads the cluster with the credentials of the driver.
pub(crate) async fn observe(
    machines: &Arc<dyn Machines>,
    clients: &TlsClients,
    documents: &Documents,
    id: &ClusterId,
) -> ObservedValue<UpgradePreflight> {
    match read(machines, clients, documents, id).await {
        Ok(preflight) => ObservedValue::Known(preflight),
        Err(why) => ObservedValue::unreachable(why),
    }
}

async fn read(
    machines: &Arc<dyn Machines>,
    clients: &TlsClients,
    documents: &Documents,
    id: &ClusterId,
) -> Result<UpgradePreflight, String> {
    let mut deprecated_apis = std::collections::BTreeSet::new();
    // Each API server remembers the requests that it got itself.
    for server in drivers(machines, clients, documents, id)? {
        deprecated_apis.extend(deprecated_apis::requested(&server).await?);
    }
    let client = driver(machines, clients, documents, id)?;
    let silent_webhooks = webhooks::silent(&client).await?;
    Ok(UpgradePreflight { kubelets: kubelets(documents, id, client).await?, deprecated_apis, silent_webhooks })
}

/// A fleet has no workers, and the driver no right to list them.
async fn kubelets(
    documents: &Documents,
    id: &ClusterId,
    client: kube::Client,
) -> Result<BTreeMap<String, String>, String> {
    let mut clusters = documents.clusters.values();
    if clusters.any(|cluster| cluster.id() == Some(id) && cluster.spec.is_fleet()) {
        return Ok(BTreeMap::new());
    }
    let nodes = list_all(&Api::<Node>::all(client), "").await?;
    let version = |node: &Node| {
        let info = node.status.as_ref()?.node_info.as_ref()?;
        Some((node.name_any(), info.kubelet_version.clone()))
    };
    Ok(nodes.iter().filter_map(version).collect())
}
