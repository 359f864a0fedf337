//! What machines hold, as `keelway recover` reads it.

use alloc::{
    collections::{BTreeMap, BTreeSet},
    string::String,
    vec::Vec,
};

use keelway_api::{
    machine::{MachineConfig, MachineState, ObservedValue, Pod},
    name::{ClusterId, HypervisorName, PodName},
};

/// What one machine holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeldMachine {
    /// The observed state.
    pub state: MachineState,
    /// The config that it holds.
    pub config: HeldConfig,
}

/// The config that a machine holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HeldConfig {
    /// The agent sent it.
    Known(MachineConfig),
    /// The machine holds no config.
    None,
    /// The config cannot be read, for this reason.
    Unknown(String),
}

/// The config of a machine, compared with the last one that the documents record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ConfigAge {
    /// The machine has not accepted the last one yet.
    Older,
    /// The machine holds the last one, or the documents record none.
    Same,
    /// The machine holds one that the documents do not record.
    Later,
    /// The machine accepted a config, and holds none any more because nothing was left to run.
    Emptied,
}

/// The machines that responded and obey this installation.
pub(crate) struct AnsweringMachines<'a> {
    pub(crate) machines: BTreeMap<&'a HypervisorName, (&'a HeldMachine, ConfigAge)>,
    /// The clusters of which they hold something, each with those machines.
    pub(crate) clusters: BTreeMap<ClusterId, BTreeSet<&'a HypervisorName>>,
    /// Whether all machines of the documents are included, each with its config.
    pub(crate) is_complete: bool,
}

/// A pod in the config of a machine.
#[derive(Clone, Copy)]
pub(crate) struct HeldPod<'a> {
    pub(crate) machine: &'a HypervisorName,
    pub(crate) name: &'a PodName,
    pub(crate) pod: &'a Pod,
    pub(crate) runs: bool,
    pub(crate) age: ConfigAge,
}

impl<'a> AnsweringMachines<'a> {
    pub(crate) fn of(
        held: &'a BTreeMap<HypervisorName, ObservedValue<HeldMachine>>,
        ages: &BTreeMap<HypervisorName, ConfigAge>,
    ) -> Self {
        let machine = |(name, seen): (&'a HypervisorName, &'a ObservedValue<HeldMachine>)| {
            Some((name, (seen.known()?, *ages.get(name)?)))
        };
        let machines: BTreeMap<_, _> = held.iter().filter_map(machine).collect();
        let has_config = |(machine, _): &(&HeldMachine, ConfigAge)| !matches!(machine.config, HeldConfig::Unknown(_));
        let is_complete = machines.len() == held.len() && machines.values().all(has_config);
        Self { clusters: clusters_on(&machines), machines, is_complete }
    }

    pub(crate) fn age(&self, machine: &HypervisorName) -> Option<ConfigAge> {
        self.machines.get(machine).map(|(_, age)| *age)
    }

    pub(crate) fn machine(&self, name: &HypervisorName) -> Option<&'a HeldMachine> {
        self.machines.get(name).map(|(machine, _)| *machine)
    }

    /// The pods of a cluster in configs that are not older than the documents.
    pub(crate) fn pods(&self, id: &ClusterId) -> Vec<HeldPod<'a>> {
        let mut found = Vec::new();
        for (machine, (held, age)) in &self.machines {
            let HeldConfig::Known(config) = &held.config else { continue };
            if *age == ConfigAge::Older {
                continue;
            }
            let own = config.pods.iter().filter(|(name, _)| name.cluster == *id);
            found.extend(own.map(|(name, pod)| HeldPod { machine, name, pod, runs: held.state.runs(name), age: *age }));
        }
        found
    }

    /// The pods of a cluster on machines whose config is unknown.
    pub(crate) fn strangers(&self, id: &ClusterId) -> Vec<(&'a HypervisorName, PodName)> {
        let mut found = Vec::new();
        for (machine, (held, age)) in &self.machines {
            if *age == ConfigAge::Older || !matches!(held.config, HeldConfig::Unknown(_)) {
                continue;
            }
            let here: BTreeSet<PodName> = pods_on(&held.state).into_iter().filter(|pod| pod.cluster == *id).collect();
            found.extend(here.into_iter().map(|pod| (*machine, pod)));
        }
        found
    }
}

impl ConfigAge {
    /// Whether the machine has changed since the documents were written.
    pub(crate) fn is_after_documents(self) -> bool {
        match self {
            Self::Later | Self::Emptied => true,
            Self::Older | Self::Same => false,
        }
    }
}

/// All clusters of which machines hold something.
fn clusters_on<'a>(
    machines: &BTreeMap<&'a HypervisorName, (&'a HeldMachine, ConfigAge)>,
) -> BTreeMap<ClusterId, BTreeSet<&'a HypervisorName>> {
    let mut found: BTreeMap<ClusterId, BTreeSet<&HypervisorName>> = BTreeMap::new();
    for (name, (held, _)) in machines {
        let configured = match &held.config {
            HeldConfig::Known(config) => config.pods.keys().map(|pod| pod.cluster.clone()).collect(),
            HeldConfig::None | HeldConfig::Unknown(_) => Vec::new(),
        };
        for id in held.state.clusters().chain(configured) {
            found.entry(id).or_default().insert(name);
        }
    }
    found
}

/// The pods that a machine has, from its sandboxes, directories and data.
fn pods_on(state: &MachineState) -> Vec<PodName> {
    let sandboxes = state.sandboxes.iter().map(|sandbox| sandbox.pod.clone());
    let directories = state.files.keys().filter_map(|path| {
        let mut parts = path.split('/');
        let name = [parts.next()?, "/", parts.next()?].concat();
        name.parse().ok()
    });
    sandboxes.chain(directories).chain(state.pods_with_marked_data()).collect()
}
