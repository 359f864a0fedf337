//! The passes of one cluster.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures::{FutureExt, future::join_all};
use keelway_api::{
    Documents, Hypervisor, Shared,
    document::{DocumentChange, DocumentName},
    jiff::Timestamp,
    machine::{MachineState, ObservedValue},
    name::{ClusterId, ClusterRef, HypervisorName, PodName},
    shared::Map,
};
use keelway_planner::{
    ComponentHealth, Configs, DesiredPods, PassObservation, Plan, ValidatedDocuments, identify_clusters, refuse,
};
use tokio::{
    sync::{Notify, futures::OwnedNotified},
    time::{Instant, sleep, sleep_until, timeout},
};
use tracing::{Instrument as _, debug_span, info_span};

use super::{
    InstallationReconciler, LONGEST_LOOK, LONGEST_RECHECK, LOOK, RECHECK, Task,
    decision::{PartDecision, StagedPart},
    recheck::round,
    state::ReconcilerState,
};
use crate::{
    PassError, PassFailure, PassOutcome, certificates, health,
    observe::observe_looked,
    pass::{bind, is_settled},
    retry_pace::RetryPace,
};

/// How long who places components waits at the start for machines that nobody looked at yet.
const FIRST_LOOK: Duration = Duration::from_secs(2);
/// The same for those that it relies on: longer than a look at a machine that does not answer.
const OWN_LOOKS: Duration = Duration::from_secs(12);

/// How long what people are told waits for machines to hear of what they are to do. One that is at work hears of it later.
const HEARING: Duration = Duration::from_millis(10);
/// How long words wait that tell the same truths as those that were written a moment ago: while a cluster is made they change with each
/// step, and a store is asked for each of them. So long they are behind what others wait to have saved, too.
const WORDS: Duration = Duration::from_secs(5);
/// The longest that words wait.
const LONGEST_WORDS: Duration = Duration::from_secs(30);

/// The documents of one cluster, and what was seen when they were as they are.
struct ClusterSnapshot {
    loaded: Documents,
    seen: Map<HypervisorName, ObservedValue<MachineState>>,
}

impl ClusterSnapshot {
    /// None: there is no such cluster.
    fn of(state: &ReconcilerState, name: &ClusterRef) -> Option<Self> {
        state.documents.clusters.get(name)?;
        Some(Self { loaded: state.documents_of(name), seen: state.seen_of(name) })
    }
}

/// When a cluster is to be looked at although nobody tells of a change.
enum NextPass {
    /// It waits for something.
    Look(Instant),
    /// It is settled.
    Date(Option<Timestamp>),
}

/// What came of a pass.
struct ClusterPass {
    outcome: PassOutcome,
    /// Whether documents were saved.
    wrote: bool,
    /// Whether there are words to be saved later.
    says_more: bool,
    known: ObservationCache,
    read: certificates::CertificateSnapshot,
}

/// How a pass is made.
#[derive(Default)]
struct PassMode {
    /// Words that change nothing may wait: they did not wait for long yet.
    may_say_later: bool,
    /// They do so even if nobody waits to have something saved, as there were others a moment ago.
    said_lately: bool,
    /// Known since all was settled.
    known: ObservationCache,
    /// What the pass before has read.
    read: certificates::CertificateSnapshot,
}

/// What a change need not wait for to be asked for again. The next pass asks.
#[derive(Default)]
struct ObservationCache {
    /// What the clusters' own APIs told.
    bindings: BTreeMap<ClusterId, ObservedValue<String>>,
    /// Components that were asked, or vouched for, and are well: who changes only what others do not rely on need not ask them. None where that
    /// was relied on.
    well: BTreeSet<PodName>,
}

/// What came of a pass that relies on components that it did not ask.
enum CachedPassOutcome {
    /// It could.
    Passed(Box<ClusterPass>),
    /// Nothing: what is to be changed needs to know of them.
    TooMuch,
    /// Nothing: there is no such cluster any more, or somebody changed it meanwhile.
    Stale,
}

impl InstallationReconciler<'_> {
    /// Passes until the cluster is gone.
    pub(super) async fn cluster(&self, name: &ClusterRef) {
        let task = Task::Cluster(name.clone());
        let mut pace = RetryPace::new();
        let mut look = LOOK;
        let mut last = Instant::now();
        let mut number = 0_u64;
        // When this task wrote last, and since when it has words to say.
        let (mut wrote, mut unsaid): (Option<Instant>, Option<Instant>) = (None, None);
        let (mut asked, mut read) = (ObservationCache::default(), certificates::CertificateSnapshot::default());
        // What the last pass knew, and since when that is all.
        let (mut known, mut since) = (Documents::default(), Instant::now());
        Box::pin(self.first_looks(name)).await;
        loop {
            let Some(wake) = self.wake_handle(name).filter(|_| !self.is_stopped()) else { return };
            number += 1;
            let (span, began) = (info_span!("pass", cluster = %name, pass = number), Instant::now());
            let said_lately = wrote.is_some_and(|wrote| wrote.elapsed() < WORDS);
            let may_say_later = unsaid.is_none_or(|since| since.elapsed() < LONGEST_WORDS);
            let manner = PassMode {
                may_say_later,
                said_lately,
                known: std::mem::take(&mut asked),
                read: std::mem::take(&mut read),
            };
            // A cluster is at rest most of the time, and a pass takes much room.
            let passed = Box::pin(self.pass_cluster(name, manner).instrument(span.clone())).await;
            let took = began.elapsed();
            let elapsed = std::mem::replace(&mut last, Instant::now()).elapsed();
            let (idle, pause) = match &passed {
                Ok(Some(ClusterPass { outcome, wrote: has_written, .. })) => {
                    if *has_written {
                        wrote = Some(Instant::now());
                    }
                    span.in_scope(|| self.watcher().passed(&task, outcome, took));
                    let idle = outcome.effects == 0 && outcome.failures.is_empty();
                    (idle, pace.after(outcome.effects, outcome.failures.len(), elapsed))
                }
                Ok(None) => (true, Duration::ZERO),
                Err(error) => {
                    self.publish_from_saved(name);
                    span.in_scope(|| self.watcher().failed(&task, error, took));
                    (false, pace.after(0, 1, elapsed))
                }
            };
            look = if idle { (look * 2).min(LONGEST_LOOK) } else { LOOK };
            let passed = passed.ok().flatten();
            let says_more = passed.as_ref().is_some_and(|passed| passed.says_more);
            unsaid = unsaid.or(Some(last)).filter(|_| says_more);
            let outcome = passed.map(|passed| {
                // What is read takes room, and the next pass is far off where all is settled.
                if passed.outcome.settled {
                    asked = passed.known;
                } else {
                    read = passed.read;
                }
                passed.outcome
            });
            let mut floor = Duration::ZERO;
            if idle {
                let settled = outcome.as_ref().filter(|outcome| outcome.settled);
                if let Some(outcome) = settled {
                    self.state().settles(name, true);
                    let ids = outcome.plan.documents.clusters.values().filter_map(|cluster| cluster.id());
                    ids.for_each(|id| self.context.components.close_idle_connections(id));
                }
                let next = settled.map_or(NextPass::Look(last + look), |outcome| NextPass::Date(outcome.plan.due));
                let again = self.again(&task, name, next);
                // Where all is settled and well nothing is to get better.
                let open =
                    outcome.filter(|outcome| !outcome.settled || health::is_any_unhealthy(&outcome.plan.documents));
                let now = open.map(|outcome| outcome.plan.documents).unwrap_or_default();
                if !now.names_changed_since(&known).is_empty() {
                    since = last;
                }
                known = now;
                let recheck = (since.elapsed() / 4).clamp(RECHECK, LONGEST_RECHECK);
                tokio::select! {
                    biased;
                    () = self.context.run.stop.cancelled() => return,
                    () = wake.notified() => {}
                    () = self.wait_for_recovery(&known, recheck) => floor = RECHECK,
                    () = again => {}
                    () = sleep_until(last + WORDS), if says_more => {}
                }
            }
            self.pause_until(last + pause.max(floor)).await;
        }
    }

    /// Returns when a component is well that was not. All were asked a moment ago.
    async fn wait_for_recovery(&self, known: &Documents, pause: Duration) {
        sleep(pause).await;
        health::wait_for_recovery(&*self.context.components, known, health::is_unhealthy, pause).await;
    }

    /// Waits until the cluster is to be looked at although nobody tells of a change: where it is settled, until a date.
    async fn again(&self, task: &Task, name: &ClusterRef, next: NextPass) {
        match next {
            NextPass::Look(at) => {
                sleep_until(at).await;
                self.look_again(name);
            }
            NextPass::Date(due) => {
                let has_rounds = self.state().has_rounds(name);
                tokio::select! {
                    () = self.wait_until_due(task, due) => {}
                    () = round(task), if has_rounds => {}
                }
            }
        }
    }

    fn wake_handle(&self, name: &ClusterRef) -> Option<Arc<Notify>> {
        Some(self.state().clusters.get(name)?.wake.clone())
    }

    /// What is on machines that nobody looked at yet is not known: nothing is decided on it.
    async fn first_looks(&self, name: &ClusterRef) {
        let own = self.state().machines_of(name);
        let looked = |machine: HypervisorName| async move {
            loop {
                let told = {
                    let state = self.state();
                    let Some(found) = state.machines.get(&machine).filter(|found| found.seen.is_none()) else { return };
                    found.first_observed.clone().notified_owned()
                };
                told.await;
            }
        };
        let all: Vec<HypervisorName> = self.state().machines.keys().cloned().collect();
        let (own, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|name| own.contains(name));
        let _ = timeout(OWN_LOOKS, join_all(own.into_iter().map(looked))).await;
        let _ = timeout(FIRST_LOOK, join_all(others.into_iter().map(looked))).await;
    }

    /// Machines tell of most changes. Of those that no event tells of they are asked.
    fn look_again(&self, name: &ClusterRef) {
        let state = self.state();
        for machine in state.machines_of(name).iter().filter_map(|name| state.machines.get(name)) {
            machine.wake.notify_one();
        }
    }

    /// One pass. None: there is no such cluster any more, or somebody changed it meanwhile, of which this task is told.
    async fn pass_cluster(&self, name: &ClusterRef, manner: PassMode) -> Result<Option<ClusterPass>, PassError> {
        let passed = match self.pass_relying(name, &manner, &manner.known.well).await? {
            CachedPassOutcome::TooMuch => self.pass_relying(name, &manner, &BTreeSet::new()).await?,
            relied @ (CachedPassOutcome::Passed(_) | CachedPassOutcome::Stale) => relied,
        };
        match passed {
            CachedPassOutcome::Passed(passed) => Ok(Some(*passed)),
            CachedPassOutcome::TooMuch | CachedPassOutcome::Stale => Ok(None),
        }
    }

    /// The same, for which these components are well: they are not asked.
    async fn pass_relying(
        &self,
        name: &ClusterRef,
        manner: &PassMode,
        well: &BTreeSet<PodName>,
    ) -> Result<CachedPassOutcome, PassError> {
        let Ok(asking) = self.asking.acquire().await else { return Ok(CachedPassOutcome::Stale) };
        let Some(ClusterSnapshot { loaded, seen }) = self.newest_view(name) else {
            return Ok(CachedPassOutcome::Stale);
        };
        let mut documents = loaded.clone();
        identify_clusters(&mut documents, || self.minter().id()).map_err(PassError::Id)?;
        let known = (&manner.known.bindings, well);
        let observing = observe_looked(&seen, &*self.context.components, &documents, known, &manner.read);
        let seen = observing.instrument(debug_span!("observe")).await.map_err(PassError::Faults)?;
        drop(asking);
        let Some(turn) = self.turn().await else { return Ok(CachedPassOutcome::Stale) };
        let says_later = manner.may_say_later && (manner.said_lately || self.is_busy(0));
        let relies = !well.is_empty();
        let decided =
            debug_span!("plan").in_scope(|| self.decide(name, documents, seen, (&loaded, says_later, relies)))?;
        let Some((decided, staged)) = decided else { return Ok(CachedPassOutcome::TooMuch) };
        let PartDecision { plan, saved, desired: mut wants, seen } = decided;
        let (wrote, says_more) = (matches!(staged, StagedPart::Waits(_)), saved != plan.documents);
        if seen.stale() || (self.has_told(name) && !seen.frozen_clusters(&loaded).is_empty()) {
            wants = None;
        }
        if wrote && changes_only_conditions(&loaded, &saved) {
            // What machines write down of it goes first.
            let _ = timeout(HEARING, join_all(self.publish_desired_pods(name, &loaded, &plan, wants.take()))).await;
        }
        if !self.saved_part(staged, &loaded, &saved).await? {
            return Ok(CachedPassOutcome::Stale);
        }
        drop(self.publish_desired_pods(name, &loaded, &plan, wants));
        drop(turn);
        let mut outcome = self.finish(plan).instrument(debug_span!("bind")).await;
        outcome.settled &= !says_more;
        let well = if relies { BTreeSet::new() } else { healthy(&seen) };
        let known = ObservationCache { bindings: seen.bindings, well };
        let read = certificates::CertificateSnapshot::of(&loaded, seen.certificates);
        Ok(CachedPassOutcome::Passed(Box::new(ClusterPass { outcome, wrote, says_more, known, read })))
    }

    /// Tells machines what the cluster wants of them. Returns what ends when they have heard of it.
    fn publish_desired_pods(
        &self,
        name: &ClusterRef,
        loaded: &Documents,
        plan: &Plan,
        wants: Option<BTreeMap<HypervisorName, DesiredPods>>,
    ) -> Vec<OwnedNotified> {
        let Some(wants) = wants else { return Vec::new() };
        let left = machines_of(loaded).difference(&machines_of(&plan.documents)).cloned().collect();
        self.state().set_desired_pods(name, (plan.documents.clone(), &left), wants)
    }

    /// Where a cluster has told nothing yet and cannot have its pass, it wants what its documents have already: nobody else on its machines
    /// waits for it. What cannot be made from them may only lack a key that the pass would mint, so nothing of it goes.
    fn publish_from_saved(&self, name: &ClusterRef) {
        let Some(view) = self.view(name).filter(|_| !self.has_told(name)) else { return };
        let mut seen = PassObservation { machines: view.seen, ..PassObservation::default() };
        refuse(&view.loaded, &mut seen);
        if let Ok(world) = ValidatedDocuments::of_pass(&view.loaded, &seen) {
            let ids = view.loaded.clusters.values().filter_map(|cluster| cluster.id().cloned()).collect();
            let (wants, _) = Configs::of(&view.loaded, &world, &seen).desired_pods();
            let wants = wants.into_iter().map(|(machine, wants)| (machine, wants.leaving_clusters(&ids))).collect();
            drop(self.state().set_desired_pods(name, (view.loaded.clone(), &BTreeSet::new()), wants));
        }
    }

    /// Whether machines know what a cluster wants of them.
    fn has_told(&self, name: &ClusterRef) -> bool {
        self.state().clusters.get(name).is_none_or(|cluster| !cluster.desired.is_empty())
    }

    /// What the cluster's own API is to be told, and what came of the pass.
    async fn finish(&self, plan: Plan) -> PassOutcome {
        let bound = join_all(plan.bindings.iter().map(|id| bind(self.context, &plan.documents, id))).await;
        let effects = bound.iter().map(|(done, _)| done).sum();
        let failures: Vec<PassFailure> = bound.into_iter().flat_map(|(_, failures)| failures).collect();
        let settled = is_settled(&plan);
        PassOutcome { plan, effects, failures, refused: false, settled }
    }

    /// Documents and what was seen are of one moment: a config is written down before a machine tells that it took it.
    fn view(&self, name: &ClusterRef) -> Option<ClusterSnapshot> {
        ClusterSnapshot::of(&self.state(), name)
    }

    /// The same for a pass: what its task was woken for until now is in it.
    fn newest_view(&self, name: &ClusterRef) -> Option<ClusterSnapshot> {
        let mut state = self.state();
        let _ = state.clusters.get(name)?.wake.notified().now_or_never();
        state.settles(name, false);
        ClusterSnapshot::of(&state, name)
    }

    /// Saves what a plan changed of a part, unless somebody else changed that meanwhile. Returns whether that is what there is now.
    pub(super) async fn save_part(&self, before: &Documents, after: &Documents) -> Result<bool, PassError> {
        self.saved_part(self.stage_part(before, after), before, after).await
    }

    /// Waits until it is saved.
    async fn saved_part(&self, part: StagedPart, before: &Documents, after: &Documents) -> Result<bool, PassError> {
        let staged = match part {
            StagedPart::Same => return Ok(true),
            StagedPart::Stale => return Ok(false),
            StagedPart::Waits(staged) => staged,
        };
        let saved = self.saved(Some(staged)).instrument(debug_span!("save")).await?;
        if saved {
            self.watcher().saved(before, after);
        }
        Ok(saved)
    }

    /// Whether what was decided on documents as they were may be done to what they are by now.
    pub(super) fn still_applies(
        &self,
        documents: &Documents,
        (before, after): (&Documents, &Documents),
        changes: &[DocumentChange],
    ) -> bool {
        // A machine that a component was placed on is as it was then.
        let machine = |of: &Documents, name| of.hypervisors.get(name).map(|machine| machine.spec.clone());
        let placed = after.components.iter().filter(|(name, _)| !before.components.contains_key(*name));
        let mut machines = placed.map(|(_, component)| &component.spec.hypervisor);
        let has_machines = machines.all(|name| machine(documents, name) == machine(before, name));
        // Nothing goes that is in use since then: a machine by a component, a cluster by a machine that is being given a config.
        let is_used = |change: &DocumentChange| match change {
            DocumentChange::Remove(DocumentName::Hypervisor(name)) => {
                documents.components.values().any(|component| component.spec.hypervisor == *name)
            }
            DocumentChange::Remove(DocumentName::Cluster(name)) => {
                let id = documents.clusters.get(name).and_then(|cluster| cluster.id());
                id.is_some_and(|id| self.state().is_being_applied(id))
            }
            DocumentChange::Introduce(_) | DocumentChange::Put(_) | DocumentChange::Remove(_) => false,
        };
        let is_same = |change: &DocumentChange| match change {
            DocumentChange::Put(DocumentName::Hypervisor(name)) => is_same_machine(documents, before, name),
            DocumentChange::Introduce(name) | DocumentChange::Put(name) | DocumentChange::Remove(name) => {
                documents.get(name) == before.get(name)
            }
        };
        has_machines && changes.iter().all(|change| is_same(change) && !is_used(change))
    }

    /// To the second, as documents tell times: what comes back from a store is what was sent there.
    pub(super) fn now(&self) -> Timestamp {
        let now = (self.context.clock)();
        Timestamp::from_second(now.as_second()).unwrap_or(now)
    }
}

/// Whether a machine is as it was, but for the number of its config: that is its own task's to write.
fn is_same_machine(now: &Documents, before: &Documents, name: &HypervisorName) -> bool {
    let machine = |of: &Documents| of.hypervisors.get(name).map(|machine| without_issue(machine.clone()));
    now.hypervisors.get(name) == before.hypervisors.get(name) || machine(now) == machine(before)
}

fn without_issue(mut machine: Shared<Hypervisor>) -> Shared<Hypervisor> {
    if machine.status.is_some() {
        machine.status.get_or_insert_default().issued = None;
    }
    machine
}

/// Components that are well.
fn healthy(seen: &PassObservation) -> BTreeSet<PodName> {
    let well = seen.health.iter().filter(|(_, health)| **health == ComponentHealth::Healthy);
    well.map(|(name, _)| name.clone()).collect()
}

/// The machines of a cluster's components.
fn machines_of(documents: &Documents) -> BTreeSet<HypervisorName> {
    documents.components.values().map(|component| component.spec.hypervisor.clone()).collect()
}

/// Whether only conditions change: machines need not wait for what people are told.
fn changes_only_conditions(before: &Documents, after: &Documents) -> bool {
    after.changes_since(before).iter().all(|change| after.changes_only_conditions(before, change))
}
