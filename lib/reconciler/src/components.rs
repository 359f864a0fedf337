//! Connects to components from within the networks of their machines.

use std::sync::Arc;

use async_trait::async_trait;
use keelway_api::{
    Cluster, Documents, jiff::Timestamp, machine::ObservedValue, name::ClusterId, snapshots::SnapshotStatus,
};
use keelway_base::error_chain::chain_text;
use keelway_planner::{
    ComponentHealth, ObservedTrust, Probe, RestorableSnapshot, SecretRewrite, StoreObservation, StoreOrder,
    UpgradePreflight, probes,
};

use crate::{
    Components, Machines, SnapshotError, TakenSnapshot, health, managed_cluster,
    observe::member_probes,
    observed_trust, preflight, secret_rewrite,
    snapshots::{self, verified::VerifiedSnapshots},
    stores::{self, StoreClients},
    tls::TlsClients,
};

/// Components that are reached through [`Machines::dial`], with TLS on top.
pub struct DialledComponents {
    machines: Arc<dyn Machines>,
    clients: TlsClients,
    stores: StoreClients,
    verified: VerifiedSnapshots,
}

impl DialledComponents {
    /// Returns access to the components on these machines.
    #[must_use]
    pub fn new(machines: Arc<dyn Machines>) -> Self {
        Self {
            machines,
            clients: TlsClients::default(),
            stores: StoreClients::default(),
            verified: VerifiedSnapshots::default(),
        }
    }

    /// Takes a snapshot of a cluster's store, stores it, and deletes those that its retention does not keep.
    pub async fn snapshot(
        &self,
        documents: &Documents,
        cluster: &Cluster,
        now: Timestamp,
    ) -> Result<TakenSnapshot, SnapshotError> {
        let id = cluster.id().ok_or(SnapshotError::NotMade)?;
        let probes = member_probes(documents, &probes(documents).unwrap_or_default(), id);
        let members = self.stores.of(&self.machines, &self.clients, documents, &probes);
        let taken = snapshots::take(&members, documents, cluster, now).await;
        // The next snapshot may be hours away.
        self.stores.forget(id);
        taken
    }
}

#[async_trait]
impl Components for DialledComponents {
    async fn health(&self, documents: &Documents, probe: &Probe) -> ComponentHealth {
        health::ask(&self.machines, &self.clients, documents, probe).await
    }

    fn close_idle_connections(&self, id: &ClusterId) {
        self.clients.forget(&id.namespace());
        self.stores.forget(id);
        self.verified.forget(id);
    }

    async fn bindings(&self, documents: &Documents, id: &ClusterId) -> ObservedValue<String> {
        managed_cluster::bindings(&self.machines, &self.clients, documents, id).await
    }

    async fn bind(&self, documents: &Documents, id: &ClusterId, now: Timestamp) -> Result<(), String> {
        let applied = managed_cluster::apply_bindings(&self.machines, documents, id, now).await;
        applied.map_err(|error| chain_text(&error))
    }

    async fn store(&self, documents: &Documents, members: &[Probe]) -> StoreObservation {
        stores::observe(&self.stores.of(&self.machines, &self.clients, documents, members)).await
    }

    async fn order(&self, documents: &Documents, members: &[Probe], order: &StoreOrder) -> Result<(), String> {
        if let StoreOrder::Restore { pod, .. } = order {
            return snapshots::restore::execute(&*self.machines, documents, pod).await;
        }
        let members = self.stores.of(&self.machines, &self.clients, documents, members);
        stores::execute(&members, order).await.map_err(|error| chain_text(&error))
    }

    async fn rewritten(&self, documents: &Documents, id: &ClusterId) -> ObservedValue<SecretRewrite> {
        secret_rewrite::observe(&self.machines, &self.clients, documents, id).await
    }

    async fn observed_trust(&self, documents: &Documents, id: &ClusterId) -> ObservedValue<Vec<ObservedTrust>> {
        observed_trust::observe(&self.machines, &self.clients, documents, id).await
    }

    async fn upgrade_preflight(&self, documents: &Documents, id: &ClusterId) -> UpgradePreflight {
        preflight::observe(&self.machines, &self.clients, documents, id).await
    }

    async fn rewrite(
        &self,
        documents: &Documents,
        id: &ClusterId,
        key_name: &str,
        now: Timestamp,
    ) -> Result<(), String> {
        let written = secret_rewrite::execute(&self.machines, documents, id, (key_name, now)).await;
        written.map_err(|error| chain_text(&error))
    }

    async fn restorable(&self, documents: &Documents, cluster: &Cluster) -> Result<RestorableSnapshot, String> {
        self.verified.restorable(documents, cluster).await
    }

    async fn take_snapshot(
        &self,
        documents: &Documents,
        cluster: &Cluster,
        now: Timestamp,
    ) -> Result<SnapshotStatus, String> {
        let taken = self.snapshot(documents, cluster, now).await.map_err(|error| chain_text(&error))?;
        let cluster = cluster.reference();
        tracing::info!(%cluster, snapshot = %taken.name, member = taken.member, "took a snapshot");
        for (snapshot, reason) in &taken.expired {
            tracing::info!(%cluster, %snapshot, %reason, "deleted a snapshot");
        }
        if let Some(error) = &taken.retention_failure {
            tracing::warn!(%cluster, error = chain_text(error), "cannot delete old snapshots");
        }
        Ok(taken.status())
    }
}
