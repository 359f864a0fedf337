//! Recovers documents that were restored from an older backup, from what the machines hold.
//!
//! Nothing is deleted, and no machine is changed. The number of each machine becomes the number that the machine holds, so the machine accepts
//! the next pass. A component that a machine holds and no document names is adopted: its document is rebuilt from the machine's config. If
//! that is not possible, the cluster is paused, because a pass would stop what the documents do not name.

mod cluster;
mod difference;
mod keys;
mod numbers;
mod pod;
mod store;

use alloc::{
    collections::{BTreeMap, BTreeSet},
    string::{String, ToString},
    vec::Vec,
};

use keelway_api::{
    Documents, Time,
    machine::{MachineConfig, MachineState, ObservedValue, Pod},
    name::{ClusterId, ClusterRef, HypervisorName, PodName},
};

pub use difference::{DifferenceKind, RecoveryDifference, Remedy};

use cluster::ClusterRecovery;
use numbers::ConfigAge;

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

/// The result of a recovery.
#[derive(Debug, Clone)]
#[must_use]
pub struct Recovery {
    /// The recovered documents, from which a pass continues.
    pub documents: Documents,
    /// The differences, those of machines first.
    pub differences: Vec<RecoveryDifference>,
}

impl Recovery {
    /// Returns whether a difference requires an action of a person.
    #[must_use]
    pub fn needs_attention(&self) -> bool {
        self.differences.iter().any(|difference| difference.kind.remedy() == Remedy::NeedsAttention)
    }
}

/// Updates documents of an older backup to match what the machines hold. It is deterministic, and current documents stay unchanged.
pub fn recover(
    documents: &Documents,
    held: &BTreeMap<HypervisorName, ObservedValue<HeldMachine>>,
    now: &Time,
) -> Recovery {
    let mut differences = Vec::new();
    let mut recovered = documents.clone();
    numbers::share_installation(&mut recovered);
    let ages = numbers::ages(&recovered, held, &mut differences);
    let fleet = AnsweringMachines::of(held, &ages);
    numbers::realign(&mut recovered, &fleet, &mut differences);
    differences.sort_by(|one, other| one.subject.cmp(&other.subject));
    let clusters: Vec<(ClusterRef, ClusterId)> =
        recovered.clusters.iter().filter_map(|(name, cluster)| Some((name.clone(), cluster.id()?.clone()))).collect();
    for (name, id) in &clusters {
        ClusterRecovery::new(&mut recovered, &fleet, (name, id)).run(now, &mut differences);
    }
    let known: BTreeSet<&ClusterId> = clusters.iter().map(|(_, id)| id).collect();
    for (id, machines) in fleet.clusters.iter().filter(|(id, _)| !known.contains(id)) {
        let machines = machines.iter().map(ToString::to_string).collect();
        differences.push(RecoveryDifference::of(id, DifferenceKind::UnknownCluster { machines }));
    }
    Recovery { documents: recovered, differences }
}

/// The machines that responded and obey this installation.
pub(crate) struct AnsweringMachines<'a> {
    machines: BTreeMap<&'a HypervisorName, (&'a HeldMachine, ConfigAge)>,
    /// The clusters of which they hold something, each with those machines.
    clusters: BTreeMap<ClusterId, BTreeSet<&'a HypervisorName>>,
    /// Whether all machines of the documents are included, each with its config.
    is_complete: bool,
}

/// A pod in the config of a machine.
#[derive(Clone, Copy)]
pub(crate) struct HeldPod<'a> {
    machine: &'a HypervisorName,
    name: &'a PodName,
    pod: &'a Pod,
    runs: bool,
    age: ConfigAge,
}

impl<'a> AnsweringMachines<'a> {
    fn of(
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

    fn age(&self, machine: &HypervisorName) -> Option<ConfigAge> {
        self.machines.get(machine).map(|(_, age)| *age)
    }

    fn machine(&self, name: &HypervisorName) -> Option<&'a HeldMachine> {
        self.machines.get(name).map(|(machine, _)| *machine)
    }

    /// The pods of a cluster in configs that are not older than the documents.
    fn pods(&self, id: &ClusterId) -> Vec<HeldPod<'a>> {
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
    fn strangers(&self, id: &ClusterId) -> Vec<(&'a HypervisorName, PodName)> {
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
