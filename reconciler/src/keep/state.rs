//! What is known at one moment: the documents, what was seen of machines, what clusters want of them.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use keelway_api::{
    Documents, Hypervisor, Shared,
    document::DocumentName,
    hypervisor::{Applied, Way},
    jiff::Timestamp,
    machine::{DatabaseRoom, MachineState, Seen},
    name::{ClusterId, ClusterRef, HypervisorName, PodName},
    quantity::Memory,
    shared::Map,
};
use keelway_planner::{HIGHEST_TOLD_TERM, Observation, Wants, Waves, refuse};
use tokio::sync::{Notify, futures::OwnedNotified};

use super::{Changing, Task, common::Common, index::Index};
use crate::connected::has_agent;

/// Documents are put together in memory once there was one change for so many.
const SPREAD: usize = 8;

/// What tasks know of each other.
#[derive(Default)]
pub(super) struct State {
    /// In which clusters go to this release of Keelway.
    pub(super) waves: Waves,
    /// As the store has them.
    pub(super) documents: Arc<Documents>,
    /// What each cluster sees of them beside its own.
    pub(super) common: Common,
    pub(super) index: Index,
    pub(super) machines: BTreeMap<HypervisorName, Machine>,
    pub(super) clusters: BTreeMap<ClusterRef, Cluster>,
    /// Wakes who looks after all machines.
    pub(super) all_machines: Arc<Notify>,
    /// Told each time that documents are others.
    pub(super) replaced: Arc<Notify>,
    /// How many changes there were since they were put together in memory.
    spread: usize,
}

/// What is known of a machine.
#[derive(Default)]
pub(super) struct Machine {
    /// None: nobody looked yet.
    pub(super) seen: Option<Shared<Seen<MachineState>>>,
    /// The same for clusters that have nothing there: what it tells of itself alone.
    facts: Option<Shared<Seen<MachineState>>>,
    /// Clusters that have something there.
    holds: BTreeSet<ClusterId>,
    /// The term of a later leader that it obeys.
    obeys_later: Option<u64>,
    /// When it was heard of last.
    pub(super) heard: Option<Timestamp>,
    /// Told when it was looked at for the first time.
    pub(super) looked: Arc<Notify>,
    /// Wakes its task, to look at it.
    pub(super) wake: Arc<Notify>,
    /// Wakes its task, as clusters want something else of it.
    pub(super) wanted: Arc<Notify>,
    /// Told when its task has heard of that: where it is to be given another config, the number of that stands in the line.
    pub(super) heard_of: Arc<Notify>,
    /// Clusters of the config that it is being given: what they have there is not known before the next look.
    pub(super) giving: BTreeSet<ClusterId>,
    /// What its agent took last, where it did all of that.
    pub(super) given: Option<Given>,
}

/// A config that the agent of a machine took, and did: it keeps it so by itself.
pub(super) struct Given {
    /// Which one.
    pub(super) fence: Applied,
    /// What clusters wanted then, which is all that is in it.
    pub(super) wants: Vec<Shared<Wants>>,
}

/// What is known of a cluster.
#[derive(Default)]
pub(super) struct Cluster {
    /// What it wants of each machine, with the documents that this comes from.
    pub(super) wants: BTreeMap<HypervisorName, Shared<Wants>>,
    pub(super) documents: Arc<Documents>,
    /// Wakes its task.
    pub(super) wake: Arc<Notify>,
    /// Whether it waits for nothing since its last pass: what happens on machines where it has nothing does not concern it.
    settled: bool,
}

impl State {
    pub(super) fn in_waves(waves: Waves) -> Self {
        Self { waves, ..Self::default() }
    }

    /// All that there is to work on.
    pub(super) fn tasks(&self) -> impl Iterator<Item = Task> {
        let machines = self.machines.keys().cloned().map(Task::Machine);
        let clusters = self.clusters.keys().cloned().map(Task::Cluster);
        [Task::Machines].into_iter().chain(machines).chain(clusters)
    }

    /// Takes documents that were saved.
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

    /// Has other documents from now on. What changed, and how all were before.
    fn replace(&mut self, documents: Arc<Documents>) -> (Arc<Documents>, BTreeSet<DocumentName>) {
        let before = std::mem::replace(&mut self.documents, documents);
        let changed = self.documents.names_changed_since(&before);
        self.index.take(&changed, &before, &self.documents);
        self.common.take(&changed, &self.documents);
        self.forget_what_is_gone(&changed);
        self.tell_of_what_left(&changed);
        self.wake_for_waves(&changed);
        if !changed.is_empty() {
            self.spread += changed.len();
            self.replaced.notify_one();
        }
        (before, changed)
    }

    /// Puts together in memory what is kept of documents and machines, where much of it changed.
    pub(super) fn put_together(&mut self, store: &dyn Changing) {
        let Documents { clusters, components, secrets, .. } = &*self.documents;
        if self.spread == 0 || self.spread * SPREAD < clusters.len() + components.len() + secrets.len() {
            return;
        }
        let common = std::mem::take(&mut self.common);
        let is_as_now = |(name, cluster): (&ClusterRef, &Cluster)| {
            *cluster.documents == common.kept(common.seen_by(name, &self.documents))
        };
        let same: Vec<ClusterRef> =
            self.clusters.iter().filter(|known| is_as_now(*known)).map(|(name, _)| name.clone()).collect();
        for name in &same {
            self.clusters.entry(name.clone()).or_default().documents = Arc::default();
        }
        drop(common);
        // Else they are not what the store has by now, which is told soon.
        if store.put_together(&mut self.documents) {
            self.spread = 0;
        }
        self.common = Common::of(&self.documents);
        for name in same {
            let documents = self.common.kept(self.documents_of(&name)).into();
            self.clusters.entry(name).or_default().documents = documents;
        }
        for machine in self.machines.values_mut() {
            machine.seen = machine.seen.take().map(|seen| Seen::clone(&seen).into());
        }
    }

    /// Takes documents that others may have changed.
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
        let concerned = self.index.concerned(&changed, &before, now);
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

    /// Whoever works on what is gone is woken for the last time.
    fn forget_what_is_gone(&mut self, changed: &BTreeSet<DocumentName>) {
        for name in changed.iter().filter(|name| self.documents.get(name).is_none()) {
            let wake = match name {
                DocumentName::Hypervisor(name) => self.machines.remove(name).map(|machine| machine.wake),
                DocumentName::Cluster(name) => {
                    // Machines may have waited for what it wants.
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

    /// A cluster that is done may have been the last of its wave.
    fn wake_for_waves(&self, changed: &BTreeSet<DocumentName>) {
        if changed.iter().any(|name| matches!(name, DocumentName::Cluster(_))) {
            let open = self.waves.open(&self.documents);
            open.iter().filter_map(|name| self.clusters.get(name)).for_each(|cluster| cluster.wake.notify_one());
        }
    }

    /// A deleted machine goes once no component is on it.
    fn tell_of_what_left(&self, changed: &BTreeSet<DocumentName>) {
        let left = |name: &DocumentName| matches!(name, DocumentName::Component(pod) if !self.documents.components.contains_key(pod));
        if changed.iter().any(left) && self.documents.hypervisors.values().any(|machine| machine.deleted()) {
            self.all_machines.notify_one();
        }
    }

    /// Takes a look at a machine. Whoever relies on what changed is woken.
    pub(super) fn saw(&mut self, name: &HypervisorName, seen: Seen<MachineState>) {
        let staleness = self.staleness();
        let has_config = self.has_its_config(name, &seen);
        let Some(machine) = self.machines.get_mut(name) else { return };
        if has_config {
            machine.giving.clear();
        }
        machine.holds = seen.known().map(|state| state.clusters().collect()).unwrap_or_default();
        machine.facts = seen.known().map(|state| Seen::Known(state.facts()).into());
        let before = machine.seen.replace(seen.into());
        machine.looked.notify_waiters();
        self.wake_for_staleness(staleness);
        let Some(machine) = self.machines.get(name) else { return };
        let now = machine.seen.as_deref();
        if before.as_deref() == now {
            return;
        }
        self.all_machines.notify_one();
        let came = before.as_deref().and_then(Seen::known).is_none() != now.and_then(Seen::known).is_none();
        let here = self.index.clusters_on(&self.documents, name);
        for (cluster, known) in &self.clusters {
            let own = here.get(cluster).is_some_and(|id| {
                let Some(document) = self.documents.clusters.get(cluster) else { return came };
                let part = |seen| part(seen, (id, document.spec.etcd.quota()));
                came || part(before.as_deref()) != part(now)
            });
            // One that waits for room may have it now.
            if own || (came && !here.contains_key(cluster) && !known.settled) {
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

    /// Whether a machine is being given a config with this cluster in it. One that is lost for good takes none any more, and does not tell so.
    pub(super) fn is_being_given(&self, id: &ClusterId) -> bool {
        let is_lost = |name| self.documents.hypervisors.get(name).is_some_and(|document| document.is_lost());
        self.machines.iter().any(|(name, machine)| machine.giving.contains(id) && !is_lost(name))
    }

    /// Takes what a cluster wants of machines. Those of which it wants something else are woken, and those that it has left. Returns what
    /// ends when these have heard of it.
    pub(super) fn wants(
        &mut self,
        name: &ClusterRef,
        (documents, left): (Documents, &BTreeSet<HypervisorName>),
        wants: BTreeMap<HypervisorName, Wants>,
    ) -> Vec<OwnedNotified> {
        let Some(cluster) = self.clusters.get_mut(name) else { return Vec::new() };
        let before = std::mem::take(&mut cluster.wants);
        let kept = |(machine, wants): (HypervisorName, Wants)| {
            let known = before.get(&machine).filter(|known| ***known == wants).cloned();
            (machine, known.unwrap_or_else(|| wants.into()))
        };
        cluster.wants = wants.into_iter().map(kept).collect();
        cluster.documents = self.common.kept(documents).into();
        let Some(now) = self.clusters.get(name).map(|cluster| &cluster.wants) else { return Vec::new() };
        let all: BTreeSet<&HypervisorName> = before.keys().chain(now.keys()).chain(left).collect();
        let is_woken = |name: &&HypervisorName| before.get(*name) != now.get(*name) || left.contains(*name);
        let woken = all.into_iter().filter(is_woken).filter(|name| self.is_all_told(name));
        let wake = |machine: &Machine| {
            let heard_of = machine.heard_of.clone().notified_owned();
            machine.wanted.notify_one();
            heard_of
        };
        woken.filter_map(|name| self.machines.get(name)).map(wake).collect()
    }

    /// A pass of a cluster begins, or ended with nothing left to wait for.
    pub(super) fn settles(&mut self, name: &ClusterRef, settled: bool) {
        if let Some(cluster) = self.clusters.get_mut(name) {
            cluster.settled = settled;
        }
    }

    /// Whether each cluster with components on a machine has told what it wants of it.
    pub(super) fn is_all_told(&self, machine: &HypervisorName) -> bool {
        let here = self.index.clusters_on(&self.documents, machine);
        let has_told =
            |name: &&ClusterRef| self.clusters.get(*name).is_some_and(|known| known.wants.contains_key(machine));
        here.keys().all(has_told)
    }

    /// A machine is there.
    pub(super) fn heard(&mut self, name: &HypervisorName, now: Timestamp) {
        if let Some(machine) = self.machines.get_mut(name) {
            machine.heard = Some(now);
        }
    }

    /// Whether a cluster relies on a machine that does not tell of everything that changes there.
    pub(super) fn has_rounds(&self, name: &ClusterRef) -> bool {
        let machines = self.machines_of(name);
        let mut documents = machines.iter().filter_map(|machine| self.documents.hypervisors.get(machine));
        documents.any(|document| !tells_everything(document))
    }

    /// Wakes the tasks of these machines.
    pub(super) fn wake_these(&self, names: &BTreeSet<HypervisorName>) {
        names.iter().filter_map(|name| self.machines.get(name)).for_each(|machine| machine.wake.notify_one());
    }

    /// Wakes every task of a machine or a cluster.
    pub(super) fn wake_all(&self) {
        self.machines.values().for_each(|machine| machine.wake.notify_one());
        self.clusters.values().for_each(|cluster| cluster.wake.notify_one());
    }

    /// Whether machines tell that the documents are not the newest, so that nothing is done anywhere.
    pub(super) fn is_stale(&self) -> bool {
        self.staleness().0
    }

    /// The same, and clusters that stand still for a machine of theirs.
    fn staleness(&self) -> (bool, BTreeSet<ClusterId>) {
        let seen = self.machines.iter().filter_map(|(name, machine)| Some((name.clone(), machine.seen.clone()?)));
        let mut seen = Observation { machines: seen.collect(), ..Observation::default() };
        refuse(&self.documents, &mut seen);
        (seen.stale(), seen.standing_still(&self.documents).into_keys().collect())
    }

    /// Wakes whoever stood still, or does from now on.
    fn wake_for_staleness(&self, (was_stale, before): (bool, BTreeSet<ClusterId>)) {
        let (is_stale, now) = self.staleness();
        if was_stale && !is_stale {
            self.wake_all();
        }
        let names = before.symmetric_difference(&now).filter_map(|id| self.index.ids().get(id));
        names.filter_map(|name| self.clusters.get(name)).for_each(|cluster| cluster.wake.notify_one());
    }

    /// The term of a later leader, where more than half of the machines obey one, of those that answer and those that nobody looked at
    /// yet.
    pub(super) fn term_of_later_leader(&self) -> Option<u64> {
        let later: Vec<u64> = self.machines.values().filter_map(|machine| machine.obeys_later).collect();
        let others = self.machines.values().filter(|machine| machine.obeys_later.is_none());
        let others = others.filter(|machine| machine.seen.as_deref().is_none_or(|seen| seen.known().is_some())).count();
        later.iter().max().copied().filter(|_| later.len() > others)
    }

    /// A machine obeys a later leader, or does no longer. A term that no leader has is that machine's fault.
    pub(super) fn obeys_later(&mut self, name: &HypervisorName, term: Option<u64>) {
        if let Some(machine) = self.machines.get_mut(name) {
            machine.obeys_later = term.filter(|term| *term <= HIGHEST_TOLD_TERM);
        }
    }

    /// What a cluster sees of the documents.
    pub(super) fn documents_of(&self, name: &ClusterRef) -> Documents {
        self.common.seen_by(name, &self.documents)
    }

    /// The machines of a cluster's components.
    pub(super) fn machines_of(&self, name: &ClusterRef) -> BTreeSet<HypervisorName> {
        let id = self.documents.clusters.get(name).and_then(|cluster| cluster.id());
        let components = id.into_iter().flat_map(|id| self.documents.components_of(id));
        components.map(|(_, component)| component.spec.hypervisor.clone()).collect()
    }

    /// What is known of machines, of which each tells of this cluster alone. Where a cluster takes something away, a machine that is
    /// being given a config with the cluster in it may hold more than it told.
    pub(super) fn seen_of(&self, name: &ClusterRef) -> Map<HypervisorName, Seen<MachineState>> {
        let cluster = self.documents.clusters.get(name);
        let id = cluster.and_then(|cluster| cluster.id());
        let mut components = id.into_iter().flat_map(|id| self.documents.components_of(id));
        let takes_away =
            cluster.is_some_and(|cluster| cluster.deleted()) || components.any(|(_, component)| component.is_leaving());
        let part = |(name, machine): (&HypervisorName, &Machine)| {
            let seen = machine.seen.as_ref()?;
            if takes_away && id.is_some_and(|id| machine.giving.contains(id)) {
                return Some((name.clone(), Seen::unreachable("it is being given a config").into()));
            }
            let part = match (&**seen, id.filter(|id| machine.holds.contains(*id))) {
                (Seen::Known(state), Some(id)) => Seen::Known(state.part_of(id)).into(),
                (Seen::Known(_), None) => machine.facts.clone()?,
                (Seen::Unreachable { .. }, _) => seen.clone(),
            };
            Some((name.clone(), part))
        };
        self.machines.iter().filter_map(part).collect()
    }
}

/// Whether the machine tells of whatever changes there, and its silence is noticed.
pub(super) fn tells_everything(document: &Hypervisor) -> bool {
    matches!(document.spec.endpoint.way(), Way::Network(_))
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

/// What matters to a cluster of what a machine tells: where others listen matters to who is placed, and of the size of a database whether its
/// quota is near.
fn part(
    seen: Option<&Seen<MachineState>>,
    (id, quota): (&ClusterId, Memory),
) -> Option<(MachineState, Vec<(PodName, DatabaseRoom)>)> {
    let mut state = seen?.known()?.part_of(id);
    let figures = std::mem::take(&mut state.figures).into_iter();
    let rooms = figures.filter_map(|(pod, figures)| Some((pod, figures.database_room(quota)?))).collect();
    let state = MachineState {
        ports: keelway_api::machine::PortFacts::default(),
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

    const WORLD: &str = "apiVersion: keelway.dev/v1alpha1\nkind: Hypervisor\nmetadata: {name: hv-1}\nspec: {role: Private, endpoint: \
                         {unix: {path: /run/1.sock}}, addresses: {private: [10.0.0.1]}}\n---\napiVersion: keelway.dev/v1alpha1\nkind: \
                         Cluster\nmetadata: {name: c1, namespace: a}\nspec: {version: 1.37.0}\nstatus: {id: aaaaaaaaaaaaaaaa}\n";

    /// A store in which nobody else changes anything.
    struct Alone;

    #[async_trait::async_trait]
    impl Changing for Alone {
        async fn changed(&self) {
            std::future::pending::<()>().await;
        }

        fn put_together(&self, known: &mut Arc<Documents>) -> bool {
            Arc::make_mut(known).put_together();
            true
        }
    }

    #[test]
    fn what_is_put_together_is_there_once() {
        let mut state = State::default();
        let world = Arc::new(Documents::read(WORLD.as_bytes()).unwrap());
        let name = world.clusters.keys().next().unwrap().clone();
        state.take(world.clone());
        let own = state.documents_of(&name);
        state.wants(&name, (own, &BTreeSet::new()), BTreeMap::new());
        state.put_together(&Alone);
        assert_eq!(state.documents, world);
        let cluster = &state.documents.clusters[&name];
        assert!(!cluster.is_one_with(&world.clusters[&name]));
        assert!(cluster.is_one_with(&state.clusters[&name].documents.clusters[&name]));
        assert!(state.documents_of(&name).hypervisors.is_one_with(&state.documents.hypervisors));
        // As long as nothing changes, nothing is put elsewhere.
        let before = state.documents.clone();
        state.put_together(&Alone);
        assert!(Arc::ptr_eq(&before, &state.documents));
    }

    /// A database that grows wakes nobody: what a pass says of it is the same.
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
            part(Some(&Seen::Known(state)), (&id, quota))
        };
        let own = |mebibytes, no_space| seen("aaaaaaaaaaaaaaaa/etcd-0", mebibytes, no_space);
        assert_eq!(own(20, false), own(3000, false));
        assert_ne!(own(3000, false), own(3300, false), "80 % are used");
        assert_eq!(own(3300, false), own(4000, false));
        assert_ne!(own(4000, false), own(4000, true));
        let other = |mebibytes| seen("bbbbbbbbbbbbbbbb/etcd-0", mebibytes, false);
        assert_eq!(other(20), other(4000));
    }
}
