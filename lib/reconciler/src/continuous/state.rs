//! The current state of continuous reconciliation: documents, observations of machines, and desired pods of clusters.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use keelway_api::{
    Documents, Hypervisor, Shared,
    document::DocumentName,
    hypervisor::Applied,
    jiff::Timestamp,
    machine::{DatabaseRoom, MachineState, ObservedValue},
    name::{ClusterId, ClusterRef, HypervisorName, PodName},
    quantity::Memory,
    shared::Map,
};
use keelway_planner::{DesiredPods, HIGHEST_TOLD_TERM, PassObservation, Waves, refuse};
use tokio::sync::{Notify, futures::OwnedNotified};

use super::{Task, common_documents::CommonDocuments, index::ComponentIndex};

/// The state that tasks share.
#[derive(Default)]
pub(super) struct ReconcilerState {
    /// The waves in which clusters move to this release of Keelway.
    pub(super) waves: Waves,
    /// The documents in the store.
    pub(super) documents: Arc<Documents>,
    /// The documents that all clusters see beside their own.
    pub(super) common: CommonDocuments,
    pub(super) index: ComponentIndex,
    pub(super) machines: BTreeMap<HypervisorName, TrackedMachine>,
    pub(super) clusters: BTreeMap<ClusterRef, TrackedCluster>,
    /// Wakes the task for all machines.
    pub(super) all_machines: Arc<Notify>,
}

#[derive(Default)]
pub(super) struct TrackedMachine {
    /// The last observation; none before the first.
    pub(super) seen: Option<Shared<ObservedValue<MachineState>>>,
    /// The facts of the machine itself, without its components: the observation for clusters that have nothing there.
    facts: Option<Shared<ObservedValue<MachineState>>>,
    /// The clusters that have something on the machine.
    holds: BTreeSet<ClusterId>,
    /// The term of a later leader that the machine obeys.
    obeys_later: Option<u64>,
    /// When the machine last responded.
    pub(super) last_contact: Option<Timestamp>,
    /// Notified after each observation. Tasks wait here for the first one.
    pub(super) first_observed: Arc<Notify>,
    /// Wakes the machine's task to observe it.
    pub(super) wake: Arc<Notify>,
    /// Wakes the machine's task because desired pods changed.
    pub(super) wanted: Arc<Notify>,
    /// Notified when the task has read its desired pods. If they need a new config, its term and generation are in the save queue by then.
    pub(super) contact_notify: Arc<Notify>,
    /// The clusters in the config that is being applied. What they have on the machine is unknown until the next observation.
    pub(super) applying_clusters: BTreeSet<ClusterId>,
    /// The config that the machine applied last, if it applied all of it.
    pub(super) applied_config: Option<AppliedConfig>,
}

/// A config that the agent of a machine has applied completely. The agent keeps it applied by itself.
pub(super) struct AppliedConfig {
    /// The term, generation and digest of the config.
    pub(super) fence: Applied,
    /// The desired pods of clusters, which make up the whole config.
    pub(super) desired: Vec<Shared<DesiredPods>>,
}

#[derive(Default)]
pub(super) struct TrackedCluster {
    /// The cluster's desired pods on each machine.
    pub(super) desired: BTreeMap<HypervisorName, Shared<DesiredPods>>,
    /// The documents that the desired pods were decided from.
    pub(super) documents: Arc<Documents>,
    pub(super) wake: Arc<Notify>,
    /// Whether the last pass of the cluster left nothing to wait for. A settled cluster ignores machines on which it has no components.
    settled: bool,
}

impl ReconcilerState {
    pub(super) fn in_waves(waves: Waves) -> Self {
        Self { waves, ..Self::default() }
    }

    /// Returns all tasks.
    pub(super) fn tasks(&self) -> impl Iterator<Item = Task> {
        let machines = self.machines.keys().cloned().map(Task::Machine);
        let clusters = self.clusters.keys().cloned().map(Task::Cluster);
        [Task::Machines].into_iter().chain(machines).chain(clusters)
    }

    /// Applies documents that this process saved.
    pub(super) fn saved(&mut self, documents: Arc<Documents>) {
        let (before, changed) = self.replace(documents);
        let installation = |of: &Documents, name| of.hypervisors.get(name)?.status.as_ref()?.installation.clone();
        for name in changed.iter().filter_map(machine_name) {
            if let Some(machine) = self.machines.get(name)
                && installation(&before, name) != installation(&self.documents, name)
            {
                machine.wake.notify_one();
            }
        }
    }

    /// Replaces the documents. Returns the documents before, and what changed.
    fn replace(&mut self, documents: Arc<Documents>) -> (Arc<Documents>, BTreeSet<DocumentName>) {
        let before = std::mem::replace(&mut self.documents, documents);
        let changed = self.documents.names_changed_since(&before);
        self.index.take(&changed, &before, &self.documents);
        self.common.take(&changed, &self.documents);
        self.forget_removed(&changed);
        self.notify_removed_components(&changed);
        self.wake_for_waves(&changed);
        (before, changed)
    }

    /// Applies documents that other programs may have changed.
    pub(super) fn take(&mut self, documents: Arc<Documents>) {
        let staleness = self.staleness();
        let (before, changed) = self.replace(documents);
        self.wake_for_staleness(staleness);
        let now = &*self.documents;
        for name in &changed {
            match name {
                DocumentName::Hypervisor(name) => {
                    let Some(document) = now.hypervisors.get(name) else { continue };
                    let machine = self.machines.entry(name.clone()).or_default();
                    if before.hypervisors.get(name).is_none_or(|before| before.spec != document.spec) {
                        machine.wake.notify_one();
                    }
                }
                DocumentName::Cluster(name) if now.clusters.contains_key(name) => {
                    self.clusters.entry(name.clone()).or_default();
                }
                DocumentName::ClusterClass(_)
                | DocumentName::Cluster(_)
                | DocumentName::Component(_)
                | DocumentName::Secret(_) => {}
            }
        }
        let concerned = self.index.affected_tasks(&changed, &before, now);
        if concerned.has_all || concerned.has_unsettled {
            self.all_machines.notify_one();
        }
        for (name, cluster) in &self.clusters {
            let waits = concerned.has_unsettled && !cluster.settled;
            if concerned.has_all || waits || concerned.clusters.contains(name) {
                cluster.wake.notify_one();
            }
        }
    }

    /// Removes what is no longer in the documents, and wakes its tasks so that they end.
    fn forget_removed(&mut self, changed: &BTreeSet<DocumentName>) {
        for name in changed.iter().filter(|name| self.documents.get(name).is_none()) {
            let wake = match name {
                DocumentName::Hypervisor(name) => self.machines.remove(name).map(|machine| machine.wake),
                DocumentName::Cluster(name) => {
                    // Machines may have waited for the desired pods of this cluster.
                    self.machines.values().for_each(|machine| machine.wanted.notify_one());
                    self.clusters.remove(name).map(|cluster| cluster.wake)
                }
                DocumentName::ClusterClass(_) | DocumentName::Component(_) | DocumentName::Secret(_) => None,
            };
            if let Some(wake) = wake {
                wake.notify_one();
            }
        }
    }

    /// Wakes clusters that may upgrade now. Any change of a cluster can complete a wave.
    fn wake_for_waves(&self, changed: &BTreeSet<DocumentName>) {
        if changed.iter().any(|name| matches!(name, DocumentName::Cluster(_))) {
            let open = self.waves.open(&self.documents);
            open.iter().filter_map(|name| self.clusters.get(name)).for_each(|cluster| cluster.wake.notify_one());
        }
    }

    /// Wakes the task for all machines if a component was removed: a deleted machine is removed once it has no components.
    fn notify_removed_components(&self, changed: &BTreeSet<DocumentName>) {
        let left = |name: &DocumentName| matches!(name, DocumentName::Component(pod) if !self.documents.components.contains_key(pod));
        if changed.iter().any(left) && self.documents.hypervisors.values().any(|machine| machine.deleted()) {
            self.all_machines.notify_one();
        }
    }

    /// Records an observation of a machine, and wakes the tasks that depend on what changed.
    pub(super) fn record_observation(&mut self, name: &HypervisorName, seen: ObservedValue<MachineState>) {
        let staleness = self.staleness();
        let has_config = self.has_its_config(name, &seen);
        let Some(machine) = self.machines.get_mut(name) else { return };
        if has_config {
            machine.applying_clusters.clear();
        }
        machine.holds = seen.known().map(|state| state.clusters().collect()).unwrap_or_default();
        machine.facts = seen.known().map(|state| ObservedValue::Known(state.facts()).into());
        let before = machine.seen.replace(seen.into());
        machine.first_observed.notify_waiters();
        self.wake_for_staleness(staleness);
        let Some(machine) = self.machines.get(name) else { return };
        let now = machine.seen.as_deref();
        if before.as_deref() == now {
            return;
        }
        self.all_machines.notify_one();
        let came =
            before.as_deref().and_then(ObservedValue::known).is_none() != now.and_then(ObservedValue::known).is_none();
        let here = self.index.clusters_on(&self.documents, name);
        for (cluster, known) in &self.clusters {
            let own = here.get(cluster).is_some_and(|id| {
                let Some(document) = self.documents.clusters.get(cluster) else { return came };
                let part = |seen| relevant_state(seen, (id, document.spec.etcd.quota()));
                came || part(before.as_deref()) != part(now)
            });
            // A machine that became reachable or unreachable changes the room that unsettled clusters wait for.
            if own || (came && !here.contains_key(cluster) && !known.settled) {
                known.wake.notify_one();
            }
        }
    }

    /// Returns whether a machine has the config that was last recorded for it. An agent may still be applying a config after the call that sent it
    /// has ended.
    fn has_its_config(&self, name: &HypervisorName, seen: &ObservedValue<MachineState>) -> bool {
        let Some(document) = self.documents.hypervisors.get(name) else { return true };
        let ObservedValue::Known(state) = seen else { return false };
        let issued = document.status.as_ref().and_then(|status| status.issued.as_ref());
        let place = |config: &Applied| (config.term, config.generation);
        !document.spec.endpoint.has_agent() || state.applied.as_ref().map(place) >= issued.map(place)
    }

    /// Returns whether a config with this cluster is being applied on any machine. Machines that are lost for good are ignored.
    pub(super) fn is_being_applied(&self, id: &ClusterId) -> bool {
        let is_lost = |name| self.documents.hypervisors.get(name).is_some_and(|document| document.is_lost());
        self.machines.iter().any(|(name, machine)| machine.applying_clusters.contains(id) && !is_lost(name))
    }

    /// Records the desired pods of a cluster. Wakes machines whose desired pods changed, and machines that the cluster has left. Each returned
    /// future ends when the task of one of these machines has read its desired pods.
    pub(super) fn set_desired_pods(
        &mut self,
        name: &ClusterRef,
        (documents, left): (Documents, &BTreeSet<HypervisorName>),
        wants: BTreeMap<HypervisorName, DesiredPods>,
    ) -> Vec<OwnedNotified> {
        let Some(cluster) = self.clusters.get_mut(name) else { return Vec::new() };
        let before = std::mem::take(&mut cluster.desired);
        let kept = |(machine, wants): (HypervisorName, DesiredPods)| {
            let known = before.get(&machine).filter(|known| ***known == wants).cloned();
            (machine, known.unwrap_or_else(|| wants.into()))
        };
        cluster.desired = wants.into_iter().map(kept).collect();
        cluster.documents = self.common.retained_documents(documents).into();
        let Some(now) = self.clusters.get(name).map(|cluster| &cluster.desired) else { return Vec::new() };
        let all: BTreeSet<&HypervisorName> = before.keys().chain(now.keys()).chain(left).collect();
        let is_woken = |name: &&HypervisorName| before.get(*name) != now.get(*name) || left.contains(*name);
        let woken = all.into_iter().filter(is_woken).filter(|name| self.is_all_told(name));
        let wake = |machine: &TrackedMachine| {
            let heard_of = machine.contact_notify.clone().notified_owned();
            machine.wanted.notify_one();
            heard_of
        };
        woken.filter_map(|name| self.machines.get(name)).map(wake).collect()
    }

    /// Records whether a cluster is settled. It is not while a pass runs.
    pub(super) fn settles(&mut self, name: &ClusterRef, settled: bool) {
        if let Some(cluster) = self.clusters.get_mut(name) {
            cluster.settled = settled;
        }
    }

    /// Returns whether each cluster with components on a machine has published its desired pods there.
    pub(super) fn is_all_told(&self, machine: &HypervisorName) -> bool {
        let here = self.index.clusters_on(&self.documents, machine);
        let has_told =
            |name: &&ClusterRef| self.clusters.get(*name).is_some_and(|known| known.desired.contains_key(machine));
        here.keys().all(has_told)
    }

    /// Records that a machine responded now.
    pub(super) fn record_contact(&mut self, name: &HypervisorName, now: Timestamp) {
        if let Some(machine) = self.machines.get_mut(name) {
            machine.last_contact = Some(now);
        }
    }

    /// Returns whether the cluster has components on a machine that does not report all changes.
    pub(super) fn has_rounds(&self, name: &ClusterRef) -> bool {
        let machines = self.machines_of(name);
        let mut documents = machines.iter().filter_map(|machine| self.documents.hypervisors.get(machine));
        documents.any(|document| !reports_all_changes(document))
    }

    /// Wakes the tasks of these machines.
    pub(super) fn wake_machines(&self, names: &BTreeSet<HypervisorName>) {
        names.iter().filter_map(|name| self.machines.get(name)).for_each(|machine| machine.wake.notify_one());
    }

    /// Wakes the tasks of all machines and clusters.
    pub(super) fn wake_all(&self) {
        self.machines.values().for_each(|machine| machine.wake.notify_one());
        self.clusters.values().for_each(|cluster| cluster.wake.notify_one());
    }

    /// Returns whether machines show that the documents are not the newest. In that case nothing is changed anywhere.
    pub(super) fn is_stale(&self) -> bool {
        self.staleness().0
    }

    /// Returns [`Self::is_stale`], and the clusters that are frozen because of one of their machines.
    fn staleness(&self) -> (bool, BTreeSet<ClusterId>) {
        let seen = self.machines.iter().filter_map(|(name, machine)| Some((name.clone(), machine.seen.clone()?)));
        let mut seen = PassObservation { machines: seen.collect(), ..PassObservation::default() };
        refuse(&self.documents, &mut seen);
        (seen.stale(), seen.frozen_clusters(&self.documents).into_keys().collect())
    }

    /// Wakes the tasks of clusters that are frozen now or no longer, and all tasks if the documents are no longer stale.
    fn wake_for_staleness(&self, (was_stale, before): (bool, BTreeSet<ClusterId>)) {
        let (is_stale, now) = self.staleness();
        if was_stale && !is_stale {
            self.wake_all();
        }
        let names = before.symmetric_difference(&now).filter_map(|id| self.index.ids().get(id));
        names.filter_map(|name| self.clusters.get(name)).for_each(|cluster| cluster.wake.notify_one());
    }

    /// Returns the term of a later leader if more than half of the machines obey one. Counts machines that respond and machines that were never
    /// observed.
    pub(super) fn term_of_later_leader(&self) -> Option<u64> {
        let later: Vec<u64> = self.machines.values().filter_map(|machine| machine.obeys_later).collect();
        let others = self.machines.values().filter(|machine| machine.obeys_later.is_none());
        let others = others.filter(|machine| machine.seen.as_deref().is_none_or(|seen| seen.known().is_some())).count();
        later.iter().max().copied().filter(|_| later.len() > others)
    }

    /// Records whether a machine obeys a later leader. A term that no leader can have is ignored as a fault of the machine.
    pub(super) fn record_later_leader(&mut self, name: &HypervisorName, term: Option<u64>) {
        if let Some(machine) = self.machines.get_mut(name) {
            machine.obeys_later = term.filter(|term| *term <= HIGHEST_TOLD_TERM);
        }
    }

    /// Returns the documents that a cluster sees.
    pub(super) fn documents_of(&self, name: &ClusterRef) -> Documents {
        self.common.seen_by(name, &self.documents)
    }

    /// Returns the machines of a cluster's components.
    pub(super) fn machines_of(&self, name: &ClusterRef) -> BTreeSet<HypervisorName> {
        let id = self.documents.clusters.get(name).and_then(|cluster| cluster.id());
        let components = id.into_iter().flat_map(|id| self.documents.components_of(id));
        components.map(|(_, component)| component.spec.hypervisor.clone()).collect()
    }

    /// Returns the observations of all machines, each restricted to this cluster. If the cluster removes something, a machine that is applying a
    /// config with the cluster counts as unreachable: it may hold more than was observed.
    pub(super) fn seen_of(&self, name: &ClusterRef) -> Map<HypervisorName, ObservedValue<MachineState>> {
        let cluster = self.documents.clusters.get(name);
        let id = cluster.and_then(|cluster| cluster.id());
        let mut components = id.into_iter().flat_map(|id| self.documents.components_of(id));
        let takes_away =
            cluster.is_some_and(|cluster| cluster.deleted()) || components.any(|(_, component)| component.is_leaving());
        let part = |(name, machine): (&HypervisorName, &TrackedMachine)| {
            let seen = machine.seen.as_ref()?;
            if takes_away && id.is_some_and(|id| machine.applying_clusters.contains(id)) {
                return Some((name.clone(), ObservedValue::unreachable("it is receiving a config").into()));
            }
            let part = match (&**seen, id.filter(|id| machine.holds.contains(*id))) {
                (ObservedValue::Known(state), Some(id)) => ObservedValue::Known(state.part_of(id)).into(),
                (ObservedValue::Known(_), None) => machine.facts.clone()?,
                (ObservedValue::Unreachable { .. }, _) => seen.clone(),
            };
            Some((name.clone(), part))
        };
        self.machines.iter().filter_map(part).collect()
    }
}

/// Returns whether the machine reports all changes, and a lost connection to it is detected.
pub(super) fn reports_all_changes(document: &Hypervisor) -> bool {
    document.spec.endpoint.is_on_network()
}

fn machine_name(name: &DocumentName) -> Option<&HypervisorName> {
    match name {
        DocumentName::Hypervisor(name) => Some(name),
        DocumentName::Cluster(_)
        | DocumentName::ClusterClass(_)
        | DocumentName::Component(_)
        | DocumentName::Secret(_) => None,
    }
}

/// Returns the part of an observation that wakes a cluster. Ports in use are left out: they matter only to placement. So are addresses, which matter
/// only to the status of the machine. Of the size of a database, it contains only whether the quota is near.
fn relevant_state(
    seen: Option<&ObservedValue<MachineState>>,
    (id, quota): (&ClusterId, Memory),
) -> Option<(MachineState, Vec<(PodName, DatabaseRoom)>)> {
    let mut state = seen?.known()?.part_of(id);
    let figures = std::mem::take(&mut state.figures).into_iter();
    let rooms = figures.filter_map(|(pod, figures)| Some((pod, figures.database_room(quota)?))).collect();
    let state = MachineState {
        ports: keelway_api::machine::PortFacts::default(),
        addresses: BTreeSet::new(),
        disk: None,
        applied: None,
        term: 0,
        agent_id: None,
        ..state
    };
    Some((state, rooms))
}

#[cfg(test)]
mod tests {
    use keelway_api::machine::{CgroupDriver, Figures, RuntimeFacts};

    use super::*;

    /// A growing database wakes no task as long as the pass would report the same.
    #[test]
    fn of_a_database_it_matters_whether_its_quota_is_near() {
        let id: ClusterId = "aaaaaaaaaaaaaaaa".parse().unwrap();
        let quota = Memory::gibibytes(4);
        let seen = |pod: &str, mebibytes: u64, no_space: bool| {
            let runtime = RuntimeFacts {
                name: "containerd".to_owned(),
                version: "v2".to_owned(),
                cgroup_driver: CgroupDriver::Cgroupfs,
            };
            let figures = Figures { database_bytes: Some(mebibytes << 20), no_space, ..Figures::default() };
            let mut state = MachineState::empty(runtime);
            state.figures.insert(pod.parse().unwrap(), figures);
            relevant_state(Some(&ObservedValue::Known(state)), (&id, quota))
        };
        let own = |mebibytes, no_space| seen("aaaaaaaaaaaaaaaa/etcd-0", mebibytes, no_space);
        assert_eq!(own(20, false), own(3000, false));
        assert_ne!(own(3000, false), own(3300, false), "80 % are used");
        assert_eq!(own(3300, false), own(3600, false));
        assert_ne!(own(3600, false), own(4000, false), "90 % are used");
        assert_ne!(own(4000, false), own(4000, true));
        let other = |mebibytes| seen("bbbbbbbbbbbbbbbb/etcd-0", mebibytes, false);
        assert_eq!(other(20), other(4000));
    }
}
