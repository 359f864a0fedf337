//! Reads which authorities the workers of a managed cluster trust, from annotations of their Nodes, and those of the agents of a fleet, from annotations of
//! their Leases.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::api::{coordination::v1::Lease, core::v1::Node};
use keelway_api::{
    Documents,
    machine::ObservedValue,
    name::ClusterId,
    worker::{CERTIFICATE_ISSUERS, TRUSTED_AUTHORITIES},
};
use keelway_fleet::{
    CLUSTER_READY, WorkloadCluster,
    names::{AGENT_LEASE, works_namespace},
};
use keelway_planner::{FirstBindings, ObservedTrust};
use kube::{Api, Client, ResourceExt, api::ListParams};

use crate::{Machines, listing::list_all, managed_cluster::driver, tls::TlsClients};

/// Lists all Nodes, or all Leases of agents, with the credentials of the driver.
pub(crate) async fn observe(
    machines: &Arc<dyn Machines>,
    clients: &TlsClients,
    documents: &Documents,
    id: &ClusterId,
) -> ObservedValue<Vec<ObservedTrust>> {
    let reports = match driver(machines, clients, documents, id) {
        Ok(client) => match FirstBindings::of_id(documents, id) {
            FirstBindings::Cluster => of_workers(client).await,
            FirstBindings::Fleet => of_agents(client).await,
        },
        Err(why) => Err(why),
    };
    reports.map_or_else(ObservedValue::unreachable, ObservedValue::Known)
}

async fn of_workers(client: Client) -> Result<Vec<ObservedTrust>, String> {
    let nodes = list_all(&Api::<Node>::all(client), ListParams::default()).await?;
    Ok(nodes.iter().map(of_worker).collect())
}

/// Whether an agent is connected is what the fleet says: it compares no clocks of machines.
async fn of_agents(client: Client) -> Result<Vec<ObservedTrust>, String> {
    let clusters = list_all(&Api::<WorkloadCluster>::all(client.clone()), ListParams::default()).await?;
    let agents = ListParams::default().fields(&format!("metadata.name={AGENT_LEASE}"));
    let leases = list_all(&Api::<Lease>::all(client), agents).await?;
    Ok(clusters.iter().map(|cluster| of_agent(cluster, &leases)).collect())
}

fn of_worker(node: &Node) -> ObservedTrust {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let is_ready =
        conditions.filter(|condition| condition.type_ == "Ready").any(|condition| condition.status == "True");
    reported(node.name_any(), is_ready, node.annotations())
}

fn of_agent(cluster: &WorkloadCluster, leases: &[Lease]) -> ObservedTrust {
    let (name, none) = (cluster.name_any(), BTreeMap::new());
    let namespace = works_namespace(&name);
    let lease = leases.iter().find(|lease| lease.metadata.namespace.as_ref() == Some(&namespace));
    let mut conditions = cluster.status.iter().flat_map(|status| &status.conditions);
    let is_ready = conditions.any(|condition| condition.type_ == CLUSTER_READY && condition.status == "True");
    reported(name, is_ready, lease.map_or(&none, ResourceExt::annotations))
}

fn reported(name: String, is_ready: bool, annotations: &BTreeMap<String, String>) -> ObservedTrust {
    let annotation = |name: &str| annotations.get(name).cloned();
    ObservedTrust { name, is_ready, trusted: annotation(TRUSTED_AUTHORITIES), issuers: annotation(CERTIFICATE_ISSUERS) }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn confirmed(name: &str) -> ObservedTrust {
        let [trusted, issuers] = ["aa", "bb"].map(|value| Some(value.to_owned()));
        ObservedTrust { name: name.to_owned(), is_ready: true, trusted, issuers }
    }

    fn metadata(name: &str, namespace: Option<&str>) -> Value {
        let annotations = json!({ TRUSTED_AUTHORITIES: "aa", CERTIFICATE_ISSUERS: "bb" });
        json!({ "name": name, "namespace": namespace, "annotations": annotations })
    }

    #[test]
    fn a_node_reports_what_its_worker_trusts() {
        let node = |status: &str| {
            json!({
                "metadata": metadata("w1", None),
                "status": { "conditions": [
                    { "type": "DiskPressure", "status": "True" },
                    { "type": "Ready", "status": status },
                ] },
            })
        };
        let read = |status: &str| of_worker(&serde_json::from_value(node(status)).unwrap());
        assert_eq!(read("True"), confirmed("w1"));
        assert_eq!(read("Unknown"), ObservedTrust { is_ready: false, ..confirmed("w1") });
        let silent = of_worker(&serde_json::from_value(json!({ "metadata": { "name": "w2" } })).unwrap());
        assert_eq!(silent, ObservedTrust { name: "w2".to_owned(), ..ObservedTrust::default() });
    }

    #[test]
    fn a_lease_reports_what_the_agent_of_its_cluster_trusts() {
        let cluster = |status: &str| {
            json!({
                "apiVersion": "fleet.keelway.dev/v1alpha1",
                "kind": "Cluster",
                "metadata": { "name": "west" },
                "spec": {},
                "status": { "conditions": [{
                    "type": "Ready",
                    "status": status,
                    "reason": "Tested",
                    "message": "",
                    "lastTransitionTime": "2026-11-29T10:00:00Z",
                }] },
            })
        };
        let read = |namespace: &str, status: &str| {
            let lease = json!({ "metadata": metadata(AGENT_LEASE, Some(namespace)) });
            let leases = [serde_json::from_value(lease).unwrap()];
            of_agent(&serde_json::from_value(cluster(status)).unwrap(), &leases)
        };
        assert_eq!(read("fleet-west", "True"), confirmed("west"));
        assert_eq!(read("fleet-west", "Unknown"), ObservedTrust { is_ready: false, ..confirmed("west") });
        let silent = ObservedTrust { name: "west".to_owned(), is_ready: true, ..ObservedTrust::default() };
        assert_eq!(read("fleet-east", "True"), silent);
    }
}
