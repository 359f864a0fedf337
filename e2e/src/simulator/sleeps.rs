//! Clusters that people put to sleep and wake, and the rules of their sleep (docs/sleep.md).

use std::collections::BTreeMap;

use keelway_api::{
    Cluster,
    jiff::{SignedDuration, Timestamp},
    machine::MachineConfig,
    name::{ClusterId, ClusterRef, HypervisorName, PodName},
    role::Role,
    sleep::SleepPhase,
};
use keelway_machine::action::{Action, PodAction};
use keelway_pki::CertificateFacts;

use super::{
    bug::Bug, person::PersonAction, random::Random, rollout_rules::first_certificate, rules::role_of,
    sleep_bugs::SleepBug, state::SimulationState,
};

pub(super) const STOPPED: &str = "no component starts that the sleep of its cluster stops";
pub(super) const KEPT: &str = "the data of a cluster that sleeps stays";
pub(super) const RENEWED: &str =
    "certificates that expired in the sleep of a cluster are renewed before its components start";
pub(super) const REQUESTED: &str = "in the end, a cluster sleeps or is awake as a person requested last";

/// One of this many runs has clusters that sleep.
const RUNS: u32 = 3;
/// More epochs of such a run: falling asleep and waking up take many passes.
const MORE_EPOCHS: u64 = 1;
/// The clock moves forward by this in a long sleep. It is longer than the shortest lifetime of certificates that `scenario.rs` requests.
const LONG_SLEEP: SignedDuration = SignedDuration::from_hours(3);

/// Who sleeps, with a generator of its own, so that the rest of a run does not depend on it.
pub(super) struct SimulatedSleeps {
    random: Random,
    /// Whether people put clusters to sleep in this run.
    pub(super) happen: bool,
    /// Whether a person requested last that the cluster sleeps.
    requested: BTreeMap<ClusterId, bool>,
    /// By how much the clock moved forward while a cluster slept.
    slept: SignedDuration,
}

impl SimulatedSleeps {
    pub(super) fn new(seed: u64) -> Self {
        let mut random = Random::new(seed.rotate_left(48) ^ 0x51ee);
        let happen = random.one_in(RUNS);
        Self { random, happen, requested: BTreeMap::new(), slept: SignedDuration::ZERO }
    }

    pub(super) fn more_epochs(&self) -> u64 {
        if self.happen { MORE_EPOCHS } else { 0 }
    }
}

/// Returns whether people put clusters to sleep in the run of this seed.
pub(super) fn has_sleeps(seed: u64) -> bool {
    SimulatedSleeps::new(seed).happen
}

impl SimulationState {
    /// Lets people put clusters to sleep and wake them now and then, also in the middle of a step.
    pub(super) fn advance_sleeps(&mut self) {
        if !self.sleeps.happen || self.weather.calm || self.pass.stale || self.manual_edit.is_some() {
            return;
        }
        let living = self.saved.clusters.iter().filter(|(_, cluster)| !cluster.deleted() && cluster.is_initialized());
        let living: Vec<ClusterRef> = living.map(|(name, _)| name.clone()).collect();
        let Some(name) = self.sleeps.random.pick(living) else { return };
        let Some(cluster) = self.saved.clusters.get(&name) else { return };
        let (wants_sleep, is_asleep) = (cluster.spec.asleep, cluster.sleep_phase() == Some(SleepPhase::Asleep));
        if is_asleep && self.sleeps.random.one_in(3) {
            self.sleep_long();
        }
        let seconds = match (wants_sleep, is_asleep) {
            (true, true) => 4,
            (true, false) => 20,
            (false, _) => 6,
        };
        if self.sleeps.random.one_in(seconds) {
            self.request_sleep(&name, !wants_sleep);
        }
    }

    /// Moves the clock forward, once in a run, and if no authority expires by that.
    fn sleep_long(&mut self) {
        let survives = |cluster: &Cluster| {
            i64::try_from(cluster.spec.certificates.authority_ttl.seconds())
                .is_ok_and(|ttl| ttl > LONG_SLEEP.as_secs() * 2)
        };
        if self.sleeps.slept.is_zero() && self.saved.clusters.values().all(|cluster| survives(cluster)) {
            self.sleeps.slept = LONG_SLEEP;
            self.jump(LONG_SLEEP);
            self.trace_line("a cluster sleeps for hours");
        }
    }

    /// Changes the document as `keelway cluster sleep` and `keelway cluster wake` do.
    fn request_sleep(&mut self, name: &ClusterRef, asleep: bool) {
        let Some(cluster) = self.saved.clusters.get_mut(name) else { return };
        cluster.spec.asleep = asleep;
        if let Some(id) = cluster.id() {
            self.sleeps.requested.insert(id.clone(), asleep);
        }
        self.record_action(if asleep { PersonAction::Sleeps } else { PersonAction::Wakes });
        self.trace_line(format!("a person {} {name}", if asleep { "puts to sleep" } else { "wakes" }));
    }

    /// Wakes the clusters for which something is left to do, and half of the others.
    pub(super) fn end_sleeps(&mut self) {
        let is_drained = self.saved.hypervisors.values().any(|machine| machine.spec.drain);
        let has_work = is_drained || self.losses.happen || self.rollouts.happen || self.restores.happen;
        let broken = [self.clusters_that_lost_data(), self.clusters_whose_authority_ended()].concat();
        let asleep = self.saved.clusters.iter().filter(|(_, cluster)| cluster.spec.asleep && !cluster.deleted());
        for name in asleep.map(|(name, _)| name.clone()).collect::<Vec<_>>() {
            if has_work || broken.contains(&name) || self.sleeps.random.one_in(2) {
                self.request_sleep(&name, false);
            }
        }
    }

    /// An older copy of a cluster has its current sleep, because a document of another step would stop its components at once.
    pub(super) fn keep_sleep(&self, name: &ClusterRef, copy: &mut Cluster) {
        let Some(now) = self.saved.clusters.get(name).filter(|now| self.sleeps.happen && now.id() == copy.id()) else {
            return;
        };
        copy.spec.asleep = now.spec.asleep;
        if let Some(status) = copy.status.as_mut() {
            status.sleep = now.status.as_ref().and_then(|status| status.sleep.clone());
        }
    }

    /// The phase of a cluster in the documents of the current pass.
    fn phase_in_pass(&self, id: &ClusterId) -> Option<SleepPhase> {
        let mut clusters = self.pass.kept.clusters.values();
        clusters.find(|cluster| cluster.id() == Some(id) && !cluster.deleted())?.sleep_phase()
    }

    /// Whether a cluster sleeps, falls asleep or wakes up in the documents of the current pass.
    pub(super) fn sleeps_in_pass(&self, id: &ClusterId) -> bool {
        self.phase_in_pass(id).is_some()
    }

    /// Whether a component is stopped in a settled fleet.
    pub(super) fn rests(&self, pod: &PodName) -> bool {
        let mut clusters = self.saved.clusters.values();
        let cluster = clusters.find(|cluster| cluster.id() == Some(&pod.cluster));
        let is_asleep = cluster.is_some_and(|cluster| cluster.sleep_phase() == Some(SleepPhase::Asleep));
        // A component that was leaving when its cluster fell asleep is removed once the cluster is awake.
        let is_stopping = self.saved.components.get(pod).is_some_and(|component| component.is_stopping());
        is_asleep && (is_stopping || role_of(pod) != Some(Role::Ingress))
    }

    /// Checks what a pass starts, before it does.
    pub(super) fn check_starts_in_sleep(&mut self, config: &MachineConfig, actions: &[Action]) {
        if !self.sleeps.happen {
            return;
        }
        for action in actions {
            let Action::Pod(pod, PodAction::StartContainer { .. }) = action else { continue };
            let Some(role) = role_of(pod) else { continue };
            let phase = self.phase_in_pass(&pod.cluster);
            if let Some(phase) = phase.filter(|phase| !may_start(*phase, role)) {
                self.report_violation(STOPPED, format!("{pod} starts, and its cluster is {phase:?}"));
            } else if let Some(path) = self.expired_file(config, pod) {
                self.report_violation(RENEWED, format!("{path} of {pod}"));
            }
        }
    }

    /// A certificate with which a component of a cluster starts that slept, and that had expired when the pass began.
    fn expired_file<'a>(&self, config: &'a MachineConfig, pod: &PodName) -> Option<&'a str> {
        let mut clusters = self.pass.kept.clusters.iter();
        let (name, cluster) = clusters.find(|(_, cluster)| cluster.id() == Some(&pod.cluster))?;
        let has_slept = self.sleeps.requested.contains_key(&pod.cluster);
        if !has_slept
            || cluster.spec.paused
            || cluster.deleted()
            || self.clusters_whose_authority_ended().contains(name)
        {
            return None;
        }
        // The clock may have jumped since.
        let now = self.pass.loaded_at.min(self.now());
        let files = &config.pods.get(pod)?.files;
        let expired = files.iter().find(|file| self.has_expired(&file.content, now))?;
        Some(expired.path.as_str())
    }

    fn has_expired(&self, content: &[u8], now: Timestamp) -> bool {
        let issued = first_certificate(content).filter(|certificate| self.rollouts.issued.contains_key(*certificate));
        let facts = issued.and_then(|pem| CertificateFacts::from_pem(std::str::from_utf8(pem).ok()?).ok());
        facts.is_some_and(|facts| facts.validity.not_after() <= now)
    }

    /// Checks that an action does not remove the data of a member that sleeps.
    pub(super) fn check_data_in_sleep(&mut self, machine: &HypervisorName, action: &Action) {
        let Action::Pod(pod, PodAction::RemoveTree) = action else { return };
        let has_data = self.machines.get(machine).is_some_and(|found| found.disk.members.contains_key(pod));
        let is_here = self.saved.components.get(pod).is_some_and(|component| component.spec.hypervisor == *machine);
        let mut sleeping = self.saved.clusters.values().filter(|cluster| cluster.is_sleeping() && !cluster.deleted());
        let sleeps = sleeping.any(|cluster| cluster.id() == Some(&pod.cluster));
        drop(sleeping);
        if sleeps && has_data && is_here {
            self.report_violation(KEPT, format!("{machine} {pod}"));
        }
    }

    /// Checks that a settled fleet sleeps as people requested.
    pub(super) fn check_sleeps_ended(&mut self) {
        let living = self.saved.clusters.values().filter(|cluster| !cluster.deleted());
        let wrong = living.filter_map(|cluster| {
            let asleep = self.sleeps.requested.get(cluster.id()?)?;
            let wanted = asleep.then_some(SleepPhase::Asleep);
            (cluster.sleep_phase() != wanted)
                .then(|| format!("{} is {:?} instead of {wanted:?}", cluster.reference(), cluster.sleep_phase()))
        });
        if let Some(what) = wrong.collect::<Vec<_>>().into_iter().next() {
            self.report_violation(REQUESTED, what);
        }
    }

    /// The time that the driver gets.
    pub(super) fn driver_now(&self) -> Timestamp {
        if self.bug == Some(Bug::InSleep(SleepBug::LosesTheTime)) { self.now() - self.sleeps.slept } else { self.now() }
    }

    /// The clusters that a person woke last.
    pub(super) fn woken(&self) -> Vec<ClusterRef> {
        let is_woken = |cluster: &Cluster| cluster.id().is_some_and(|id| self.sleeps.requested.get(id) == Some(&false));
        self.saved.clusters.iter().filter(|(_, cluster)| is_woken(cluster)).map(|(name, _)| name.clone()).collect()
    }
}

/// What may start in a phase of the sleep of its cluster (docs/sleep.md).
fn may_start(phase: SleepPhase, role: Role) -> bool {
    match role {
        Role::Ingress => true,
        Role::Etcd => !matches!(phase, SleepPhase::StoppingStore | SleepPhase::Asleep),
        Role::KubeApiserver => {
            matches!(phase, SleepPhase::StoppingControllers | SleepPhase::Answering | SleepPhase::StartingServers)
        }
        Role::KubeControllerManager
        | Role::KubeScheduler
        | Role::ClusterController
        | Role::FleetController
        | Role::Gateway => false,
    }
}
