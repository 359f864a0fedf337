//! Stores that are restored from snapshots: what people request, and what the new member and the earlier ones do. A snapshot has no content.

use std::collections::{BTreeMap, BTreeSet};

use keelway_api::{
    Cluster, Documents, Time,
    cluster::EtcdStatus,
    name::{ClusterId, ClusterRef, ComponentName, HypervisorName, PodName},
    restore::RestoreSpec,
    role::Role,
    snapshots::{SnapshotDirectory, SnapshotRetention, SnapshotSinkSpec, SnapshotsSpec},
    store_observation::{MemberId, StoreObservation},
    store_rebuild::{RebuildPhase, RebuildSource},
};
use keelway_planner::{RestorableSnapshot, store_model::StoreModel};

use super::{
    error::SimulatedRefusal, person::PersonAction, program::SimulatedMember, random::Random, rules::role_of,
    state::SimulationState,
};

/// One of this many runs has restores.
const RUNS: u32 = 4;
/// More epochs of such a run: a restore takes many passes.
const MORE_EPOCHS: u64 = 1;
/// The most requests of a run.
const MOST: usize = 3;

/// What is restored, with a generator of its own, so that the rest of a run does not depend on it.
pub(super) struct SimulatedRestores {
    random: Random,
    /// Whether people restore snapshots in this run.
    pub(super) happen: bool,
    requests: usize,
    /// The new stores whose member did not start yet.
    made: BTreeMap<ClusterId, (PodName, StoreModel)>,
    /// The stores of the earlier members.
    former: BTreeMap<ClusterId, StoreModel>,
}

impl SimulatedRestores {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed.rotate_left(40) ^ 0x4e57);
        let happen = random.one_in(RUNS);
        Self { random, happen, requests: 0, made: BTreeMap::new(), former: BTreeMap::new() }
    }

    pub(super) fn more_epochs(&self) -> u64 {
        if self.happen { MORE_EPOCHS } else { 0 }
    }
}

impl SimulationState {
    /// Lets people request restores now and then, and give some of them up.
    pub(super) fn advance_restores(&mut self) {
        if !self.restores.happen || self.weather.calm || self.pass.stale || self.manual_edit.is_some() {
            return;
        }
        if self.restores.requests < MOST && self.restores.random.one_in(5) {
            let names: Vec<ClusterRef> = self.restorable_clusters().collect();
            if let Some(name) = self.restores.random.pick(names) {
                self.request_restore(&name);
            }
        } else if self.restores.random.one_in(8) {
            self.give_up_restores();
        }
    }

    fn restorable_clusters(&self) -> impl Iterator<Item = ClusterRef> {
        let clusters = self.saved.clusters.iter();
        clusters.filter(|(_, cluster)| !cluster.deleted() && cluster.is_initialized()).map(|(name, _)| name.clone())
    }

    /// Changes the document as `keelway cluster restore` does.
    fn request_restore(&mut self, name: &ClusterRef) {
        self.restores.requests += 1;
        let request = RestoreSpec {
            snapshot: format!("20260101T000000Z-{}", self.restores.requests),
            requested_at: Time(self.now()),
            cluster: None,
        };
        self.record_action(PersonAction::Restores);
        self.trace_line(format!("a person restores {name} from {}", request.snapshot));
        if let Some(cluster) = self.saved.clusters.get_mut(name) {
            set_request(cluster, request);
        }
    }

    /// Removes the requests that are in progress.
    fn give_up_restores(&mut self) {
        let in_progress = |cluster: &Cluster| etcd(cluster).is_some_and(|store| store.rebuild.is_some());
        let found = self.saved.clusters.iter().filter(|(_, cluster)| in_progress(cluster));
        let names: Vec<ClusterRef> = found.map(|(name, _)| name.clone()).collect();
        for name in names {
            let Some(cluster) = self.saved.clusters.get_mut(&name) else { continue };
            if cluster.spec.etcd.restore.take().is_some() {
                self.record_action(PersonAction::GivesUpARestore);
                self.trace_line(format!("a person gives the restore of {name} up"));
            }
        }
    }

    /// Requests the restores again whose data was lost.
    pub(super) fn request_lost_restores(&mut self) {
        let is_lost = |cluster: &Cluster| {
            let (pod, phase) = restored_member(cluster)?;
            let machine = &self.saved.components.get(&pod)?.spec.hypervisor;
            let has_data = self.machines.get(machine).is_some_and(|found| found.disk.members.contains_key(&pod));
            Some(phase > RebuildPhase::Preparing && (!has_data || self.losses.lost.contains(machine)))
        };
        let found = self.saved.clusters.iter().filter(|(_, cluster)| is_lost(cluster).unwrap_or_default());
        for name in found.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            self.request_restore(&name);
        }
    }

    /// What a driver finds that reads the snapshot of a request. Some cannot be used while faults occur.
    pub(super) fn read_snapshot(&mut self) -> Result<RestorableSnapshot, String> {
        if !self.weather.calm && self.restores.random.one_in(5) {
            return Err("it is damaged".to_owned());
        }
        Ok(RestorableSnapshot { kubernetes: "1.34.0".to_owned(), etcd: "3.6.0".to_owned(), revision: 1 })
    }

    /// Makes the data of the one member of a new store, as the agent of its machine does. Data that is there is complete.
    pub(super) fn make_restored_data(&mut self, new: &RestoredMember) -> Result<(), SimulatedRefusal> {
        let refused = |why: &str| SimulatedRefusal(format!("{}: {why}", new.pod));
        let machine = self.machines.get_mut(&new.machine).ok_or_else(|| refused("no machine"))?;
        if machine.disk.members.contains_key(&new.pod) {
            return Ok(());
        }
        if !machine.disk.is_marked(&new.pod) {
            return Err(refused("no data directory"));
        }
        let runs = machine.runtime.sandboxes.iter().any(|sandbox| sandbox.pod == new.pod);
        let store = StoreModel::new(&new.initial, &new.token);
        let id = store.list().keys().next().copied();
        let member = SimulatedMember { id, ..new.member.clone() };
        machine.disk.members.insert(new.pod.clone(), member);
        if runs {
            self.report_violation("data is restored only while its member does not run", new.pod.to_string());
        }
        self.restores.made.insert(new.pod.cluster.clone(), (new.pod.clone(), store));
        self.trace_line(format!("the data of {} is restored", new.pod));
        Ok(())
    }

    /// Lets a member start whose data is of another store than the current one: the first start of a restored member, or an earlier member after the
    /// restored data was lost.
    pub(super) fn choose_store(&mut self, pod: &PodName, before: &SimulatedMember) {
        let cluster = &before.cluster;
        let made = self.restores.made.get(cluster).is_some_and(|(made, _)| made == pod);
        if let Some((_, store)) = made.then(|| self.restores.made.remove(cluster)).flatten() {
            self.check_restored_start(pod);
            if let Some(former) = self.stores.insert(cluster.clone(), store) {
                self.restores.former.insert(cluster.clone(), former);
            }
            self.started.insert(pod.clone());
            self.trace_line(format!("{pod} starts with restored data"));
        } else if self.is_of_former_store(before) && !self.has_data_of_store(cluster) {
            if let Some(former) = self.restores.former.remove(cluster) {
                self.stores.insert(cluster.clone(), former);
            }
            self.trace_line(format!("{pod} continues, because the restored data is gone"));
        }
    }

    fn is_of_former_store(&self, before: &SimulatedMember) -> bool {
        let former = self.restores.former.get(&before.cluster);
        former.zip(before.id).is_some_and(|(former, id)| former.list().contains_key(&id))
    }

    /// Whether a machine that is not lost has data of the current store.
    fn has_data_of_store(&self, cluster: &ClusterId) -> bool {
        let Some(store) = self.stores.get(cluster) else { return false };
        let here = self.machines.iter().filter(|(name, _)| !self.losses.lost.contains(*name));
        let mut members = here.flat_map(|(_, machine)| machine.disk.members.values());
        members.any(|member| member.cluster == *cluster && member.id.is_some_and(|id| store.list().contains_key(&id)))
    }

    /// Whether a pod is a member of a store that the current pass rebuilds from another one.
    pub(super) fn is_earlier_member(&self, pod: &PodName) -> bool {
        let mut clusters = self.pass.loaded.clusters.values();
        let cluster = clusters.find(|cluster| cluster.id() == Some(&pod.cluster));
        let rebuild = cluster.and_then(|cluster| etcd(cluster)?.rebuild.as_ref());
        role_of(pod) == Some(Role::Etcd) && rebuild.is_some_and(|rebuild| rebuild.member != pod.component)
    }

    /// When a restored member starts, the pass has seen neither an earlier member nor an API server run.
    fn check_restored_start(&mut self, pod: &PodName) {
        let seen = self.pass.seen.machines.values().filter_map(|seen| seen.known());
        let running = seen.flat_map(|state| &state.sandboxes).filter(|sandbox| sandbox.ready);
        let uses_store = |of: &PodName| matches!(role_of(of), Some(Role::Etcd | Role::KubeApiserver));
        let mut others = running.map(|sandbox| sandbox.pod.clone()).filter(|other| other != pod);
        let other = others.find(|other| other.cluster == pod.cluster && uses_store(other));
        drop(others);
        if let Some(other) = other {
            let rule = "a restored member starts only while no earlier member and no API server runs";
            self.report_violation(rule, format!("{pod}, {other}"));
        }
    }

    /// What the earlier members report that still run: their own store, without a list, because they are no majority.
    pub(super) fn observe_former_members(
        &self,
        cluster: &ClusterId,
        seen: &mut StoreObservation,
        reached: &BTreeMap<ComponentName, MemberId>,
    ) {
        let (Some(former), Some(store)) = (self.restores.former.get(cluster), self.stores.get(cluster)) else { return };
        let own = |id: &MemberId| former.list().contains_key(id) && !store.list().contains_key(id);
        let reached: BTreeMap<_, _> =
            reached.iter().filter(|(_, id)| own(id)).map(|(name, id)| (name.clone(), *id)).collect();
        let asked: BTreeSet<ComponentName> = reached.keys().cloned().collect();
        seen.members.extend(former.observe(asked, &reached).members);
    }
}

fn set_request(cluster: &mut Cluster, request: RestoreSpec) {
    let sink = SnapshotSinkSpec { directory: Some(SnapshotDirectory { path: "/srv/snapshots".to_owned() }), s3: None };
    let snapshots = SnapshotsSpec { schedule: String::new(), retention: SnapshotRetention::default(), sink };
    cluster.spec.etcd.snapshots.get_or_insert(snapshots);
    cluster.spec.etcd.restore = Some(request);
}

fn etcd(cluster: &Cluster) -> Option<&EtcdStatus> {
    cluster.status.as_ref()?.etcd.as_ref()
}

/// The member that is made from a snapshot, and the phase of that.
pub(super) fn restored_member(cluster: &Cluster) -> Option<(PodName, RebuildPhase)> {
    let rebuild = etcd(cluster)?.rebuild.as_ref()?;
    let pod = PodName { cluster: cluster.id()?.clone(), component: rebuild.member.clone() };
    matches!(rebuild.source, RebuildSource::Snapshot { .. }).then_some((pod, rebuild.phase))
}

/// A member whose data is to be made, from the documents of a pass.
pub(super) struct RestoredMember {
    pub(super) machine: HypervisorName,
    pod: PodName,
    token: String,
    initial: BTreeMap<ComponentName, Vec<String>>,
    member: SimulatedMember,
}

impl RestoredMember {
    pub(super) fn of(documents: &Documents, pod: &PodName) -> Option<Self> {
        let component = documents.components.get(pod)?;
        let store = etcd(documents.clusters.get(&component.spec.cluster)?)?;
        let initial = store.members.get(&pod.component)?.started_with.as_ref()?.initial_cluster.clone();
        let peer = initial.get(&pod.component)?.first()?.strip_prefix("https://")?.parse().ok()?;
        let member = SimulatedMember {
            cluster: pod.cluster.clone(),
            name: pod.component.clone(),
            client: peer,
            peer,
            initial: [(pod.component.clone(), peer)].into(),
            joins: false,
            is_forced: false,
            id: None,
        };
        let token = format!("{}-{}", pod.cluster, store.rebuild.as_ref()?.number);
        Some(Self { machine: component.spec.hypervisor.clone(), pod: pod.clone(), token, initial, member })
    }
}
