//! The task of one machine: observes it when it changes, and applies the config that its clusters need.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use futures::FutureExt;
use keelway_agent_api::client::ConfigDelivery;
use keelway_api::{
    Documents, Hypervisor, Shared,
    hypervisor::Applied,
    machine::{Digest, MachineConfig, ObservedValue, Pod, UnreachableReason},
    name::{ClusterId, HypervisorName, PodName},
};
use keelway_base::error_chain::chain_text;
use keelway_machine::look_interval;
use keelway_machine::{
    action::Action,
    converge::{self, DesiredConfig, converge_to},
};
use keelway_planner::{DesiredPods, ValidatedDocuments, check_config, later_leader_text, machine_config, refusal};
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};
use tracing::{Instrument as _, debug_span, info_span};

use super::{
    InstallationReconciler, LONGEST_LOOK, LOOK, Task,
    recheck::round,
    save_queue::Edit,
    state::{AppliedConfig, reports_all_changes},
};
use crate::{ApplyOutcome, PassError, retry_pace::RetryPace};

/// How long a machine waits while many clusters change. Each config costs the machine and the store the same, however much of it is new.
const BUSY: Duration = Duration::from_secs(2);

/// What wakes the task of a machine: a reason to observe it, or a change of its desired pods.
struct MachineWakeups {
    look: Arc<Notify>,
    wanted: Arc<Notify>,
}

/// What is to be done on a machine.
struct MachineOrder {
    document: Shared<Hypervisor>,
    config: ConfigDelivery,
    /// The term, generation and digest of the config.
    fence: Applied,
    /// The desired pods of clusters, which make up the whole config.
    desired: Vec<Shared<DesiredPods>>,
    /// Whether the term and generation must be saved first.
    is_new: bool,
    /// Empty if the machine's agent decides on its actions.
    actions: Vec<Action>,
}

/// The desired pods of a machine by cluster, each with the documents that they were decided from.
type DesiredByCluster = Vec<(Shared<DesiredPods>, Arc<Documents>)>;

impl InstallationReconciler<'_> {
    /// Observes the machine and applies its config until the machine is removed.
    pub(super) async fn machine(&self, name: &HypervisorName) {
        let task = Task::Machine(name.clone());
        let mut pace = RetryPace::new();
        let mut look = LOOK;
        let mut last = Instant::now();
        let mut number = 0_u64;
        let (mut obeys, mut looks, mut answers) = (false, true, false);
        loop {
            let Some((document, wakes)) = self.machine_document(name).filter(|_| !self.is_stopped()) else { return };
            number += 1;
            let span = info_span!("pass", hypervisor = %name, pass = number);
            let began = Instant::now();
            if std::mem::replace(&mut looks, true) {
                answers = Box::pin(self.look_at(name, &document, &mut obeys).instrument(span.clone())).await;
            }
            let rest = look_interval::after(began.elapsed());
            let done = Box::pin(self.apply_config(name, &document).instrument(span.clone()))
                .await
                .unwrap_or_else(|error| ApplyOutcome { effects: 0, failures: vec![chain_text(&error)] });
            let elapsed = std::mem::replace(&mut last, Instant::now()).elapsed();
            // An agent slows down restarts of failing components itself, so we pace only machines without an agent here.
            let paced = if document.spec.endpoint.has_agent() { 0 } else { done.effects };
            let pause = pace.after(paced, done.failures.len(), elapsed);
            let idle = done.effects == 0 && done.failures.is_empty();
            span.in_scope(|| self.watcher().applied(&task, &done));
            look = if answers { LOOK } else { (look * 2).min(LONGEST_LOOK) };
            if idle {
                let of: [&Hypervisor; 1] = [&document];
                let again = async {
                    match (answers, reports_all_changes(&document)) {
                        (true, true) => std::future::pending().await,
                        (true, false) => round(&task).await,
                        (false, _) => sleep_until(last + look).await,
                    }
                };
                tokio::select! {
                    biased;
                    () = self.context.run.stop.cancelled() => return,
                    () = wakes.look.notified() => {}
                    // The connection has reported all changes on the machine, so a new config needs no new observation.
                    () = wakes.wanted.notified() => looks = !answers || !reports_all_changes(&document),
                    () = self.context.machines.changed(&of) => {}
                    () = again => {}
                }
                if answers {
                    // The connection was up until now, which counts as contact.
                    self.state().record_contact(name, self.now());
                }
            }
            // We collect the desired pods of many clusters into one config. A cluster may publish its desired pods before they are saved.
            self.pause_until(last + pause.max(rest)).await;
            self.wait_while_busy(last + BUSY).await;
        }
    }

    /// Returns when clusters are no longer busy, or at this time.
    async fn wait_while_busy(&self, end: Instant) {
        loop {
            let at_ease = self.at_ease.notified();
            if !self.is_busy(1) || Instant::now() >= end {
                return;
            }
            tokio::select! {
                biased;
                () = self.context.run.stop.cancelled() => return,
                () = at_ease => {}
                () = sleep_until(end) => {}
            }
        }
    }

    fn machine_document(&self, name: &HypervisorName) -> Option<(Shared<Hypervisor>, MachineWakeups)> {
        let state = self.state();
        let machine = state.machines.get(name)?;
        let wakes = MachineWakeups { look: machine.wake.clone(), wanted: machine.wanted.clone() };
        Some((state.documents.hypervisors.get(name)?.clone(), wakes))
    }

    /// Observes the machine, and returns whether it responds. `obeys` is true if it is fenced with the term of this leader already.
    async fn look_at(&self, name: &HypervisorName, document: &Hypervisor, obeys: &mut bool) -> bool {
        let looked = self.observe_fenced(document, obeys).instrument(debug_span!("observe")).await;
        let later = looked.as_ref().err().copied();
        let seen = looked.unwrap_or_else(|term| ObservedValue::Unreachable {
            silent: UnreachableReason::Led,
            why: later_leader_text(term),
        });
        self.watcher().machine_observed(name, &seen);
        let answers = matches!(seen, ObservedValue::Known(_));
        let now = self.now();
        let mut state = self.state();
        if answers {
            state.record_contact(name, now);
        }
        state.record_observation(name, seen);
        state.record_later_leader(name, later);
        drop(state);
        self.stop_if_superseded();
        answers
    }

    /// Applies the machine's config, once each cluster with components there has published its desired pods.
    async fn apply_config(&self, name: &HypervisorName, looked_at: &Hypervisor) -> Result<ApplyOutcome, PassError> {
        let order = match debug_span!("plan").in_scope(|| self.order(name, looked_at)) {
            Ok(Some(order)) => order,
            Ok(None) => {
                self.notify_heard(name);
                return Ok(ApplyOutcome::default());
            }
            Err(why) => return Ok(ApplyOutcome { effects: 0, failures: vec![why] }),
        };
        let MachineOrder { document, config, fence, desired: wants, is_new, actions } = order;
        if self.context.run.stop.is_cancelled() {
            return Ok(ApplyOutcome::default());
        }
        if is_new {
            // The term and generation are saved before the machine receives them, so that the documents are never behind the machine.
            let before = document.status.as_ref().and_then(|status| status.issued.clone());
            let edit = Edit::Issue { machine: name.clone(), before, issue: fence.clone(), clusters: clusters(&wants) };
            let staged = self.stage(edit);
            self.notify_heard(name);
            if !self.saved(staged).instrument(debug_span!("save")).await? {
                self.look_at_again(name);
                return Ok(ApplyOutcome::default());
            }
        }
        self.set_applied_config(name, None);
        let applying = self.context.machines.apply(&document, config, actions, &self.context.run);
        let applying = applying.instrument(debug_span!("apply")).await;
        if applying.failures.is_empty() {
            self.set_applied_config(name, Some(AppliedConfig { fence, desired: wants }));
        }
        Ok(applying)
    }

    /// Wakes the clusters that wait until the task of this machine has read their desired pods.
    fn notify_heard(&self, name: &HypervisorName) {
        if let Some(machine) = self.state().machines.get(name) {
            machine.contact_notify.notify_waiters();
        }
    }

    /// Records the config that the machine's agent has applied; none while it is being applied.
    fn set_applied_config(&self, name: &HypervisorName, given: Option<AppliedConfig>) {
        if let Some(machine) = self.state().machines.get_mut(name) {
            machine.applied_config = given;
        }
    }

    /// Returns what is to be done. None: nothing, or something that it depends on is not known yet.
    fn order(&self, name: &HypervisorName, looked_at: &Hypervisor) -> Result<Option<MachineOrder>, String> {
        let (document, seen, all, known, wants) = {
            let state = self.state();
            // This decision includes all desired pods that were published until now, so their wake-up is consumed.
            if let Some(machine) = state.machines.get(name) {
                let _ = machine.wanted.notified().now_or_never();
            }
            let documents = &state.documents;
            let Some(document) = documents.hypervisors.get(name) else { return Ok(None) };
            let Some(seen) = state.machines.get(name).and_then(|machine| machine.seen.clone()) else { return Ok(None) };
            // If the spec has changed since the observation, the observed machine may be another one. The task is already woken to observe again.
            if document.spec != looked_at.spec {
                return Ok(None);
            }
            if let Some(refused) = seen.known().and_then(|found| refusal(document, found)) {
                return Err(refused.to_string());
            }
            if state.is_stale() {
                return Ok(None);
            }
            if !state.is_all_told(name) {
                return Ok(None);
            }
            let wants = state.clusters.values();
            let wants: DesiredByCluster = wants
                .filter_map(|cluster| Some((cluster.desired.get(name)?.clone(), cluster.documents.clone())))
                .collect();
            (document.clone(), seen, documents.clone(), state.index.ids().clone(), wants)
        };
        let ObservedValue::Known(found) = &*seen else { return Ok(None) };
        let left: BTreeSet<&ClusterId> = wants.iter().flat_map(|(wants, _)| wants.left()).collect();
        // If a cluster's task has not seen yet that its cluster is paused or resumed, the config removes nothing of the cluster.
        let is_looked_after = |id: &ClusterId| {
            let cluster = known.get(id).and_then(|name| all.clusters.get(name));
            cluster.is_some_and(|cluster| !cluster.spec.paused) && !left.contains(id)
        };
        let digests = digests(wants.iter().map(|(wants, _)| wants));
        let removals: BTreeMap<_, _> = wants.iter().flat_map(|(wants, _)| wants.removals().clone()).collect();
        let is_known = |id: &ClusterId| known.contains_key(id);
        let Some((config, fence)) =
            machine_config(&document, found, is_looked_after, is_known, (&digests, &removals), self.term())
        else {
            return Ok(None);
        };
        let issued = document.status.as_ref().and_then(|status| status.issued.as_ref());
        let is_new = issued != Some(&fence);
        let has_it = document.spec.endpoint.has_agent() && found.applied.as_ref() == Some(&fence) && !is_new;
        // If the agent reported failures, the config is sent again, so that the failures are reported again.
        if has_it && found.failures.is_empty() && !digests.is_empty() && self.has_done(name, &fence) {
            return Ok(None);
        }
        // An agent decides on its actions by itself. A new config is sent even if nothing is to be done, so that the agent records it.
        let is_told = is_new && !digests.is_empty();
        let decides = document.spec.endpoint.has_agent() && is_told;
        let same =
            if decides { self.already_applied_pods(name, found.applied.as_ref(), &digests) } else { BTreeMap::new() };
        let config = MachineConfig { pods: pods_without(&same, &wants)?, ..config };
        let is_lost = check_config(&all, (name, found), &config, |pod| digests.contains_key(pod));
        if let Some(violation) = is_lost.first() {
            return Err(format!("the config is not sent: {violation}"));
        }
        let actions = if decides {
            converge::check((&config, &fence), found).map(|()| Vec::new())
        } else {
            converge_to(&DesiredConfig { config: &config, fence: &fence, digests: &config.pod_digests() }, found)
        };
        let actions = actions.map_err(|refusal| refusal.to_string())?;
        let wants: Vec<_> = wants.into_iter().map(|(wants, _)| wants).collect();
        if actions.is_empty() && !is_told {
            if has_it {
                self.set_applied_config(name, Some(AppliedConfig { fence, desired: wants }));
            }
            return Ok(None);
        }
        if let Some(machine) = self.state().machines.get_mut(name) {
            machine.applying_clusters = clusters(&wants);
        }
        let config = ConfigDelivery { config, unchanged: same, digest: Some(fence.digest.clone()) };
        Ok(Some(MachineOrder { document, config, fence, desired: wants, is_new, actions }))
    }

    /// Returns whether the last config was applied completely. An agent keeps it applied by itself.
    fn has_done(&self, name: &HypervisorName, fence: &Applied) -> bool {
        let state = self.state();
        let given = state.machines.get(name).and_then(|machine| machine.applied_config.as_ref());
        given.is_some_and(|given| given.fence == *fence)
    }

    /// Returns the pods that the agent already has, if its applied config is the one that was sent last.
    fn already_applied_pods(
        &self,
        name: &HypervisorName,
        applied: Option<&Applied>,
        wanted: &BTreeMap<PodName, Digest>,
    ) -> BTreeMap<PodName, Digest> {
        let state = self.state();
        let given = state.machines.get(name).and_then(|machine| machine.applied_config.as_ref());
        let Some(given) = given.filter(|given| Some(&given.fence) == applied) else { return BTreeMap::new() };
        let has = digests(&given.desired);
        let is_same = |(name, digest): &(&PodName, &Digest)| has.get(*name) == Some(*digest);
        wanted.iter().filter(is_same).map(|(name, digest)| (name.clone(), *digest)).collect()
    }

    /// Returns whether all of these clusters exist. If a cluster was removed meanwhile, no later config would remove what this config contains of it.
    pub(super) fn has_clusters(&self, clusters: &BTreeSet<ClusterId>) -> bool {
        let known = self.state().index.ids().clone();
        clusters.iter().all(|id| known.contains_key(id))
    }

    fn look_at_again(&self, name: &HypervisorName) {
        if let Some(machine) = self.state().machines.get(name) {
            machine.wake.notify_one();
        }
    }
}

fn digests<'a>(wants: impl IntoIterator<Item = &'a Shared<DesiredPods>>) -> BTreeMap<PodName, Digest> {
    let all = wants.into_iter().flat_map(|wants| wants.digests());
    all.map(|(name, digest)| (name.clone(), digest)).collect()
}

fn clusters(wants: &[Shared<DesiredPods>]) -> BTreeSet<ClusterId> {
    wants.iter().flat_map(|wants| wants.digests()).map(|(name, _)| name.cluster.clone()).collect()
}

/// Returns the content of all desired pods except those in `same`.
fn pods_without(same: &BTreeMap<PodName, Digest>, wants: &DesiredByCluster) -> Result<BTreeMap<PodName, Pod>, String> {
    let mut pods = BTreeMap::new();
    let mut read: Option<(ValidatedDocuments, &Documents)> = None;
    for (wants, documents) in wants {
        if wants.digests().all(|(name, _)| same.contains_key(name)) {
            continue;
        }
        let world = match &read {
            Some((world, before)) => world.reusing_machines(before, documents),
            None => ValidatedDocuments::of(documents),
        };
        let world = world.map_err(|faults| faults.to_string())?;
        pods.extend(
            wants.pods(documents, &world, |name| !same.contains_key(name)).map_err(|missing| missing.to_string())?,
        );
        read = Some((world, documents));
    }
    Ok(pods)
}
