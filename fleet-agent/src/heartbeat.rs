//! The agent's Lease in the fleet. The fleet reports a cluster as not ready if its Lease is not renewed for 40 seconds.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use keelway_fleet::names::{AGENT_FIELD_MANAGER, AGENT_LEASE, AGENT_LEASE_SECONDS};
use kube::{
    Api, Client, Error,
    api::{Patch, PatchParams},
};
use serde_json::json;
use tokio::time::sleep;

use crate::metrics::AgentMetrics;

/// How often the Lease is renewed.
const RENEWAL: Duration = Duration::from_secs(10);

/// Renews the Lease once.
pub(crate) async fn renew(client: &Client, namespace: &str, holder: &str, now: Timestamp) -> Result<(), Error> {
    let api: Api<Lease> = Api::namespaced(client.clone(), namespace);
    let lease = json!({
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": { "name": AGENT_LEASE },
        "spec": {
            "holderIdentity": holder,
            "leaseDurationSeconds": AGENT_LEASE_SECONDS,
            "renewTime": now.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string(),
        },
    });
    api.patch(AGENT_LEASE, &PatchParams::apply(AGENT_FIELD_MANAGER).force(), &Patch::Apply(&lease)).await?;
    Ok(())
}

/// Renews the Lease until that fails.
pub(crate) async fn run(client: &Client, namespace: &str, holder: &str, metrics: &AgentMetrics) -> Error {
    loop {
        metrics.set_contact(Timestamp::now());
        sleep(RENEWAL).await;
        if let Err(error) = renew(client, namespace, holder, Timestamp::now()).await {
            return error;
        }
    }
}
