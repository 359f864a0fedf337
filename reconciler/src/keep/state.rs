//! What is known at one moment: the documents, what was seen of machines, what clusters want of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use keelway_api::{
    Documents,
    machine::{MachineState, Seen},
    name::{ClusterId, ClusterRef, HypervisorName},
};
use keelway_planner::{Wants, refusal};
use tokio::sync::Notify;

use super::Task;

/// What tasks know of each other.
#[derive(Default)]
pub(super) struct State {
    /// As the store has them.
    pub(super) documents: Arc<Documents>,
    pub(super) machines: BTreeMap<HypervisorName, Machine>,
    pub(super) clusters: BTreeMap<ClusterRef, Cluster>,
    /// Wakes who looks after all machines.
    pub(super) wake_machines: Arc<Notify>,
}

/// What is known of a machine.
#[derive(Default)]
pub(super) struct Machine {
    /// None: nobody looked yet.
    pub(super) seen: Option<Arc<Seen<MachineState>>>,
    /// Told when it was looked at for the first time.
    pub(super) looked: Arc<Notify>,
    /// Wakes its task.
    pub(super) wake: Arc<Notify>,
}

/// What is known of a cluster.
#[derive(Default)]
pub(super) struct Cluster {
    /// What it wants of each machine, with the documents that this comes from.
    pub(super) wants: BTreeMap<HypervisorName, Wants>,
    pub(super) documents: Arc<Documents>,
    /// Wakes its task.
    pub(super) wake: Arc<Notify>,
}

impl State {
    /// All that there is to work on.
    pub(super) fn tasks(&self) -> impl Iterator<Item = Task> {
        let machines = self.machines.keys().cloned().map(Task::Machine);
        let clusters = self.clusters.keys().cloned().map(Task::Cluster);
        [Task::Machines].into_iter().chain(machines).chain(clusters)
    }

    /// Takes documents that others may have changed.
    pub(super) fn take(&mut self, documents: Arc<Documents>) {
        let before = std::mem::replace(&mut self.documents, documents);
        if Arc::ptr_eq(&before, &self.documents) && !self.machines.is_empty() {
            return;
        }
        self.forget_what_is_gone();
        let now = &*self.documents;
        let shared = now.hypervisors != before.hypervisors || !now.shared_secrets().eq(before.shared_secrets());
        if shared {
            self.wake_machines.notify_one();
        }
        for (name, document) in &now.hypervisors {
            let machine = self.machines.entry(name.clone()).or_default();
            if before.hypervisors.get(name).is_none_or(|before| before.spec != document.spec) {
                machine.wake.notify_one();
            }
        }
        for name in now.clusters.keys() {
            let cluster = self.clusters.entry(name.clone()).or_default();
            if shared || is_changed(now, &before, name) {
                cluster.wake.notify_one();
            }
        }
    }

    /// Whoever works on what is gone is woken for the last time.
    pub(super) fn forget_what_is_gone(&mut self) {
        let Self { documents, machines, clusters, .. } = self;
        let stays = |there: bool, wake: &Notify| {
            if !there {
                wake.notify_one();
            }
            there
        };
        machines.retain(|name, machine| stays(documents.hypervisors.contains_key(name), &machine.wake));
        clusters.retain(|name, cluster| stays(documents.clusters.contains_key(name), &cluster.wake));
    }

    /// Takes a look at a machine. Whoever relies on what changed is woken.
    pub(super) fn saw(&mut self, name: &HypervisorName, seen: Seen<MachineState>) {
        let Some(machine) = self.machines.get_mut(name) else { return };
        let before = machine.seen.replace(Arc::new(seen));
        machine.looked.notify_waiters();
        let now = machine.seen.as_deref();
        if before.as_deref() == now {
            return;
        }
        self.wake_machines.notify_one();
        let came = before.as_deref().and_then(Seen::known).is_none() != now.and_then(Seen::known).is_none();
        let here = clusters_on(&self.documents, name);
        for (cluster, known) in &self.clusters {
            let own = here.get(cluster).is_some_and(|id| came || part(before.as_deref(), id) != part(now, id));
            // One that waits for room may have it now.
            if own || (came && !here.contains_key(cluster)) {
                known.wake.notify_one();
            }
        }
    }

    /// Takes what a cluster wants of machines. Those of which it wants something else are woken.
    pub(super) fn wants(
        &mut self,
        name: &ClusterRef,
        documents: Arc<Documents>,
        wants: BTreeMap<HypervisorName, Wants>,
    ) {
        let Some(cluster) = self.clusters.get_mut(name) else { return };
        let before = std::mem::replace(&mut cluster.wants, wants);
        cluster.documents = documents;
        let now = &cluster.wants;
        let all: BTreeSet<&HypervisorName> = before.keys().chain(now.keys()).collect();
        for name in all.into_iter().filter(|name| before.get(*name) != now.get(*name)) {
            if let Some(machine) = self.machines.get(name) {
                machine.wake.notify_one();
            }
        }
    }

    /// Wakes every task.
    pub(super) fn wake_all(&self) {
        self.machines.values().for_each(|machine| machine.wake.notify_one());
        self.clusters.values().for_each(|cluster| cluster.wake.notify_one());
    }

    /// Whether a machine tells that the documents are not the newest: then nothing is done anywhere.
    pub(super) fn is_stale(&self) -> bool {
        self.machines.iter().any(|(name, machine)| {
            let (document, seen) =
                (self.documents.hypervisors.get(name), machine.seen.as_deref().and_then(Seen::known));
            let refused = document.zip(seen).and_then(|(document, state)| refusal(document, state));
            refused.is_some_and(|refused| refused.is_stale())
        })
    }

    /// The machines of a cluster's components.
    pub(super) fn machines_of(&self, name: &ClusterRef) -> BTreeSet<HypervisorName> {
        let id = self.documents.clusters.get(name).and_then(|cluster| cluster.id());
        let components = id.into_iter().flat_map(|id| self.documents.components_of(id));
        components.map(|(_, component)| component.spec.hypervisor.clone()).collect()
    }

    /// What is known of machines, of which each tells of this cluster alone.
    pub(super) fn seen_of(&self, id: Option<&ClusterId>) -> BTreeMap<HypervisorName, Seen<MachineState>> {
        let part = |(name, machine): (&HypervisorName, &Machine)| {
            let seen = machine.seen.as_deref()?;
            let part = match seen {
                Seen::Known(state) => Seen::Known(id.map_or_else(|| facts(state), |id| state.part_of(id))),
                Seen::Unreachable { .. } => seen.clone(),
            };
            Some((name.clone(), part))
        };
        self.machines.iter().filter_map(part).collect()
    }
}

/// What a machine tells of itself alone.
fn facts(state: &MachineState) -> MachineState {
    MachineState {
        sandboxes: Vec::new(),
        containers: Vec::new(),
        files: BTreeMap::new(),
        data: BTreeMap::new(),
        servers: BTreeMap::new(),
        healthy: BTreeSet::new(),
        ..state.clone()
    }
}

/// Clusters with components on a machine.
pub(super) fn clusters_on<'a>(
    documents: &'a Documents,
    machine: &HypervisorName,
) -> BTreeMap<&'a ClusterRef, &'a ClusterId> {
    let here = documents.components.values().filter(|component| component.spec.hypervisor == *machine);
    here.map(|component| (&component.spec.cluster, &component.spec.cluster_id)).collect()
}

/// What matters to a cluster of what a machine tells: where others listen matters to who is placed.
fn part(seen: Option<&Seen<MachineState>>, id: &ClusterId) -> Option<MachineState> {
    let state = seen?.known()?.part_of(id);
    Some(MachineState { ports: keelway_api::machine::PortFacts::default(), disk: None, applied: None, ..state })
}

fn is_changed(now: &Documents, before: &Documents, name: &ClusterRef) -> bool {
    let (one, other) = (now.clusters.get(name), before.clusters.get(name));
    let Some(id) = one.and_then(|cluster| cluster.id()) else { return true };
    one != other || !now.components_of(id).eq(before.components_of(id)) || !now.secrets_of(id).eq(before.secrets_of(id))
}
