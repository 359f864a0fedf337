//! Connects to components from within the networks of their machines.

use std::sync::Arc;

use async_trait::async_trait;
use keelway_api::{Documents, jiff::Timestamp, machine::ObservedValue, name::ClusterId};
use keelway_base::error_chain::chain_text;
use keelway_planner::{ComponentHealth, Probe};

use crate::{Components, Machines, health, managed_cluster, tls::TlsClients};

/// Components that are reached through [`Machines::dial`], with TLS on top.
pub struct DialledComponents {
    machines: Arc<dyn Machines>,
    clients: TlsClients,
}

impl DialledComponents {
    /// Returns access to the components on these machines.
    #[must_use]
    pub fn new(machines: Arc<dyn Machines>) -> Self {
        Self { machines, clients: TlsClients::default() }
    }
}

#[async_trait]
impl Components for DialledComponents {
    async fn health(&self, documents: &Documents, probe: &Probe) -> ComponentHealth {
        health::ask(&self.machines, &self.clients, documents, probe).await
    }

    fn close_idle_connections(&self, id: &ClusterId) {
        self.clients.forget(&id.namespace());
    }

    async fn bindings(&self, documents: &Documents, id: &ClusterId) -> ObservedValue<String> {
        managed_cluster::bindings(&self.machines, &self.clients, documents, id).await
    }

    async fn bind(&self, documents: &Documents, id: &ClusterId, now: Timestamp) -> Result<(), String> {
        let applied = managed_cluster::apply_bindings(&self.machines, documents, id, now).await;
        applied.map_err(|error| chain_text(&error))
    }
}
