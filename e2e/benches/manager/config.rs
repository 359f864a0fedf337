//! The config that a machine has, given by somebody who decides nothing.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use keelway_api::{
    machine::{MachineConfig, Start},
    name::ClusterId,
};
use keelway_hypervisor_agent::{client::HypervisorAgentClient, wire};

use crate::machine::SOCKET;

/// Where an agent keeps its config, below its machine's root.
const BOOK: &str = "var/lib/keelway/config";

/// What a machine had, on its way there once more.
pub(crate) struct Config {
    agent: HypervisorAgentClient,
    config: MachineConfig,
}

impl Config {
    /// Takes all away that a machine has, and returns its config of these clusters.
    pub(crate) async fn cleared(root: &Path, clusters: &BTreeSet<ClusterId>) -> Self {
        let agent = HypervisorAgentClient::on_socket(&root.join(SOCKET));
        let mut config = wire::decode_config(&fs::read(root.join(BOOK)).unwrap()).unwrap();
        config.pods.retain(|name, _| clusters.contains(&name.cluster));
        // As if it were a first time: what was there before is gone.
        config.pods.values_mut().for_each(|pod| pod.start = Start::Always);
        config.generation += 1;
        let nothing = MachineConfig { pods: BTreeMap::new(), ..config.clone() };
        config.generation += 1;
        let cleared = Self { agent, config };
        cleared.hand_over(&nothing).await;
        cleared
    }

    /// Returns once the machine has it all.
    pub(crate) async fn give(&self) {
        self.hand_over(&self.config).await;
    }

    async fn hand_over(&self, config: &MachineConfig) {
        let finished = self.agent.apply(config, &|_| {}).await.unwrap();
        assert!(finished.failures.is_empty() && finished.postponed.is_empty(), "{finished:?}");
        assert!(finished.effects > 0 || self.config.pods.is_empty(), "a machine was there already");
    }
}
