//! Rollouts that people request: upgrades of Kubernetes, ways back, and rotations of keys.

use std::collections::{BTreeMap, BTreeSet};

use keelway_api::{
    Cluster, Shared, Time,
    duration::Span,
    jiff::Timestamp,
    name::{ClusterId, ClusterRef, PodName},
    release::{MINORS, MinorRelease, Release, find, newest, newest_version},
    rotation::{RotatedKey, RotationRequest},
};

use super::{
    immediate_rotations::RotationHistory,
    person::PersonAction,
    random::Random,
    state::SimulationState,
    stored_secrets::StoredSecrets,
    workers::{SHORT_DEADLINE, SimulatedWorker},
};

/// One of this many runs has rollouts.
const RUNS: u32 = 3;
/// The patch releases with which clusters begin, besides the newest one.
const FIRST: [&str; 4] = ["1.34.4", "1.35.4", "1.36.2", "1.36.3"];
/// More epochs of a run with rollouts, so that a rollout meets faults in each of its phases.
const MORE_EPOCHS: u64 = 2;

/// What people request, and what follows from it, with a generator of its own, so that the rest of a run does not depend on it.
pub(super) struct SimulatedRollouts {
    pub(super) random: Random,
    /// Whether people request rollouts in this run.
    pub(super) happen: bool,
    /// The authority that signed each certificate. Both are the contents of files.
    pub(super) issued: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The release that a person requested last of each cluster.
    pub(super) releases: BTreeMap<ClusterRef, String>,
    /// The keys whose rotation a person has completed.
    pub(super) completed: BTreeSet<(ClusterId, RotatedKey)>,
    /// What rotations did before.
    pub(super) history: RotationHistory,
    /// The minor version of Kubernetes with whose etcd each member ran last.
    pub(super) data_minors: BTreeMap<PodName, u32>,
    /// The Secrets in the store of each cluster.
    pub(super) secrets: BTreeMap<ClusterId, StoredSecrets>,
    /// The workers of each cluster.
    pub(super) workers: BTreeMap<ClusterId, Vec<SimulatedWorker>>,
}

impl SimulatedRollouts {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed.rotate_left(16) ^ 0x0110);
        let happen = random.one_in(RUNS);
        Self {
            random,
            happen,
            issued: BTreeMap::new(),
            releases: BTreeMap::new(),
            completed: BTreeSet::new(),
            history: RotationHistory::default(),
            data_minors: BTreeMap::new(),
            secrets: BTreeMap::new(),
            workers: BTreeMap::new(),
        }
    }

    /// The release with which a person creates a cluster.
    pub(super) fn first_release(&mut self) -> String {
        let first = self.happen.then(|| self.random.pick(FIRST)).flatten();
        first.unwrap_or_else(newest_version).to_owned()
    }

    /// The deadline of rotations of a new cluster, if it is not the default.
    pub(super) fn deadline(&mut self) -> Option<Span> {
        (self.happen && self.random.one_in(2)).then_some(SHORT_DEADLINE)
    }

    pub(super) fn more_epochs(&self) -> u64 {
        if self.happen { MORE_EPOCHS } else { 0 }
    }
}

/// Returns whether people request rollouts in the run of this seed.
pub(super) fn has_rollouts(seed: u64) -> bool {
    SimulatedRollouts::new(seed).happen
}

impl SimulationState {
    /// Lets a person request something, about once in three seconds.
    pub(super) fn maybe_roll_out(&mut self) {
        if self.rollouts.happen && !self.weather.calm && self.rollouts.random.one_in(3) {
            self.roll_out();
        }
    }

    /// Makes one change to a cluster, as a person.
    pub(super) fn roll_out(&mut self) {
        // A pending manual edit is read first.
        if !self.rollouts.happen || self.manual_edit.is_some() {
            return;
        }
        let living = self.saved.clusters.iter().filter(|(_, cluster)| !cluster.deleted() && cluster.id().is_some());
        let living: Vec<ClusterRef> = living.map(|(name, _)| name.clone()).collect();
        let Some(name) = self.rollouts.random.pick(living) else { return };
        match self.rollouts.random.between(0, 14) {
            0 => self.upgrade(&name, PersonAction::UpgradesPatch, |release| Some(patch(release, release.patch + 1))),
            1 => self.upgrade(&name, PersonAction::UpgradesMinor, |release| tested(release.minor() + 1)),
            2 => self.upgrade(&name, PersonAction::SkipsMinors, |release| {
                Some(newest()).filter(|newest| newest.minor() > release.minor() + 1)
            }),
            3 | 4 => self
                .upgrade(&name, PersonAction::GoesBack, |release| Some(patch(release, release.patch.checked_sub(1)?))),
            5 => self.upgrade(&name, PersonAction::Downgrades, |release| tested(release.minor() - 1)),
            6..=9 => self.rotate(&name),
            10 | 11 => self.rotate_now(&name),
            _ => self.complete(&name),
        }
    }

    /// Ends what people do: they correct refused releases, and complete about half of the rotations.
    pub(super) fn end_rollouts(&mut self) {
        for name in self.saved.clusters.keys().cloned().collect::<Vec<_>>() {
            self.correct_release(&name);
            self.let_workers_follow(&name);
            if self.rollouts.random.one_in(2) {
                self.complete(&name);
            }
        }
    }

    /// Documents of another time have the keys and the release of this cluster, because a person who restores others has to recover the cluster
    /// (docs/rotation.md, docs/upgrades.md).
    pub(super) fn keep_rollouts(&self, name: &ClusterRef, copy: &mut Shared<Cluster>) {
        let Some(now) = self.saved.clusters.get(name).filter(|now| self.rollouts.happen && now.id() == copy.id())
        else {
            return;
        };
        copy.spec.rotations = now.spec.rotations.clone();
        copy.spec.version.clone_from(&now.spec.version);
        if let (Some(status), Some(now)) = (copy.status.as_mut(), &now.status) {
            status.rotations.clone_from(&now.rotations);
            status.minted.clone_from(&now.minted);
        }
    }

    /// Requests another release, as `keelway cluster upgrade` does.
    fn upgrade(&mut self, name: &ClusterRef, deed: PersonAction, to: impl Fn(Release) -> Option<Release>) {
        self.correct_release(name);
        let Some(cluster) = self.saved.clusters.get_mut(name) else { return };
        let Some(release) = find(&cluster.spec.version).and_then(to) else { return };
        cluster.spec.version = release.to_string();
        self.rollouts.releases.insert(name.clone(), release.to_string());
        self.record_action(deed);
        self.trace_line(format!("a person requests {release} for {name}"));
    }

    /// Restores the release of a cluster whose components cannot change to the one in its document.
    fn correct_release(&mut self, name: &ClusterRef) {
        let Some(cluster) = self.saved.clusters.get(name).filter(|cluster| !cluster.deleted()) else { return };
        let components = cluster.id().into_iter().flat_map(|id| self.saved.components_of(id));
        let newest = components.filter_map(|(_, component)| find(&component.spec.version)).max();
        let is_refused = find(&cluster.spec.version).zip(newest).filter(|(wanted, runs)| wanted.minor() < runs.minor());
        let Some((_, newest)) = is_refused else { return };
        if let Some(cluster) = self.saved.clusters.get_mut(name) {
            cluster.spec.version = newest.to_string();
        }
        self.rollouts.releases.insert(name.clone(), newest.to_string());
        self.trace_line(format!("a person restores {newest} of {name}"));
    }

    /// Gives a cluster whose workers or agents have to follow a rotation what they need for that: an ingress, and a controller manager that signs
    /// certificates.
    fn let_workers_follow(&mut self, name: &ClusterRef) {
        let Some(cluster) = self.saved.clusters.get_mut(name) else { return };
        if cluster.spec.rotations.request_mut(RotatedKey::KubernetesAuthority).is_some() {
            cluster.spec.ingress.replicas = cluster.spec.ingress.replicas.max(1);
            let replicas = &mut cluster.spec.control_plane.kube_controller_manager.replicas;
            *replicas = replicas.filter(|replicas| *replicas > 0);
        }
    }

    /// Requests the rotation of a key, as `keelway cluster rotate` does.
    fn rotate(&mut self, name: &ClusterRef) {
        let requested_at = Time(Timestamp::from_second(self.now().as_second()).unwrap());
        let complete = self.rollouts.random.one_in(3);
        let Some(key) = self.rollouts.random.pick(RotatedKey::ALL) else { return };
        let Some(cluster) = self.saved.clusters.get_mut(name) else { return };
        if cluster.running_rotation(key).is_some() || cluster.pending_rotation(key).is_some() {
            return;
        }
        *cluster.spec.rotations.request_mut(key) = Some(RotationRequest { requested_at, complete, immediate: false });
        if let Some(id) = cluster.id().cloned() {
            self.rollouts.history.begin_careful(&id, key);
        }
        self.record_action(PersonAction::Rotates(key));
        self.trace_line(format!("a person rotates the {key} of {name}, complete: {complete}"));
        self.note_completed(name, key, complete);
    }

    /// Completes the rotations of a cluster, as `keelway cluster rotate --complete` does.
    fn complete(&mut self, name: &ClusterRef) {
        for key in RotatedKey::ALL {
            let Some(cluster) = self.saved.clusters.get_mut(name) else { return };
            let runs = cluster.running_rotation(key).is_some();
            let Some(request) =
                cluster.spec.rotations.request_mut(key).as_mut().filter(|found| runs && !found.complete)
            else {
                continue;
            };
            request.complete = true;
            self.record_action(PersonAction::Completes);
            self.trace_line(format!("a person completes the rotation of the {key} of {name}"));
            self.note_completed(name, key, true);
        }
    }

    pub(super) fn note_completed(&mut self, name: &ClusterRef, key: RotatedKey, complete: bool) {
        let Some(id) = self.saved.clusters.get(name).and_then(|cluster| cluster.id()).cloned() else { return };
        if complete {
            self.rollouts.completed.insert((id, key));
        } else {
            self.rollouts.completed.remove(&(id, key));
        }
    }
}

fn patch(release: Release, patch: u32) -> Release {
    Release { patch, ..release }
}

fn tested(minor: u32) -> Option<Release> {
    MINORS.iter().find(|row| row.minor == minor).map(MinorRelease::newest_tested)
}
