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

use crate::{authorities::SessionTrust, metrics::AgentMetrics};

/// How often the Lease is renewed.
const RENEWAL: Duration = Duration::from_secs(10);

/// A session, as the Lease reports it.
pub(crate) struct AgentHeartbeat<'a> {
    pub(crate) client: &'a Client,
    /// The namespace of the cluster's Works.
    pub(crate) namespace: &'a str,
    /// The unique name of this process.
    pub(crate) holder: &'a str,
    pub(crate) trust: &'a SessionTrust,
}

impl AgentHeartbeat<'_> {
    /// Renews the Lease once.
    pub(crate) async fn renew(&self, now: Timestamp) -> Result<(), Error> {
        let api: Api<Lease> = Api::namespaced(self.client.clone(), self.namespace);
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": { "name": AGENT_LEASE, "annotations": self.trust.annotations() },
            "spec": {
                "holderIdentity": self.holder,
                "leaseDurationSeconds": AGENT_LEASE_SECONDS,
                "renewTime": now.strftime("%Y-%m-%dT%H:%M:%S%.6fZ").to_string(),
            },
        });
        api.patch(AGENT_LEASE, &PatchParams::apply(AGENT_FIELD_MANAGER).force(), &Patch::Apply(&lease)).await?;
        Ok(())
    }

    /// Renews the Lease until that fails.
    pub(crate) async fn run(&self, metrics: &AgentMetrics) -> Error {
        loop {
            metrics.set_contact(Timestamp::now());
            sleep(RENEWAL).await;
            if let Err(error) = self.renew(Timestamp::now()).await {
                return error;
            }
        }
    }
}
