//! Sends machines their configs directly, without a driver.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
};

use keelway_agent_api::{client::HypervisorAgentClient, wire};
use keelway_api::{
    machine::{MachineConfig, Start},
    name::ClusterId,
};

use crate::machine::SOCKET;

/// The file of the agent's config, relative to the root of its machine.
const BOOK: &str = "var/lib/keelway/config";

/// The config that a machine had, and a client that sends it again.
pub(crate) struct Config {
    agent: HypervisorAgentClient,
    config: MachineConfig,
}

impl Config {
    /// Removes all pods from a machine, and returns its config restricted to these clusters.
    pub(crate) async fn cleared(root: &Path, clusters: &BTreeSet<ClusterId>) -> Self {
        let agent = HypervisorAgentClient::on_socket(&root.join(SOCKET));
        let mut config = wire::decode_config(&fs::read(root.join(BOOK)).unwrap()).unwrap();
        config.pods.retain(|name, _| clusters.contains(&name.cluster));
        // The pods start without marks of their data directories, as on a first start, because their data is gone.
        config.pods.values_mut().for_each(|pod| pod.start = Start::Always);
        config.generation += 1;
        let nothing = MachineConfig { pods: BTreeMap::new(), ..config.clone() };
        config.generation += 1;
        let cleared = Self { agent, config };
        cleared.hand_over(&nothing).await;
        cleared
    }

    /// Sends the config, and returns when the machine has applied all of it.
    pub(crate) async fn give(&self) {
        self.hand_over(&self.config).await;
    }

    async fn hand_over(&self, config: &MachineConfig) {
        let finished = self.agent.apply(config, &|_| {}).await.unwrap();
        assert!(finished.failures.is_empty() && finished.postponed.is_empty(), "{finished:?}");
        assert!(finished.effects > 0 || self.config.pods.is_empty(), "a machine was there already");
    }
}
