//! The reconciler: observes, plans, starts what may be done, and waits for the next event.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use keelway_api::{
    hypervisor::Applied,
    machine::{MachineState, Start, event::reason},
    name::PodName,
};
use keelway_base::error_chain::chain_text;
use keelway_machine::look_interval;
use keelway_machine::{
    action::{Action, PodAction},
    converge::{self, converge_to, waits_for_connections},
    report::{ApplyReport, Effect},
    supervise::{LivenessQuery, MonotonicTime, PostponedAction, Supervisor},
};
use keelway_machine_io::{
    local::LocalMachine,
    observe::ObserveError,
    unused_images::{self, ImageUse},
};
use tokio::{
    sync::{Notify, watch},
    task::{JoinError, JoinSet},
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{
    cleanup::{Cleanup, CleanupResult, ImageLimits, clean_up},
    config_store::{ConfigStore, StoredConfig},
    ended_containers::{self, Ending},
    journal::{EventJournal, EventSubject},
    prefetch::{Prefetch, PrefetchResult, prefetch},
    probe,
    reconciler_channel::{MachineObservation, ReconcilerChannel},
    state_changes::to_publish,
};

/// How long the reconciler waits without an event before it looks again. Changes of files by hand cause no event.
const RELIST: Duration = Duration::from_secs(60);
/// How often it looks at connections that have to end first. haproxy does not report their end.
const CONNECTIONS: Duration = Duration::from_secs(1);
/// How often it checks whether a full disk has room again. This causes no event either.
const ROOM: Duration = Duration::from_secs(10);
/// The delay before a retry after a failed look, or after a failed write of the machine's records.
const RETRY: Duration = Duration::from_secs(2);

/// A task of the reconciler panicked or was cancelled, which is a bug. The service manager restarts the agent.
#[derive(Debug, thiserror::Error)]
#[error("a task of the agent failed")]
pub struct AgentTaskError(#[source] JoinError);

/// The result of a task that has ended.
enum FinishedTask {
    Looked(Box<Result<LookResult, ObserveError>>),
    Pod(PodName, ApplyReport),
    Machine(ApplyReport),
    Images(CleanupResult),
    Prefetch(PrefetchResult),
    Answer(ProbeResult),
}

/// The result of a probe.
struct ProbeResult {
    question: LivenessQuery,
    health: Result<(), String>,
    /// The result of [`probe::has_no_space`].
    no_space: Option<bool>,
}

/// The result of a look.
struct LookResult {
    state: MachineState,
    endings: Vec<Ending>,
    /// `None` if this look did not query images, or if the runtime did not respond.
    images: Option<ImageUse>,
}

pub(super) struct AgentReconciler {
    machine: Arc<LocalMachine>,
    config_store: Arc<ConfigStore>,
    channel: Arc<ReconcilerChannel>,
    journal: Arc<EventJournal>,
    /// Ids of ended containers and sandboxes that were reported.
    known_endings: BTreeSet<String>,
    /// Postponed actions that were reported.
    known_postponed: BTreeSet<(EventSubject, String)>,
    supervisor: Supervisor,
    cleanup: Cleanup,
    prefetch: Prefetch,
    clients: Arc<probe::ProbeClients>,
    started: Instant,
    tasks: JoinSet<FinishedTask>,
    /// Cancelled when another config is in effect: no further action of the last plan starts.
    plan: CancellationToken,
    /// Pods with actions in progress.
    busy: BTreeSet<PodName>,
    /// Whether an action on the machine's own records is in progress.
    machine_busy: bool,
    /// The look in progress, if there is one.
    look: Option<PendingLook>,
    /// The config that the reconciler works with.
    config: Option<Arc<StoredConfig>>,
    /// Whether there was an event since the last look began.
    dirty: bool,
    next_look: Instant,
    /// The earliest time of the next look. If there are many events, one look observes several.
    rest: Instant,
    failures: BTreeMap<PodName, String>,
    machine_failure: Option<String>,
    sight: MachineVisibility,
    last: Option<MachineState>,
    effects: Arc<AtomicU64>,
    asked: watch::Receiver<u64>,
}

/// The visibility of the machine in the last look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MachineVisibility {
    Clear,
    /// The disk has no room for what the agent writes.
    FullDisk,
    /// The machine could not be observed.
    None,
}

/// A look in progress, with what it may have missed.
struct PendingLook {
    began: Instant,
    asked: u64,
    /// The config in effect when the look began.
    config: Option<Applied>,
    /// Pods with actions in progress when the look began or since then.
    stale: BTreeSet<PodName>,
    machine_stale: bool,
}

impl AgentReconciler {
    pub(super) fn new(
        machine: Arc<LocalMachine>,
        (config_store, channel, journal): (Arc<ConfigStore>, Arc<ReconcilerChannel>, Arc<EventJournal>),
        images: ImageLimits,
    ) -> Self {
        let asked = channel.look_requests();
        let config = config_store.current();
        let now = Instant::now();
        Self {
            machine,
            config_store,
            channel,
            journal,
            known_endings: BTreeSet::new(),
            known_postponed: BTreeSet::new(),
            supervisor: Supervisor::default(),
            cleanup: Cleanup::new(images),
            prefetch: Prefetch::default(),
            clients: Arc::default(),
            started: now,
            tasks: JoinSet::new(),
            plan: CancellationToken::new(),
            busy: BTreeSet::new(),
            machine_busy: false,
            look: None,
            config,
            dirty: true,
            next_look: now,
            rest: now,
            failures: BTreeMap::new(),
            machine_failure: None,
            sight: MachineVisibility::Clear,
            last: None,
            effects: Arc::default(),
            asked,
        }
    }

    pub(super) async fn run(mut self, changed: &Notify, stop: &CancellationToken) -> Result<(), AgentTaskError> {
        let mut config = self.config_store.watch();
        let mut asked = self.channel.look_requests();
        if let Some(lost) = self.config_store.lost_config() {
            self.note_machine((true, reason::FAILED), &lost.failure());
        }
        loop {
            self.begin();
            let wake = self.wake();
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                Some(done) = self.tasks.join_next() => self.take(done.map_err(AgentTaskError)?),
                Ok(()) = config.changed() => self.another_config(),
                Ok(()) = asked.changed() => self.dirty = true,
                () = changed.notified() => self.dirty = true,
                () = sleep_until(wake) => {}
            }
        }
    }

    fn now(&self) -> MonotonicTime {
        self.started.elapsed()
    }

    /// Returns when something is due without an event.
    fn wake(&self) -> Instant {
        let question = self.supervisor.next_query_at().map(|moment| self.started + moment);
        // While a look is in progress, its end wakes the reconciler.
        let next = if self.dirty { self.rest } else { self.next_look.max(self.rest) };
        let look = self.look.is_none().then_some(next);
        question.into_iter().chain(look).min().unwrap_or(self.next_look + RELIST)
    }

    /// Handles a new config. If the last look is current, starts at once what it allows. The next look plans the rest.
    fn another_config(&mut self) {
        let is_seen = !self.dirty && self.look.is_none();
        if self.config_store.current().is_some() {
            self.journal.begin();
        }
        self.plan.cancel();
        self.plan = CancellationToken::new();
        self.supervisor.reset_backoff();
        self.failures.clear();
        self.machine_failure = None;
        self.dirty = true;
        let before = std::mem::replace(&mut self.config, self.config_store.current());
        let content = |of: Option<&StoredConfig>, pod: &PodName| Some(of?.digests.get(pod)?.content.clone());
        let (was, is) = (before.as_deref(), self.config.as_deref());
        self.cleanup.another_config(is);
        self.prefetch.another_config();
        self.clients.retain(|pod| content(is, pod).is_some());
        self.clients.read_again(|pod| content(was, pod) != content(is, pod));
        if let Some(state) = self.channel.last().filter(|_| is_seen) {
            self.start_early(before.as_deref(), &state);
        }
    }

    /// Starts the actions for new and changed pods whose start does not depend on their data. The data of other pods is observed first.
    fn start_early(&mut self, before: Option<&StoredConfig>, state: &MachineState) {
        let Some(kept) = self.config.clone().filter(|_| state.owner.is_some() && !self.machine_busy) else { return };
        let wanted = kept.wanted();
        if converge::check((wanted.config, wanted.fence), state).is_err() {
            return;
        }
        let is_new = |name: &PodName| before.is_none_or(|before| before.digests.get(name) != kept.digests.get(name));
        let pods = kept.config.pods.iter().filter(|(name, pod)| pod.start == Start::Always && is_new(name));
        let actions: Vec<Action> = pods.flat_map(|(name, _)| converge::converge_pod(&wanted, name, state)).collect();
        let busy = self.busy.clone();
        let round = self.supervisor.round(self.now(), (&kept.config, state), &actions, &busy);
        for (pod, steps) in round.pods {
            self.begin_pod(pod, steps);
        }
    }

    /// Starts what is due: probes, and a look.
    fn begin(&mut self) {
        for question in self.supervisor.questions(self.now()) {
            let (machine, clients) = (Arc::clone(&self.machine), Arc::clone(&self.clients));
            self.tasks.spawn(async move {
                let health = probe::ask(&machine, &clients, &question).await;
                let no_space = match health {
                    Ok(()) => probe::has_no_space(&machine, &clients, &question).await,
                    Err(_) => None,
                };
                FinishedTask::Answer(ProbeResult { question, health, no_space })
            });
        }
        let now = Instant::now();
        if self.look.is_none() && now >= self.rest && (self.dirty || now >= self.next_look) {
            self.dirty = false;
            self.next_look = now + RELIST;
            self.look = Some(PendingLook {
                began: now,
                asked: *self.asked.borrow_and_update(),
                config: self.config_store.current().map(|kept| kept.fence.clone()),
                stale: self.busy.clone(),
                machine_stale: self.machine_busy,
            });
            let (machine, over) = (Arc::clone(&self.machine), self.known_endings.clone());
            let with_images = self.cleanup.has_candidates(&machine, self.config_store.current().as_deref());
            self.tasks.spawn(async move {
                FinishedTask::Looked(Box::new(observe_machine(&machine, &over, with_images).await))
            });
        }
    }

    fn take(&mut self, done: FinishedTask) {
        match done {
            FinishedTask::Looked(seen) => self.handle_look(*seen),
            FinishedTask::Pod(pod, report) => {
                self.busy.remove(&pod);
                self.pod_done(pod, &report);
                self.dirty = true;
            }
            FinishedTask::Machine(report) => {
                self.machine_busy = false;
                self.machine_failure = failure(&report);
                match self.machine_failure {
                    None => self.dirty = true,
                    // A failed write of a record is retried after a delay.
                    Some(_) => self.next_look = Instant::now() + RETRY,
                }
            }
            FinishedTask::Images(cleaned) => {
                let events = self.cleanup.done(&cleaned);
                self.note_images(events, reason::IMAGE_REMOVED);
            }
            FinishedTask::Prefetch(result) => {
                let events = self.prefetch.done(self.now(), result);
                self.note_images(events, reason::PULLED);
            }
            FinishedTask::Answer(answer) => self.handle_probe_result(answer),
        }
    }

    fn handle_probe_result(
        &mut self,
        ProbeResult { question: LivenessQuery { container, pod, .. }, health, no_space }: ProbeResult,
    ) {
        let was_healthy = self.supervisor.is_healthy(&container);
        self.dirty |= self.supervisor.record_answer(self.started.elapsed(), &container, health);
        if self.supervisor.is_healthy(&container) != was_healthy {
            self.publish_healthy();
        }
        if let Some(no_space) = no_space {
            self.channel.publish(|status| {
                let is_news = if no_space { status.no_space.insert(pod) } else { status.no_space.remove(&pod) };
                status.revision += u64::from(is_news);
            });
        }
        if let Some((pod, name, why)) = self.supervisor.failing(&container) {
            let message = format!("container {name} failed its liveness check: {why}");
            self.journal.note(EventSubject::pod(pod, name), (true, reason::UNHEALTHY), message);
        }
    }

    /// Reports what was done with each image: whether it failed, and a message. `reason` is that of success.
    fn note_images(&mut self, events: Vec<(bool, String)>, reason: &str) {
        for (failed, message) in events {
            if failed {
                tracing::warn!("{message}");
                self.note_machine((true, reason::FAILED), &message);
            } else {
                tracing::info!("{message}");
                self.note_machine((false, reason), &message);
            }
        }
        self.dirty = true;
    }

    fn publish_healthy(&self) {
        let healthy = self.supervisor.healthy();
        self.channel.publish(|status| {
            status.revision += u64::from(status.healthy != healthy);
            status.healthy = healthy;
        });
    }

    fn pod_done(&mut self, pod: PodName, report: &ApplyReport) {
        let now = self.now();
        let steps: Vec<PodAction> = report
            .done
            .iter()
            .filter_map(|action| if let Action::Pod(_, step) = action { Some(step.clone()) } else { None })
            .collect();
        self.supervisor.done(now, &pod, &steps);
        match failure(report) {
            Some(why) => {
                self.supervisor.failed(now, &pod);
                self.failures.insert(pod, why);
            }
            None => drop(self.failures.remove(&pod)),
        }
    }

    fn handle_look(&mut self, seen: Result<LookResult, ObserveError>) {
        let Some(look) = self.look.take() else { return };
        self.rest = Instant::now() + look_interval::after(look.began.elapsed());
        match seen {
            Ok(LookResult { state, endings, images }) => {
                self.known_endings = ended_containers::ids(&state);
                for ending in endings {
                    ending.note(&self.journal);
                }
                self.sees(if state.disk_pressure { MachineVisibility::FullDisk } else { MachineVisibility::Clear });
                let state = Arc::new(state);
                self.channel.set_observation(Some(MachineObservation {
                    state: Arc::clone(&state),
                    config: look.config.clone(),
                }));
                self.act(&look, &state, images.as_ref());
                self.publish_healthy();
                self.seen(MachineState::clone(&state));
            }
            Err(error) => {
                let why = chain_text(&error);
                let is_news = self.sees(MachineVisibility::None);
                if is_news {
                    tracing::warn!(why, "cannot observe the machine");
                    self.note_machine((true, reason::RUNTIME_NOT_ANSWERING), "cannot observe the machine");
                }
                self.next_look = Instant::now() + RETRY;
                self.channel.set_observation(None);
                self.channel.publish(|status| {
                    status.revision += u64::from(is_news);
                    status.answered = look.asked;
                    status.failures = vec![why];
                });
            }
        }
    }

    /// Records the visibility, and returns whether it changed. If the machine is in a better state than before, failed actions may be retried at
    /// once.
    fn sees(&mut self, sight: MachineVisibility) -> bool {
        let before = std::mem::replace(&mut self.sight, sight);
        if sight == MachineVisibility::FullDisk {
            self.next_look = self.next_look.min(Instant::now() + ROOM);
        }
        match (before, sight) {
            (before, sight) if before == sight => return false,
            (MachineVisibility::None | MachineVisibility::FullDisk, MachineVisibility::Clear) => {
                tracing::info!("the machine can be observed, and its disk has room");
                self.note_machine((false, reason::RECOVERED), "the machine can be observed, and its disk has room");
                self.supervisor.reset_backoff();
            }
            (_, MachineVisibility::FullDisk) => {
                tracing::warn!("the disk is full");
                self.note_machine((true, reason::DISK_PRESSURE), "the disk is full");
            }
            (_, MachineVisibility::None | MachineVisibility::Clear) => {}
        }
        true
    }

    /// Reports each postponed action once, until it is no longer postponed.
    fn note_held(&mut self, held: &[PostponedAction]) {
        let now: BTreeSet<_> =
            held.iter().map(|held| (EventSubject::pod(&held.pod, held.container()), held.reason())).collect();
        for (about, why) in now.difference(&self.known_postponed) {
            self.journal.note(about.clone(), (true, reason::BACK_OFF), why.clone());
        }
        self.known_postponed = now;
    }

    fn note_machine(&self, kind: (bool, &str), message: &str) {
        self.journal.note(EventSubject::default(), kind, message.to_owned());
    }

    /// Publishes a new revision if the state has changes that watchers need.
    fn seen(&mut self, state: MachineState) {
        let state = to_publish(state, self.last.as_ref());
        if self.last.as_ref() != Some(&state) {
            self.channel.publish(|status| status.revision += 1);
            self.last = Some(state);
        }
    }

    /// Plans on the observed state, and starts what may be done.
    fn act(&mut self, look: &PendingLook, state: &MachineState, images: Option<&ImageUse>) {
        let Some(kept) = self.config_store.current() else {
            return self.act_without_config(look, state);
        };
        let actions = match converge_to(&kept.wanted(), state) {
            Ok(actions) => actions,
            Err(refusal) => {
                let why = refusal.to_string();
                return self.channel.publish(|status| {
                    status.answered = look.asked;
                    status.failures = vec![why];
                    status.postponed.clear();
                });
            }
        };
        if waits_for_connections(&kept.config, state) {
            self.next_look = self.next_look.min(Instant::now() + CONNECTIONS);
        }
        if look.machine_stale || self.machine_busy {
            return;
        }
        let first: Vec<Action> =
            actions.iter().filter(|action| matches!(action, Action::WriteOwner(_))).cloned().collect();
        if !first.is_empty() {
            if self.machine_failure.is_some() {
                self.publish_result(look, Vec::new());
            }
            return self.begin_machine(&kept, first);
        }
        self.begin_prefetch(&kept, state);
        if let Some(held) = self.begin_round(look, (&kept, state), &actions) {
            let last: Vec<Action> = actions.into_iter().filter(|action| action.pod().is_none()).collect();
            // If actions of pods failed, those come first.
            if !last.is_empty() && self.failures.is_empty() {
                if self.machine_failure.is_some() {
                    self.publish_result(look, held);
                }
                return self.begin_machine(&kept, last);
            }
            self.publish_result(look, held);
            if let Some(images) = images.filter(|_| last.is_empty() && !self.prefetch.is_busy()) {
                self.clean_up(&kept, images);
            }
        }
    }

    /// Starts to fetch images that are needed later. What runs goes on meanwhile.
    fn begin_prefetch(&mut self, kept: &StoredConfig, state: &MachineState) {
        let images = self.prefetch.due(self.now(), &kept.config, state);
        if let Some(next) = self.prefetch.next() {
            self.next_look = self.next_look.min(self.started + next);
        }
        if !images.is_empty() {
            let machine = Arc::clone(&self.machine);
            self.tasks.spawn(async move { FinishedTask::Prefetch(prefetch(&machine, images).await) });
        }
    }

    /// Starts the removal of unused images. No pod has actions in progress, so no image is being fetched.
    fn clean_up(&mut self, kept: &Arc<StoredConfig>, images: &ImageUse) {
        let verdict = self.cleanup.decide(self.now(), &self.machine, kept, images);
        if let Some(next) = verdict.next {
            self.next_look = self.next_look.min(self.started + next);
        }
        if verdict.remove.is_empty() && verdict.forget.is_empty() {
            return;
        }
        let (machine, config_store, kept) =
            (Arc::clone(&self.machine), Arc::clone(&self.config_store), Arc::clone(kept));
        self.tasks.spawn(async move { FinishedTask::Images(clean_up(&machine, &config_store, &kept, verdict).await) });
    }

    /// The config cannot be read. What has ended of it is restarted, with back-off. All else waits for another config.
    fn act_without_config(&mut self, look: &PendingLook, state: &MachineState) {
        let lost = self.config_store.lost_config();
        let Some(known) = lost.as_deref().and_then(|lost| lost.known.as_ref()) else {
            return self.publish_result(look, Vec::new());
        };
        // If another installation adopted the machine, or a kubelet uses it, nothing is restarted.
        let actions = converge::revive(&known.wanted(), state).unwrap_or_default();
        if let Some(held) = self.begin_round(look, (known, state), &actions) {
            self.publish_result(look, held);
        }
    }

    /// Starts the actions for pods that may run now. If there are none and nothing is unseen, returns what is postponed.
    fn begin_round(
        &mut self,
        look: &PendingLook,
        (kept, state): (&StoredConfig, &MachineState),
        actions: &[Action],
    ) -> Option<Vec<String>> {
        // The observation of these pods is older than their last actions.
        let unseen: BTreeSet<PodName> = look.stale.union(&self.busy).cloned().collect();
        let round = self.supervisor.round(self.now(), (&kept.config, state), actions, &unseen);
        if let Some(wake) = round.wake {
            self.next_look = self.next_look.min(self.started + wake);
        }
        let nothing_begins = round.pods.is_empty();
        for (pod, steps) in round.pods {
            self.begin_pod(pod, steps);
        }
        self.note_held(&round.postponed);
        (nothing_begins && unseen.is_empty()).then(|| round.postponed.iter().map(ToString::to_string).collect())
    }

    /// Publishes that everything that can be done now is done.
    fn publish_result(&self, look: &PendingLook, held: Vec<String>) {
        let of_machine = self.machine_failure.iter().chain(self.prefetch.failures());
        let failures: Vec<String> = self.failures.values().chain(of_machine).cloned().collect();
        let effects = self.effects.load(Ordering::Relaxed);
        self.channel.publish(|status| {
            if status.failures != failures || status.postponed.len() != held.len() {
                status.revision += 1;
            }
            status.answered = look.asked;
            status.failures = failures;
            status.effects = effects;
            status.postponed = held;
        });
    }

    fn begin_pod(&mut self, pod: PodName, steps: Vec<PodAction>) {
        self.busy.insert(pod.clone());
        let actions = steps.into_iter().map(|step| Action::Pod(pod.clone(), step)).collect();
        let (machine, stop, tell) = (Arc::clone(&self.machine), self.plan.clone(), self.effect_reporter());
        self.tasks.spawn(async move {
            let report = machine.execute(actions, &stop, &tell).await;
            FinishedTask::Pod(pod, report)
        });
    }

    fn begin_machine(&mut self, kept: &Arc<StoredConfig>, actions: Vec<Action>) {
        self.machine_busy = true;
        let (machine, config_store, kept) =
            (Arc::clone(&self.machine), Arc::clone(&self.config_store), Arc::clone(kept));
        let journal = Arc::clone(&self.journal);
        let (stop, tell) = (self.plan.clone(), self.effect_reporter());
        self.tasks.spawn(async move {
            let leaves = actions.contains(&Action::Leave);
            let report = if leaves {
                journal.end().await;
                let report = config_store.leave(&kept, actions).await;
                if !report.is_complete() {
                    journal.begin();
                }
                report.done.iter().for_each(|action| tell(Effect::Done(action)));
                report
            } else {
                machine.execute(actions, &stop, &tell).await
            };
            FinishedTask::Machine(report)
        });
    }

    fn effect_reporter(&self) -> impl Fn(Effect<'_>) + Send + Sync + use<> {
        let (channel, effects) = (Arc::clone(&self.channel), Arc::clone(&self.effects));
        let journal = Arc::clone(&self.journal);
        move |effect| match effect {
            Effect::Begins(action) => {
                tracing::debug!(pod = pod_of(action), %action, "begins");
                channel.begins(action.to_string());
            }
            Effect::Done(action) => {
                tracing::info!(pod = pod_of(action), %action, "done");
                note_effect(&journal, action);
                effects.fetch_add(1, Ordering::Relaxed);
            }
            Effect::Failed(action, why) => {
                tracing::warn!(pod = pod_of(action), %action, why, "failed");
                let about = EventSubject { pod: action.pod().cloned(), container: String::new() };
                journal.note(about, (true, reason::FAILED), format!("{action}: {why}"));
            }
        }
    }
}

/// Observes the machine, and the reasons for endings that are not in `over`.
async fn observe_machine(
    machine: &LocalMachine,
    over: &BTreeSet<String>,
    with_images: bool,
) -> Result<LookResult, ObserveError> {
    let state = machine.observe().await?;
    let endings = ended_containers::of(machine, &state, over).await;
    let mut images = None;
    if with_images {
        match unused_images::observe(machine.runtime()).await {
            Ok(seen) => images = Some(seen),
            Err(error) => {
                tracing::warn!(why = chain_text(&error), "cannot list the images in use; no image is removed");
            }
        }
    }
    Ok(LookResult { state, endings, images })
}

fn note_effect(journal: &EventJournal, action: &Action) {
    if let Action::Pod(pod, PodAction::StartContainer { name, .. }) = action {
        journal.note(EventSubject::pod(pod, name), (false, reason::STARTED), format!("container {name} was started"));
    } else if let Action::Pod(pod, PodAction::StopContainer { name, .. }) = action {
        journal.note(EventSubject::pod(pod, name), (false, reason::KILLING), format!("container {name} was stopped"));
    }
}

fn pod_of(action: &Action) -> String {
    action.pod().map(ToString::to_string).unwrap_or_default()
}

fn failure(report: &ApplyReport) -> Option<String> {
    report.failed.first().map(|failure| format!("{}: {}", failure.action, failure.error))
}
