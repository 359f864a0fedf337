//! Reads what the checks before an upgrade to another minor version need: kubelets, requests for deprecated APIs, and webhooks.

mod deprecated_apis;
#[cfg(test)]
mod tests;
mod webhooks;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::future::{join3, try_join_all};
use k8s_openapi::api::core::v1::Node;
use keelway_api::{Documents, machine::ObservedValue, name::ClusterId};
use keelway_planner::{FirstBindings, UpgradePreflight};
use kube::{Api, ResourceExt, api::ListParams};
use tokio::time::timeout;

use crate::{
    Machines,
    listing::list_all,
    managed_cluster::{driver, drivers},
    tls::TlsClients,
};

/// How long all checks of a cluster may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// Reads the cluster with the credentials of the driver.
pub(crate) async fn observe(
    machines: &Arc<dyn Machines>,
    clients: &TlsClients,
    documents: &Documents,
    id: &ClusterId,
) -> UpgradePreflight {
    let client = || driver(machines, clients, documents, id);
    read(FirstBindings::of_id(documents, id), client, || drivers(machines, clients, documents, id)).await
}

async fn read(
    bindings: FirstBindings,
    client: impl Fn() -> Result<kube::Client, String>,
    servers: impl Fn() -> Result<Vec<kube::Client>, String>,
) -> UpgradePreflight {
    let (kubelets, deprecated_apis, silent_webhooks) = join3(
        in_time(async { kubelets(bindings, client()?).await }),
        // Each API server remembers the requests that it got itself.
        in_time(async {
            let servers = servers()?;
            let requested = try_join_all(servers.iter().map(deprecated_apis::requested)).await?;
            Ok(requested.into_iter().flatten().collect())
        }),
        in_time(async { webhooks::silent(&client()?).await }),
    )
    .await;
    UpgradePreflight { kubelets, deprecated_apis, silent_webhooks }
}

async fn in_time<T>(read: impl Future<Output = Result<T, String>>) -> ObservedValue<T> {
    match timeout(PATIENCE, read).await {
        Ok(Ok(value)) => ObservedValue::Known(value),
        Ok(Err(why)) => ObservedValue::unreachable(why),
        Err(_) => ObservedValue::unreachable("no response in time"),
    }
}

/// A fleet has no workers, and the driver no right to list them.
async fn kubelets(bindings: FirstBindings, client: kube::Client) -> Result<BTreeMap<String, String>, String> {
    if bindings == FirstBindings::Fleet {
        return Ok(BTreeMap::new());
    }
    let nodes = list_all(&Api::<Node>::all(client), ListParams::default()).await?;
    let version = |node: &Node| {
        let info = node.status.as_ref()?.node_info.as_ref()?;
        Some((node.name_any(), info.kubelet_version.clone()))
    };
    Ok(nodes.iter().filter_map(version).collect())
}
