//! What is known at one moment: the documents, what was seen of machines, what clusters want of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use keelway_api::{
    Documents,
    hypervisor::Applied,
    machine::{MachineState, Seen},
    name::{ClusterId, ClusterRef, HypervisorName},
};
use keelway_planner::{Wants, refusal, term_of_documents, term_of_machine};
use tokio::sync::Notify;

use super::Task;
use crate::connected::has_agent;

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
    /// Clusters of the config that it is being given: what they have there is not known before the next look.
    pub(super) giving: BTreeSet<ClusterId>,
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

    /// Takes documents that were saved.
    pub(super) fn saved(&mut self, documents: Arc<Documents>) {
        let before = std::mem::replace(&mut self.documents, documents);
        self.forget_what_is_gone();
        self.tell_of_what_left(&before);
        let installation = |of: &Documents, name| of.hypervisors.get(name)?.status.as_ref()?.installation.clone();
        for (name, machine) in &self.machines {
            if installation(&before, name) != installation(&self.documents, name) {
                machine.wake.notify_one();
            }
        }
    }

    /// Takes documents that others may have changed.
    pub(super) fn take(&mut self, documents: Arc<Documents>) {
        let before = std::mem::replace(&mut self.documents, documents);
        if Arc::ptr_eq(&before, &self.documents) && !self.machines.is_empty() {
            return;
        }
        self.forget_what_is_gone();
        self.tell_of_what_left(&before);
        let now = &*self.documents;
        let shared = now.hypervisors != before.hypervisors
            || now.given != before.given
            || !now.shared_secrets().eq(before.shared_secrets());
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

    /// A deleted machine goes once no component is on it.
    fn tell_of_what_left(&self, before: &Documents) {
        let is_awaited = self.documents.hypervisors.values().any(keelway_api::Hypervisor::deleted);
        if is_awaited && before.components.keys().ne(self.documents.components.keys()) {
            self.wake_machines.notify_one();
        }
    }

    /// Takes a look at a machine. Whoever relies on what changed is woken.
    pub(super) fn saw(&mut self, name: &HypervisorName, seen: Seen<MachineState>) {
        let was_stale = self.is_stale();
        let has_config = self.has_its_config(name, &seen);
        let Some(machine) = self.machines.get_mut(name) else { return };
        if has_config {
            machine.giving.clear();
        }
        let before = machine.seen.replace(Arc::new(seen));
        machine.looked.notify_waiters();
        if was_stale && !self.is_stale() {
            self.wake_all();
        }
        let Some(machine) = self.machines.get(name) else { return };
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

    /// Whether a machine took the config that was written down for it last. One with an agent may be at work on it, whoever waits for
    /// that.
    fn has_its_config(&self, name: &HypervisorName, seen: &Seen<MachineState>) -> bool {
        let Some(document) = self.documents.hypervisors.get(name) else { return true };
        let Seen::Known(state) = seen else { return false };
        let issued = document.status.as_ref().and_then(|status| status.issued.as_ref());
        let place = |config: &Applied| (config.term, config.generation);
        !has_agent(document) || state.applied.as_ref().map(place) >= issued.map(place)
    }

    /// Takes what a cluster wants of machines. Those of which it wants something else are woken, and those that it has left.
    pub(super) fn wants(
        &mut self,
        name: &ClusterRef,
        (documents, left): (Arc<Documents>, &BTreeSet<HypervisorName>),
        wants: BTreeMap<HypervisorName, Wants>,
    ) {
        let Some(cluster) = self.clusters.get_mut(name) else { return };
        let before = std::mem::replace(&mut cluster.wants, wants);
        cluster.documents = documents;
        let now = &cluster.wants;
        let all: BTreeSet<&HypervisorName> = before.keys().chain(now.keys()).chain(left).collect();
        let is_woken = |name: &&HypervisorName| before.get(*name) != now.get(*name) || left.contains(*name);
        for name in all.into_iter().filter(is_woken) {
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

    /// The highest term that documents or machines know; 1 where nobody drove them yet.
    pub(super) fn highest_term(&self) -> u64 {
        let seen = self.machines.values().filter_map(|machine| machine.seen.as_deref()?.known());
        seen.map(term_of_machine).max().unwrap_or_default().max(term_of_documents(&self.documents)).max(1)
    }

    /// The machines of a cluster's components.
    pub(super) fn machines_of(&self, name: &ClusterRef) -> BTreeSet<HypervisorName> {
        let id = self.documents.clusters.get(name).and_then(|cluster| cluster.id());
        let components = id.into_iter().flat_map(|id| self.documents.components_of(id));
        components.map(|(_, component)| component.spec.hypervisor.clone()).collect()
    }

    /// What is known of machines, of which each tells of this cluster alone. Where a cluster takes something away, a machine that is
    /// being given a config with the cluster in it may hold more than it told.
    pub(super) fn seen_of(&self, name: &ClusterRef) -> BTreeMap<HypervisorName, Seen<MachineState>> {
        let cluster = self.documents.clusters.get(name);
        let id = cluster.and_then(|cluster| cluster.id());
        let mut components = id.into_iter().flat_map(|id| self.documents.components_of(id));
        let takes_away = cluster.is_some_and(keelway_api::Cluster::deleted)
            || components.any(|(_, component)| component.is_leaving());
        let part = |(name, machine): (&HypervisorName, &Machine)| {
            let seen = machine.seen.as_deref()?;
            if takes_away && id.is_some_and(|id| machine.giving.contains(id)) {
                return Some((name.clone(), Seen::unreachable("it is being given a config")));
            }
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
    Some(MachineState {
        ports: keelway_api::machine::PortFacts::default(),
        disk: None,
        applied: None,
        term: 0,
        ..state
    })
}

fn is_changed(now: &Documents, before: &Documents, name: &ClusterRef) -> bool {
    let (one, other) = (now.clusters.get(name), before.clusters.get(name));
    let Some(id) = one.and_then(|cluster| cluster.id()) else { return true };
    one != other || !now.components_of(id).eq(before.components_of(id)) || !now.secrets_of(id).eq(before.secrets_of(id))
}
