//! A simulated machine as a subject of the contract.

use std::net::{IpAddr, SocketAddr};

use async_trait::async_trait;
use keelway_api::{machine::MachineState, name::HypervisorName};
use keelway_machine::{action::Action, report::ApplyReport};
use keelway_machine_io::execute::execute;
use tokio_util::sync::CancellationToken;

use super::{
    fault_steps::Sim, machine::SimulatedHypervisor, machines::SimulatedExecutor, runtime::KILLED,
    state::SimulationState,
};
use crate::contract::{ContractSubject, ProgramBehaviour};

/// One machine in a simulation without faults.
pub struct SimulatedMachine {
    sim: Sim,
    name: HypervisorName,
    address: IpAddr,
}

impl Default for SimulatedMachine {
    fn default() -> Self {
        let address = IpAddr::from([10, 0, 0, 1]);
        let name: HypervisorName = "hv-1".parse().unwrap();
        let mut world = SimulationState::new(0, None);
        world.weather.calm = true;
        world.machines.insert(name.clone(), SimulatedHypervisor::new(address));
        Self { sim: Sim::new(world), name, address }
    }
}

#[async_trait]
impl ContractSubject for SimulatedMachine {
    fn program(&self, behaviour: ProgramBehaviour) -> (String, Vec<String>) {
        let program = match behaviour {
            // Without a configuration file, the simulated haproxy runs and listens nowhere.
            ProgramBehaviour::Serves => "haproxy",
            ProgramBehaviour::Fails => "no such program",
        };
        ("program".to_owned(), vec![program.to_owned()])
    }

    fn etcd(&self) -> String {
        "etcd".to_owned()
    }

    fn pause(&self) -> String {
        "pause".to_owned()
    }

    fn address(&self) -> IpAddr {
        self.address
    }

    async fn execute(&self, actions: Vec<Action>) -> ApplyReport {
        let executor = SimulatedExecutor { sim: &self.sim, machine: &self.name };
        execute(&executor, &actions, &CancellationToken::new(), &|_| {}).await
    }

    async fn observe(&self) -> MachineState {
        self.sim.world().machines[&self.name].state()
    }

    async fn kill(&self, container: &str) {
        let mut world = self.sim.world();
        if let Some(machine) = world.machines.get_mut(&self.name) {
            machine.runtime.end(|kept| kept.state.id == container, KILLED);
        }
    }

    /// A simulated runtime has no process to restart, and keeps its state.
    async fn restart_runtime(&self) {}

    async fn is_ready(&self, member: SocketAddr) -> bool {
        let world = self.sim.world();
        world.process_at(&self.name, member).is_some_and(|process| world.is_well(process))
    }
}
