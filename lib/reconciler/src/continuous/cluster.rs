//! The task of one cluster.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures::{
    FutureExt,
    future::{join, join_all},
};
use keelway_api::{
    Documents, Hypervisor, Shared,
    document::{DocumentChange, DocumentName},
    jiff::Timestamp,
    machine::{MachineState, ObservedValue},
    name::{ClusterRef, HypervisorName},
    shared::Map,
};
use keelway_planner::{Configs, DesiredPods, PassObservation, Plan, ValidatedDocuments, identify_clusters, refuse};
use tokio::{
    sync::{Notify, futures::OwnedNotified},
    time::{Instant, sleep, sleep_until, timeout},
};
use tracing::{Instrument as _, debug_span, info_span};

use super::{
    InstallationReconciler, Task,
    cluster_schedule::{ClusterSchedule, PassResult, TextDelay},
    decision::{PartDecision, StagedPart},
    recheck::round,
    state::ReconcilerState,
};
use crate::{
    PassError, PassFailure, PassOutcome, certificates, health,
    observe::observe_looked,
    pass::{change_clusters, is_settled, order_stores},
};

/// How long the first pass of a cluster waits for the first observation of machines on which the cluster has no components.
const FIRST_LOOK: Duration = Duration::from_secs(2);
/// The same for the machines of its own components. It is longer than the time limit of an observation.
const OWN_LOOKS: Duration = Duration::from_secs(12);

/// How long a save of conditions waits for machines to read their desired pods first. A machine that is busy reads them later.
const HEARING: Duration = Duration::from_millis(10);

/// The documents of one cluster, and the observations at the same moment.
struct ClusterSnapshot {
    loaded: Documents,
    seen: Map<HypervisorName, ObservedValue<MachineState>>,
}

impl ClusterSnapshot {
    /// Returns none if the cluster does not exist.
    fn of(state: &ReconcilerState, name: &ClusterRef) -> Option<Self> {
        state.documents.clusters.get(name)?;
        Some(Self { loaded: state.documents_of(name), seen: state.seen_of(name) })
    }
}

/// When the next pass of a cluster begins if no change is reported.
enum NextPass {
    /// The cluster waits for something, so its machines are observed again at this time.
    Look(Instant),
    /// The cluster is settled until this date.
    Date(Option<Timestamp>),
}

/// The result of a pass.
struct ClusterPass {
    outcome: PassOutcome,
    /// Whether documents were saved.
    wrote: bool,
    /// Whether condition texts remain to be saved later.
    says_more: bool,
    read: certificates::CertificateSnapshot,
}

/// The mode of a pass.
#[derive(Default)]
struct PassMode {
    /// Whether changes of condition texts may be saved later.
    texts: TextDelay,
    /// The certificates that the previous pass read.
    read: certificates::CertificateSnapshot,
}

impl InstallationReconciler<'_> {
    /// Passes over the cluster until it is removed.
    pub(super) async fn cluster(&self, name: &ClusterRef) {
        let task = Task::Cluster(name.clone());
        let mut schedule = ClusterSchedule::new(Instant::now());
        let mut number = 0_u64;
        let mut read = certificates::CertificateSnapshot::default();
        Box::pin(self.first_looks(name)).await;
        loop {
            let Some(wake) = self.wake_handle(name).filter(|_| !self.is_stopped()) else { return };
            number += 1;
            let (span, began) = (info_span!("pass", cluster = %name, pass = number), Instant::now());
            let mode = PassMode { texts: schedule.texts(began), read: std::mem::take(&mut read) };
            // The future of a pass is large, and most clusters are idle: we allocate it only while it runs.
            let passed = Box::pin(self.pass_cluster(name, mode).instrument(span.clone())).await;
            let took = began.elapsed();
            span.in_scope(|| match &passed {
                Ok(Some(passed)) => self.watcher().passed(&task, &passed.outcome, took),
                Ok(None) => {}
                Err(error) => {
                    self.publish_from_saved(name);
                    self.watcher().failed(&task, error, took);
                }
            });
            let next = schedule.handle(result_of(&passed), Instant::now());
            let outcome = passed.ok().flatten().map(|passed| {
                // Certificates in memory are useful only if the next pass follows soon. After a settled pass it does not.
                if !passed.outcome.settled {
                    read = passed.read;
                }
                passed.outcome
            });
            let mut earliest = next.earliest;
            if next.is_idle {
                let settled = outcome.as_ref().filter(|outcome| outcome.settled);
                if let Some(outcome) = settled {
                    self.state().settles(name, true);
                    let ids = outcome.plan.documents.clusters.values().filter_map(|cluster| cluster.id());
                    ids.for_each(|id| self.context.components.close_idle_connections(id));
                }
                let begins = settled.map_or(NextPass::Look(next.look_at), |outcome| NextPass::Date(outcome.plan.due));
                let again = self.again(&task, name, begins);
                // If the cluster is settled and healthy, there is no recovery to wait for.
                let open =
                    outcome.filter(|outcome| !outcome.settled || health::is_any_unhealthy(&outcome.plan.documents));
                let open = open.map(|outcome| outcome.plan.documents).unwrap_or_default();
                let recheck = schedule.recheck(open, Instant::now());
                tokio::select! {
                    biased;
                    () = self.context.run.stop.cancelled() => return,
                    () = wake.notified() => {}
                    () = self.wait_for_recovery(schedule.open(), recheck) => earliest = schedule.after_recovery(next),
                    () = again => {}
                    () = wait_until(next.texts_at) => {}
                }
            }
            self.pause_until(earliest).await;
        }
    }

    /// Returns when an unhealthy component becomes healthy. The pass probed all components a moment ago, so the first probe waits.
    async fn wait_for_recovery(&self, known: &Documents, pause: Duration) {
        sleep(pause).await;
        health::wait_for_recovery(&*self.context.components, known, health::is_unhealthy, pause).await;
    }

    /// Waits until the next pass is due although no change was reported. For a settled cluster that is a date.
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

    /// Waits for the first observations. What a machine holds is unknown before that, and decisions must not assume that it holds nothing.
    async fn first_looks(&self, name: &ClusterRef) {
        let own = self.state().machines_of(name);
        let looked = |machine: HypervisorName| async move {
            loop {
                let observed = {
                    let state = self.state();
                    let Some(found) = state.machines.get(&machine).filter(|found| found.seen.is_none()) else { return };
                    found.first_observed.clone().notified_owned()
                };
                observed.await;
            }
        };
        let all: Vec<HypervisorName> = self.state().machines.keys().cloned().collect();
        let (own, others): (Vec<_>, Vec<_>) = all.into_iter().partition(|name| own.contains(name));
        let _ = timeout(OWN_LOOKS, join_all(own.into_iter().map(looked))).await;
        let _ = timeout(FIRST_LOOK, join_all(others.into_iter().map(looked))).await;
    }

    /// Wakes the machines of the cluster, so that changes are found that no event reports.
    fn look_again(&self, name: &ClusterRef) {
        let state = self.state();
        for machine in state.machines_of(name).iter().filter_map(|name| state.machines.get(name)) {
            machine.wake.notify_one();
        }
    }

    /// One pass. Returns none if the cluster was removed or its documents changed meanwhile; in the second case its task is woken.
    async fn pass_cluster(&self, name: &ClusterRef, mode: PassMode) -> Result<Option<ClusterPass>, PassError> {
        let Ok(asking) = self.asking.acquire().await else { return Ok(None) };
        let Some(ClusterSnapshot { loaded, seen }) = self.newest_view(name) else { return Ok(None) };
        let mut documents = loaded.clone();
        identify_clusters(&mut documents, || self.minter().id()).map_err(PassError::Id)?;
        let observing = observe_looked(&seen, &*self.context.components, &documents, &mode.read);
        let seen = observing.instrument(debug_span!("observe")).await.map_err(PassError::Faults)?;
        drop(asking);
        let Some(turn) = self.turn().await else { return Ok(None) };
        let says_later = mode.texts.may_wait && (mode.texts.saved_recently || self.is_busy(0));
        let decided = debug_span!("plan").in_scope(|| self.decide(documents, seen, &loaded, says_later));
        let (decided, staged) = decided?;
        let PartDecision { plan, saved, desired: mut wants, seen } = decided;
        let (wrote, says_more) = (matches!(staged, StagedPart::Waits(_)), saved != plan.documents);
        if seen.stale() || (self.has_told(name) && !seen.frozen_clusters(&loaded).is_empty()) {
            wants = None;
        }
        if wrote && changes_only_conditions(&loaded, &saved) {
            // Machines record the term and generation of their new configs before the conditions are saved.
            let _ = timeout(HEARING, join_all(self.publish_desired_pods(name, &loaded, &plan, wants.take()))).await;
        }
        if !self.saved_part(staged, &loaded, &saved).await? {
            return Ok(None);
        }
        drop(self.publish_desired_pods(name, &loaded, &plan, wants));
        drop(turn);
        let mut outcome = self.finish(plan).instrument(debug_span!("bind")).await;
        outcome.settled &= !says_more;
        let read = certificates::CertificateSnapshot::of(&loaded, seen.certificates);
        Ok(Some(ClusterPass { outcome, wrote, says_more, read }))
    }

    /// Publishes the cluster's desired pods to its machines. Each returned future ends when one machine has read them.
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

    /// Publishes the desired pods of the saved documents if the pass of a cluster fails and the cluster has published none yet, so that other
    /// clusters on its machines need not wait for it. A pod that cannot be built from the documents may only lack a key that the pass would mint, so
    /// nothing of the cluster is removed.
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

    /// Returns whether the cluster has published its desired pods.
    fn has_told(&self, name: &ClusterRef) -> bool {
        self.state().clusters.get(name).is_none_or(|cluster| !cluster.desired.is_empty())
    }

    /// Changes the managed clusters, executes the orders to their stores, and returns the outcome of the pass.
    async fn finish(&self, plan: Plan) -> PassOutcome {
        let (changed, ordered) = join(change_clusters(self.context, &plan), order_stores(self.context, &plan)).await;
        let all: Vec<_> = changed.into_iter().chain(ordered).collect();
        let effects = all.iter().map(|(done, _)| done).sum();
        let failures: Vec<PassFailure> = all.into_iter().flat_map(|(_, failures)| failures).collect();
        let settled = is_settled(&plan);
        PassOutcome { plan, effects, failures, refused: false, settled }
    }

    /// Returns documents and observations of the same moment: a config's term and generation are recorded before a machine reports them.
    fn view(&self, name: &ClusterRef) -> Option<ClusterSnapshot> {
        ClusterSnapshot::of(&self.state(), name)
    }

    /// Returns [`Self::view`] for a pass. The pass includes all changes until now, so their wake-up is consumed.
    fn newest_view(&self, name: &ClusterRef) -> Option<ClusterSnapshot> {
        let mut state = self.state();
        let _ = state.clusters.get(name)?.wake.notified().now_or_never();
        state.settles(name, false);
        ClusterSnapshot::of(&state, name)
    }

    /// Saves what a plan changed of its part. Returns false if the documents that the plan is based on have changed.
    pub(super) async fn save_part(&self, before: &Documents, after: &Documents) -> Result<bool, PassError> {
        self.saved_part(self.stage_part(before, after), before, after).await
    }

    /// Waits until the part is saved.
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

    /// Returns whether changes that were decided on `before` may be applied to `documents`, the current ones.
    pub(super) fn still_applies(
        &self,
        documents: &Documents,
        (before, after): (&Documents, &Documents),
        changes: &[DocumentChange],
    ) -> bool {
        // A machine that received a component must have the same spec as at the decision.
        let machine = |of: &Documents, name| of.hypervisors.get(name).map(|machine| machine.spec.clone());
        let placed = after.components.iter().filter(|(name, _)| !before.components.contains_key(*name));
        let mut machines = placed.map(|(_, component)| &component.spec.hypervisor);
        let has_machines = machines.all(|name| machine(documents, name) == machine(before, name));
        // A machine must not be removed while a component is on it, nor a cluster while a config with it is being applied.
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

    /// Returns the time in whole seconds, as documents contain it: a store returns the same values that it was sent.
    pub(super) fn now(&self) -> Timestamp {
        let now = (self.context.clock)();
        Timestamp::from_second(now.as_second()).unwrap_or(now)
    }
}

/// Returns whether a machine is the same, except for `status.issued`, which only the machine's own task changes.
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

fn result_of(passed: &Result<Option<ClusterPass>, PassError>) -> PassResult {
    match passed {
        Ok(Some(ClusterPass { outcome, wrote, says_more, .. })) => PassResult::Passed {
            effects: outcome.effects,
            failures: outcome.failures.len(),
            saved: *wrote,
            texts_wait: *says_more,
            turns_wait: outcome.plan.waiting.iter().any(|waiting| waiting.blocker.is_turn()),
        },
        Ok(None) => PassResult::Skipped,
        Err(_) => PassResult::Failed,
    }
}

/// Waits until this time; for ever without one.
async fn wait_until(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => std::future::pending().await,
    }
}

/// Returns the machines of the components in these documents.
fn machines_of(documents: &Documents) -> BTreeSet<HypervisorName> {
    documents.components.values().map(|component| component.spec.hypervisor.clone()).collect()
}

/// Returns whether only conditions change. Such a save may wait for machines.
fn changes_only_conditions(before: &Documents, after: &Documents) -> bool {
    after.changes_since(before).iter().all(|change| after.changes_only_conditions(before, change))
}
