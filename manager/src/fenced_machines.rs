//! Machines that are changed only while this manager holds the Lease.

use std::{collections::BTreeSet, net::SocketAddr, sync::Arc, time::Duration};

use async_trait::async_trait;
use keelway_agent_api::client::ConfigDelivery;
use keelway_api::{
    Documents, Hypervisor,
    jiff::Timestamp,
    machine::{MachineConfig, MachineState, ObservedValue},
    name::{HypervisorName, InstallationId},
};
use keelway_cri::proxy::connection::MachineConnection;
use keelway_lease::{LeaseFence, NotHeld};
use keelway_machine::action::Action;
use keelway_reconciler::{AgentCertification, ApplyOutcome, Machines, RunControl};

/// Machines that are changed only under a Lease. Observations need no Lease. If the Lease is lost, effects that are running are cancelled.
/// Agents continue with the config that they have, and obey the next leader once it has fenced them.
pub struct FencedMachines {
    machines: Arc<dyn Machines>,
    fence: LeaseFence,
}

impl FencedMachines {
    /// Returns these machines, restricted to the time in which the Lease of this fence is held.
    #[must_use]
    pub fn new(machines: Arc<dyn Machines>, fence: LeaseFence) -> Self {
        Self { machines, fence }
    }

    async fn do_while_held(&self, work: impl Future<Output = ApplyOutcome>) -> ApplyOutcome {
        let done = self.fence.while_held(work).await;
        done.unwrap_or_else(|NotHeld| ApplyOutcome { effects: 0, failures: vec![NotHeld.to_string()] })
    }
}

#[async_trait]
impl Machines for FencedMachines {
    fn load_credentials(&self, documents: &Documents) -> BTreeSet<HypervisorName> {
        self.machines.load_credentials(documents)
    }

    async fn observe(&self, machine: &Hypervisor) -> ObservedValue<MachineState> {
        self.machines.observe(machine).await
    }

    fn clock_of(&self, machine: &Hypervisor) -> Option<Timestamp> {
        self.machines.clock_of(machine)
    }

    async fn config(
        &self,
        machine: &Hypervisor,
        installation: &InstallationId,
    ) -> Result<Option<MachineConfig>, String> {
        self.machines.config(machine, installation).await
    }

    async fn fence(&self, machine: &Hypervisor, term: u64) -> Result<u64, String> {
        let fenced = self.fence.while_held(self.machines.fence(machine, term)).await;
        fenced.map_err(|NotHeld| NotHeld.to_string())?
    }

    async fn apply(
        &self,
        machine: &Hypervisor,
        config: ConfigDelivery,
        actions: Vec<Action>,
        run: &RunControl,
    ) -> ApplyOutcome {
        self.do_while_held(self.machines.apply(machine, config, actions, run)).await
    }

    async fn adopt(&self, machine: &Hypervisor, installation: &InstallationId, run: &RunControl) -> ApplyOutcome {
        self.do_while_held(self.machines.adopt(machine, installation, run)).await
    }

    async fn certify(
        &self,
        machine: &Hypervisor,
        certifying: &AgentCertification<'_>,
        run: &RunControl,
    ) -> ApplyOutcome {
        self.do_while_held(self.machines.certify(machine, certifying, run)).await
    }

    async fn dial(
        &self,
        machine: &Hypervisor,
        address: SocketAddr,
        patience: Duration,
    ) -> std::io::Result<MachineConnection> {
        self.machines.dial(machine, address, patience).await
    }

    async fn changed(&self, machines: &[&Hypervisor]) {
        self.machines.changed(machines).await;
    }
}
