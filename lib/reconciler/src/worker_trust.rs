//! Reads what the workers of a managed cluster trust, from annotations of their Nodes.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Node;
use keelway_api::{
    Documents,
    machine::ObservedValue,
    name::ClusterId,
    worker::{CERTIFICATE_ISSUERS, TRUSTED_AUTHORITIES},
};
use keelway_planner::WorkerTrust;
use kube::{Api, ResourceExt};

use crate::{Machines, listing::list_all, managed_cluster::driver, tls::TlsClients};

/// Lists all Nodes with the credentials of the driver.
pub(crate) async fn observe(
    machines: &Arc<dyn Machines>,
    clients: &TlsClients,
    documents: &Documents,
    id: &ClusterId,
) -> ObservedValue<Vec<WorkerTrust>> {
    let nodes = match driver(machines, clients, documents, id) {
        Ok(client) => list_all(&Api::<Node>::all(client), "").await,
        Err(why) => Err(why),
    };
    match nodes {
        Ok(nodes) => ObservedValue::Known(nodes.iter().map(trust_of).collect()),
        Err(why) => ObservedValue::unreachable(why),
    }
}

fn trust_of(node: &Node) -> WorkerTrust {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let is_ready =
        conditions.filter(|condition| condition.type_ == "Ready").any(|condition| condition.status == "True");
    let annotation = |name: &str| node.annotations().get(name).cloned();
    WorkerTrust {
        name: node.name_any(),
        is_ready,
        trusted: annotation(TRUSTED_AUTHORITIES),
        issuers: annotation(CERTIFICATE_ISSUERS),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_node_tells_what_its_worker_trusts() {
        let node = |status: &str| {
            json!({
                "metadata": { "name": "w1", "annotations": { TRUSTED_AUTHORITIES: "aa", CERTIFICATE_ISSUERS: "bb" } },
                "status": { "conditions": [
                    { "type": "DiskPressure", "status": "True" },
                    { "type": "Ready", "status": status },
                ] },
            })
        };
        let read = |status: &str| trust_of(&serde_json::from_value(node(status)).unwrap());
        let ready = WorkerTrust {
            name: "w1".to_owned(),
            is_ready: true,
            trusted: Some("aa".to_owned()),
            issuers: Some("bb".to_owned()),
        };
        assert_eq!(read("True"), ready);
        assert_eq!(read("Unknown"), WorkerTrust { is_ready: false, ..ready });
        let silent = trust_of(&serde_json::from_value(json!({ "metadata": { "name": "w2" } })).unwrap());
        assert_eq!(silent, WorkerTrust { name: "w2".to_owned(), ..WorkerTrust::default() });
    }
}
