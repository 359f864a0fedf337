//! Reads which authorities the workers of a managed cluster trust, from annotations of their Nodes, and those of the agents of a fleet, from annotations of
//! their Leases.

use std::{collections::BTreeMap, sync::Arc};

use k8s_openapi::{
    api::{coordination::v1::Lease, core::v1::Node},
    jiff::{SignedDuration, Timestamp},
};
use keelway_api::{
    Documents,
    machine::ObservedValue,
    name::ClusterId,
    worker::{CERTIFICATE_ISSUERS, TRUSTED_AUTHORITIES},
};
use keelway_fleet::names::{AGENT_LEASE, AGENT_LEASE_SECONDS, cluster_of_namespace};
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

async fn of_agents(client: Client) -> Result<Vec<ObservedTrust>, String> {
    let agents = ListParams::default().fields(&format!("metadata.name={AGENT_LEASE}"));
    let leases = list_all(&Api::<Lease>::all(client), agents).await?;
    let now = Timestamp::now();
    Ok(leases.iter().filter_map(|lease| of_agent(lease, now)).collect())
}

fn of_worker(node: &Node) -> ObservedTrust {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let is_ready =
        conditions.filter(|condition| condition.type_ == "Ready").any(|condition| condition.status == "True");
    reported(node.name_any(), is_ready, node.annotations())
}

/// `None`: the Lease is not in the namespace of a workload cluster.
fn of_agent(lease: &Lease, now: Timestamp) -> Option<ObservedTrust> {
    let cluster = cluster_of_namespace(lease.metadata.namespace.as_deref()?)?;
    let renewed = lease.spec.as_ref().and_then(|spec| spec.renew_time.as_ref());
    let age = renewed.map(|renewed| now.duration_since(renewed.0));
    let is_ready = age.is_some_and(|age| age <= SignedDuration::from_secs(AGENT_LEASE_SECONDS.into()));
    Some(reported(cluster.to_owned(), is_ready, lease.annotations()))
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
        let read = |namespace: &str, now: &str| {
            let spec = json!({ "renewTime": "2026-11-29T10:00:00.000000Z" });
            let lease = json!({ "metadata": metadata(AGENT_LEASE, Some(namespace)), "spec": spec });
            of_agent(&serde_json::from_value(lease).unwrap(), now.parse().unwrap())
        };
        assert_eq!(read("fleet-west", "2026-11-29T10:00:40Z"), Some(confirmed("west")));
        let absent = ObservedTrust { is_ready: false, ..confirmed("west") };
        assert_eq!(read("fleet-west", "2026-11-29T10:00:41Z"), Some(absent));
        assert_eq!(read("shop", "2026-11-29T10:00:40Z"), None);
    }
}
