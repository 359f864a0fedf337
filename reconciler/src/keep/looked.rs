//! What was seen of machines, for whoever asks about components on them.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use keelway_api::{
    Hypervisor,
    machine::{MachineConfig, MachineState, Seen},
    name::HypervisorName,
};
use keelway_hypervisor_agent::{Connection, action::Action};

use crate::{Applying, Machines, Run};

/// Machines that were looked at before. Nothing can be done on them, and each is told of once.
pub(super) struct Looked(pub(super) Mutex<BTreeMap<HypervisorName, Seen<MachineState>>>);

#[async_trait]
impl Machines for Looked {
    async fn observe(&self, machine: &Hypervisor) -> Seen<MachineState> {
        let name = machine.metadata.name.as_deref().and_then(|name| name.parse::<HypervisorName>().ok());
        let seen = name.and_then(|name| self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&name));
        seen.unwrap_or_else(|| Seen::unreachable("nobody looked yet"))
    }

    async fn apply(&self, _: &Hypervisor, _: MachineConfig, _: Vec<Action>, _: &Run) -> Applying {
        Applying::default()
    }

    async fn dial(&self, _: &Hypervisor, _: SocketAddr, _: Duration) -> std::io::Result<Connection> {
        Err(std::io::ErrorKind::Unsupported.into())
    }

    async fn changed(&self, _: &[&Hypervisor]) {
        std::future::pending::<()>().await;
    }
}
