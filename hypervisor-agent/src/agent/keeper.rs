//! The one who decides: looks, plans, begins what may be done, and waits for the next thing to happen.

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
use tokio::{
    sync::{Notify, watch},
    task::{JoinError, JoinSet},
    time::{Instant, sleep_until},
};
use tokio_util::sync::CancellationToken;

use super::{
    board::{Board, Found},
    book::{Book, Kept},
    cleanup::{Cleaned, Cleanup, ImageLimits, clean_up},
    endings::{self, Ending},
    journal::{About, Journal},
    news::news,
    probe,
};
use crate::{
    LocalMachine,
    action::{Action, PodAction},
    converge::{self, converge_to, waits_for_connections},
    observe::ObserveError,
    report::{ApplyReport, Effect, chain_text},
    rest,
    supervise::{Held, Moment, Question, Supervisor},
    unused::{self, ImageUse},
};

/// How long nothing may happen until the keeper looks all the same: files are changed by hand, and nobody tells of it.
const RELIST: Duration = Duration::from_secs(60);
/// How often it looks at connections that are waited for: haproxy tells nobody of their end.
const CONNECTIONS: Duration = Duration::from_secs(1);
/// How often it looks whether a disk has room again, of which nobody tells either.
const ROOM: Duration = Duration::from_secs(10);
/// How soon it looks again where it could not, or where a record of the machine's own could not be written.
const RETRY: Duration = Duration::from_secs(2);

/// A task of the keeper's ended in a way that is a mistake of this program. Whoever started it starts it again.
#[derive(Debug, thiserror::Error)]
#[error("a task of the agent broke off")]
pub struct KeeperError(#[source] JoinError);

/// Something that was begun has ended.
enum Done {
    Looked(Box<Result<Looked, ObserveError>>),
    Pod(PodName, ApplyReport),
    Machine(ApplyReport),
    Images(Cleaned),
    Answer(Answer),
}

/// What a container said.
struct Answer {
    question: Question,
    health: Result<(), String>,
    /// [`probe::has_no_space`].
    no_space: Option<bool>,
}

/// What a look has found.
struct Looked {
    state: MachineState,
    endings: Vec<Ending>,
    /// `None`: nobody asked, or the runtime gave no answer.
    images: Option<ImageUse>,
}

pub(super) struct Keeper {
    machine: Arc<LocalMachine>,
    book: Arc<Book>,
    board: Arc<Board>,
    journal: Arc<Journal>,
    /// What is over and was told of.
    over: BTreeSet<String>,
    /// What is put off and was told of.
    held: BTreeSet<(About, String)>,
    supervisor: Supervisor,
    cleanup: Cleanup,
    clients: Arc<probe::Clients>,
    started: Instant,
    tasks: JoinSet<Done>,
    /// Cancelled where another config is in effect: nothing more of the plan for the last one is begun.
    plan: CancellationToken,
    /// Pods that are worked on.
    busy: BTreeSet<PodName>,
    /// Whether the machine's own records are worked on.
    machine_busy: bool,
    /// The look that is being taken, if one is.
    look: Option<Look>,
    /// What is in effect, as far as this has heard.
    config: Option<Arc<Kept>>,
    /// Whether something happened since the last look began.
    dirty: bool,
    next_look: Instant,
    /// Where much happens, no look begins before this: what changes meanwhile is seen together.
    rest: Instant,
    failures: BTreeMap<PodName, String>,
    machine_failure: Option<String>,
    sight: Sight,
    last: Option<MachineState>,
    effects: Arc<AtomicU64>,
    asked: watch::Receiver<u64>,
}

/// What the last look has found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sight {
    Clear,
    /// There is no room for what is written.
    FullDisk,
    /// The machine could not be seen.
    None,
}

/// A look: what it cannot have seen.
struct Look {
    began: Instant,
    asked: u64,
    /// In effect when it began.
    config: Option<Applied>,
    /// What was worked on when it began or since then.
    stale: BTreeSet<PodName>,
    machine_stale: bool,
}

impl Keeper {
    pub(super) fn new(
        machine: Arc<LocalMachine>,
        (book, board, journal): (Arc<Book>, Arc<Board>, Arc<Journal>),
        images: ImageLimits,
    ) -> Self {
        let asked = board.asked();
        let config = book.current();
        let now = Instant::now();
        Self {
            machine,
            book,
            board,
            journal,
            over: BTreeSet::new(),
            held: BTreeSet::new(),
            supervisor: Supervisor::default(),
            cleanup: Cleanup::new(images),
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
            sight: Sight::Clear,
            last: None,
            effects: Arc::default(),
            asked,
        }
    }

    pub(super) async fn run(mut self, changed: &Notify, stop: &CancellationToken) -> Result<(), KeeperError> {
        let mut config = self.book.watch();
        let mut asked = self.board.asked();
        if let Some(lost) = self.book.lost() {
            self.note_machine((true, reason::FAILED), &lost.failure());
        }
        loop {
            self.begin();
            let wake = self.wake();
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                Some(done) = self.tasks.join_next() => self.take(done.map_err(KeeperError)?),
                Ok(()) = config.changed() => self.another_config(),
                Ok(()) = asked.changed() => self.dirty = true,
                () = changed.notified() => self.dirty = true,
                () = sleep_until(wake) => {}
            }
        }
    }

    fn now(&self) -> Moment {
        self.started.elapsed()
    }

    /// When something is due even if nothing happens.
    fn wake(&self) -> Instant {
        let question = self.supervisor.next_question().map(|moment| self.started + moment);
        // While a look is being taken, its end is what is waited for.
        let next = if self.dirty { self.rest } else { self.next_look.max(self.rest) };
        let look = self.look.is_none().then_some(next);
        question.into_iter().chain(look).min().unwrap_or(self.next_look + RELIST)
    }

    /// What does not ask for more than was seen last is begun at once, and the look that follows sees the rest.
    fn another_config(&mut self) {
        let is_seen = !self.dirty && self.look.is_none();
        if self.book.current().is_some() {
            self.journal.begin();
        }
        self.plan.cancel();
        self.plan = CancellationToken::new();
        self.supervisor.forgive();
        self.failures.clear();
        self.machine_failure = None;
        self.dirty = true;
        let before = std::mem::replace(&mut self.config, self.book.current());
        let content = |of: Option<&Kept>, pod: &PodName| Some(of?.digests.get(pod)?.content.clone());
        let (was, is) = (before.as_deref(), self.config.as_deref());
        self.cleanup.another_config(is);
        self.clients.retain(|pod| content(is, pod).is_some());
        self.clients.read_again(|pod| content(was, pod) != content(is, pod));
        if let Some(state) = self.board.last().filter(|_| is_seen) {
            self.act_early(before.as_deref(), &state);
        }
    }

    /// Begins what a config asks for anew of pods that may be started whatever their data is: that of others is looked at first.
    fn act_early(&mut self, before: Option<&Kept>, state: &MachineState) {
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

    /// Begins what is due: questions, and a look.
    fn begin(&mut self) {
        for question in self.supervisor.questions(self.now()) {
            let (machine, clients) = (Arc::clone(&self.machine), Arc::clone(&self.clients));
            self.tasks.spawn(async move {
                let health = probe::ask(&machine, &clients, &question).await;
                let no_space = match health {
                    Ok(()) => probe::has_no_space(&machine, &clients, &question).await,
                    Err(_) => None,
                };
                Done::Answer(Answer { question, health, no_space })
            });
        }
        let now = Instant::now();
        if self.look.is_none() && now >= self.rest && (self.dirty || now >= self.next_look) {
            self.dirty = false;
            self.next_look = now + RELIST;
            self.look = Some(Look {
                began: now,
                asked: *self.asked.borrow_and_update(),
                config: self.book.current().map(|kept| kept.fence.clone()),
                stale: self.busy.clone(),
                machine_stale: self.machine_busy,
            });
            let (machine, over) = (Arc::clone(&self.machine), self.over.clone());
            let with_images = self.cleanup.has_candidates(&machine, self.book.current().as_deref());
            self.tasks.spawn(async move { Done::Looked(Box::new(look(&machine, &over, with_images).await)) });
        }
    }

    fn take(&mut self, done: Done) {
        match done {
            Done::Looked(seen) => self.looked(*seen),
            Done::Pod(pod, report) => {
                self.busy.remove(&pod);
                self.pod_done(pod, &report);
                self.dirty = true;
            }
            Done::Machine(report) => {
                self.machine_busy = false;
                self.machine_failure = failure(&report);
                match self.machine_failure {
                    None => self.dirty = true,
                    // A record that cannot be written is tried again without haste.
                    Some(_) => self.next_look = Instant::now() + RETRY,
                }
            }
            Done::Images(cleaned) => self.cleaned(&cleaned),
            Done::Answer(answer) => self.answered(answer),
        }
    }

    fn answered(&mut self, Answer { question: Question { container, pod, .. }, health, no_space }: Answer) {
        let was_healthy = self.supervisor.is_healthy(&container);
        self.dirty |= self.supervisor.answered(self.started.elapsed(), &container, health);
        if self.supervisor.is_healthy(&container) != was_healthy {
            self.tell_who_is_healthy();
        }
        if let Some(no_space) = no_space {
            self.board.publish(|status| {
                let is_news = if no_space { status.no_space.insert(pod) } else { status.no_space.remove(&pod) };
                status.revision += u64::from(is_news);
            });
        }
        if let Some((pod, name, why)) = self.supervisor.failing(&container) {
            let message = format!("container {name} did not answer its check: {why}");
            self.journal.note(About::pod(pod, name), (true, reason::UNHEALTHY), message);
        }
    }

    fn cleaned(&mut self, cleaned: &Cleaned) {
        for (failed, message) in self.cleanup.done(cleaned) {
            if failed {
                tracing::warn!("{message}");
                self.note_machine((true, reason::FAILED), &message);
            } else {
                tracing::info!("{message}");
                self.note_machine((false, reason::IMAGE_REMOVED), &message);
            }
        }
        self.dirty = true;
    }

    fn tell_who_is_healthy(&self) {
        let healthy = self.supervisor.healthy();
        self.board.publish(|status| {
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

    fn looked(&mut self, seen: Result<Looked, ObserveError>) {
        let Some(look) = self.look.take() else { return };
        self.rest = Instant::now() + rest::after(look.began.elapsed());
        match seen {
            Ok(Looked { state, endings, images }) => {
                self.over = endings::ids(&state);
                for ending in endings {
                    ending.note(&self.journal);
                }
                self.sees(if state.disk_pressure { Sight::FullDisk } else { Sight::Clear });
                let state = Arc::new(state);
                self.board.keep(Some(Found { state: Arc::clone(&state), config: look.config.clone() }));
                self.act(&look, &state, images.as_ref());
                self.tell_who_is_healthy();
                self.seen(MachineState::clone(&state));
            }
            Err(error) => {
                let why = chain_text(&error);
                let is_news = self.sees(Sight::None);
                if is_news {
                    tracing::warn!(why, "the machine cannot be seen");
                    self.note_machine((true, reason::RUNTIME_NOT_ANSWERING), "the machine cannot be seen");
                }
                self.next_look = Instant::now() + RETRY;
                self.board.keep(None);
                self.board.publish(|status| {
                    status.revision += u64::from(is_news);
                    status.answered = look.asked;
                    status.failures = vec![why];
                });
            }
        }
    }

    /// Returns whether that is news. What failed may be tried at once where the machine is better off than before.
    fn sees(&mut self, sight: Sight) -> bool {
        let before = std::mem::replace(&mut self.sight, sight);
        if sight == Sight::FullDisk {
            self.next_look = self.next_look.min(Instant::now() + ROOM);
        }
        match (before, sight) {
            (before, sight) if before == sight => return false,
            (Sight::None | Sight::FullDisk, Sight::Clear) => {
                tracing::info!("the machine can be seen, and has room on its disk");
                self.note_machine((false, reason::RECOVERED), "the machine can be seen, and has room on its disk");
                self.supervisor.forgive();
            }
            (_, Sight::FullDisk) => {
                tracing::warn!("the disk is full");
                self.note_machine((true, reason::DISK_PRESSURE), "the disk is full");
            }
            (_, Sight::None | Sight::Clear) => {}
        }
        true
    }

    /// What is put off, once each until it is not put off any more.
    fn note_held(&mut self, held: &[Held]) {
        let now: BTreeSet<_> = held.iter().map(|held| (About::pod(&held.pod, held.container()), held.why())).collect();
        for (about, why) in now.difference(&self.held) {
            self.journal.note(about.clone(), (true, reason::BACK_OFF), why.clone());
        }
        self.held = now;
    }

    fn note_machine(&self, kind: (bool, &str), message: &str) {
        self.journal.note(About::default(), kind, message.to_owned());
    }

    /// News are worth a look to those who watch.
    fn seen(&mut self, state: MachineState) {
        let state = news(state, self.last.as_ref());
        if self.last.as_ref() != Some(&state) {
            self.board.publish(|status| status.revision += 1);
            self.last = Some(state);
        }
    }

    /// Plans on what was seen, and begins what may be done.
    fn act(&mut self, look: &Look, state: &MachineState, images: Option<&ImageUse>) {
        let Some(kept) = self.book.current() else {
            return self.act_without_config(look, state);
        };
        let actions = match converge_to(&kept.wanted(), state) {
            Ok(actions) => actions,
            Err(refusal) => {
                let why = refusal.to_string();
                return self.board.publish(|status| {
                    status.answered = look.asked;
                    status.failures = vec![why];
                    status.held.clear();
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
                self.tell(look, Vec::new());
            }
            return self.begin_machine(&kept, first);
        }
        if let Some(held) = self.begin_round(look, (&kept, state), &actions) {
            let last: Vec<Action> = actions.into_iter().filter(|action| action.pod().is_none()).collect();
            // What failed of its pods comes first.
            if !last.is_empty() && self.failures.is_empty() {
                if self.machine_failure.is_some() {
                    self.tell(look, held);
                }
                return self.begin_machine(&kept, last);
            }
            self.tell(look, held);
            if let Some(images) = images.filter(|_| last.is_empty()) {
                self.clean_up(&kept, images);
            }
        }
    }

    /// Nothing is being done for a pod, so no image is on its way.
    fn clean_up(&mut self, kept: &Arc<Kept>, images: &ImageUse) {
        let verdict = self.cleanup.decide(self.now(), &self.machine, kept, images);
        if let Some(next) = verdict.next {
            self.next_look = self.next_look.min(self.started + next);
        }
        if verdict.remove.is_empty() && verdict.forget.is_empty() {
            return;
        }
        let (machine, book, kept) = (Arc::clone(&self.machine), Arc::clone(&self.book), Arc::clone(kept));
        self.tasks.spawn(async move { Done::Images(clean_up(&machine, &book, &kept, verdict).await) });
    }

    /// The config cannot be read: what has ended of it is made anew, with back-off, and all else waits for another one.
    fn act_without_config(&mut self, look: &Look, state: &MachineState) {
        let lost = self.book.lost();
        let Some(known) = lost.as_deref().and_then(|lost| lost.known.as_ref()) else {
            return self.tell(look, Vec::new());
        };
        // Who took the machine over, or uses it beside us, sends no config of ours.
        let actions = converge::revive(&known.wanted(), state).unwrap_or_default();
        if let Some(held) = self.begin_round(look, (known, state), &actions) {
            self.tell(look, held);
        }
    }

    /// Begins what may be done now for pods. Where nothing is and all was seen, what is put off.
    fn begin_round(
        &mut self,
        look: &Look,
        (kept, state): (&Kept, &MachineState),
        actions: &[Action],
    ) -> Option<Vec<String>> {
        // What was seen of these is older than what was done to them.
        let unseen: BTreeSet<PodName> = look.stale.union(&self.busy).cloned().collect();
        let round = self.supervisor.round(self.now(), (&kept.config, state), actions, &unseen);
        if let Some(wake) = round.wake {
            self.next_look = self.next_look.min(self.started + wake);
        }
        let nothing_begins = round.pods.is_empty();
        for (pod, steps) in round.pods {
            self.begin_pod(pod, steps);
        }
        self.note_held(&round.held);
        (nothing_begins && unseen.is_empty()).then(|| round.held.iter().map(ToString::to_string).collect())
    }

    /// Everything was done that can be done now.
    fn tell(&self, look: &Look, held: Vec<String>) {
        let failures: Vec<String> = self.failures.values().chain(&self.machine_failure).cloned().collect();
        let effects = self.effects.load(Ordering::Relaxed);
        self.board.publish(|status| {
            if status.failures != failures || status.held.len() != held.len() {
                status.revision += 1;
            }
            status.answered = look.asked;
            status.failures = failures;
            status.effects = effects;
            status.held = held;
        });
    }

    fn begin_pod(&mut self, pod: PodName, steps: Vec<PodAction>) {
        self.busy.insert(pod.clone());
        let actions = steps.into_iter().map(|step| Action::Pod(pod.clone(), step)).collect();
        let (machine, stop, tell) = (Arc::clone(&self.machine), self.plan.clone(), self.teller());
        self.tasks.spawn(async move {
            let report = machine.execute(actions, &stop, &tell).await;
            Done::Pod(pod, report)
        });
    }

    fn begin_machine(&mut self, kept: &Arc<Kept>, actions: Vec<Action>) {
        self.machine_busy = true;
        let (machine, book, kept) = (Arc::clone(&self.machine), Arc::clone(&self.book), Arc::clone(kept));
        let journal = Arc::clone(&self.journal);
        let (stop, tell) = (self.plan.clone(), self.teller());
        self.tasks.spawn(async move {
            let leaves = actions.contains(&Action::Leave);
            let report = if leaves {
                journal.end().await;
                let report = book.leave(&kept, actions).await;
                if !report.is_complete() {
                    journal.begin();
                }
                report.done.iter().for_each(|action| tell(Effect::Done(action)));
                report
            } else {
                machine.execute(actions, &stop, &tell).await
            };
            Done::Machine(report)
        });
    }

    fn teller(&self) -> impl Fn(Effect<'_>) + Send + Sync + use<> {
        let (board, effects) = (Arc::clone(&self.board), Arc::clone(&self.effects));
        let journal = Arc::clone(&self.journal);
        move |effect| match effect {
            Effect::Begins(action) => {
                tracing::debug!(pod = pod_of(action), %action, "begins");
                board.begins(action.to_string());
            }
            Effect::Done(action) => {
                tracing::info!(pod = pod_of(action), %action, "done");
                note_effect(&journal, action);
                effects.fetch_add(1, Ordering::Relaxed);
            }
            Effect::Failed(action, why) => {
                tracing::warn!(pod = pod_of(action), %action, why, "failed");
                let about = About { pod: action.pod().cloned(), container: String::new() };
                journal.note(about, (true, reason::FAILED), format!("{action}: {why}"));
            }
        }
    }
}

/// The machine, and why things on it ended that are not known to be over yet.
async fn look(machine: &LocalMachine, over: &BTreeSet<String>, with_images: bool) -> Result<Looked, ObserveError> {
    let state = machine.observe().await?;
    let endings = endings::of(machine, &state, over).await;
    let mut images = None;
    if with_images {
        match unused::observe(machine.runtime()).await {
            Ok(seen) => images = Some(seen),
            Err(error) => tracing::warn!(why = chain_text(&error), "cannot see what uses images; none is removed"),
        }
    }
    Ok(Looked { state, endings, images })
}

fn note_effect(journal: &Journal, action: &Action) {
    if let Action::Pod(pod, PodAction::StartContainer { name, .. }) = action {
        journal.note(About::pod(pod, name), (false, reason::STARTED), format!("container {name} was started"));
    } else if let Action::Pod(pod, PodAction::StopContainer { name, .. }) = action {
        journal.note(About::pod(pod, name), (false, reason::KILLING), format!("container {name} was stopped"));
    }
}

fn pod_of(action: &Action) -> String {
    action.pod().map(ToString::to_string).unwrap_or_default()
}

fn failure(report: &ApplyReport) -> Option<String> {
    report.failed.first().map(|failure| format!("{}: {}", failure.action, failure.error))
}
