//! One machine: looked at when it changes, and brought to what its clusters want.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use keelway_api::{
    Documents, Hypervisor, Shared,
    hypervisor::Applied,
    machine::{MachineConfig, Seen},
    name::{ClusterId, HypervisorName},
};
use keelway_hypervisor_agent::{
    action::Action,
    converge::{self, converge_to},
    report::chain_text,
};
use keelway_planner::{World, machine_config, refusal};
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};
use tracing::{Instrument as _, debug_span, info_span};

use super::{Keeper, LONGEST_LOOK, LOOK, Task, rest::round, save::Edit, state::tells_everything};
use crate::{Applying, PassError, connected::has_agent, pace::Pace};

/// What wakes the task of a machine: to look at it, or because its clusters want something else of it.
struct Wakes {
    look: Arc<Notify>,
    wanted: Arc<Notify>,
}

/// What is to be done on a machine.
struct Order {
    document: Shared<Hypervisor>,
    config: MachineConfig,
    issue: Option<Applied>,
    /// None where an agent finds them.
    actions: Vec<Action>,
}

impl Keeper<'_> {
    /// Looks and applies until the machine is gone.
    pub(super) async fn machine(&self, name: &HypervisorName) {
        let task = Task::Machine(name.clone());
        let mut pace = Pace::new();
        let mut look = LOOK;
        let mut last = Instant::now();
        let mut number = 0_u64;
        let (mut obeys, mut looks, mut answers) = (false, true, false);
        loop {
            let Some((document, wakes)) = self.machine_document(name).filter(|_| !self.is_stopped()) else { return };
            number += 1;
            let span = info_span!("pass", hypervisor = %name, pass = number);
            if std::mem::replace(&mut looks, true) {
                answers = self.look_at(name, &document, &mut obeys).instrument(span.clone()).await;
            }
            let done = self
                .bring(name, &document)
                .instrument(span.clone())
                .await
                .unwrap_or_else(|error| Applying { effects: 0, failures: vec![chain_text(&error)] });
            let elapsed = std::mem::replace(&mut last, Instant::now()).elapsed();
            // What ends again and again an agent itself starts more and more seldom. All that is left are changes, of many clusters.
            let paced = if has_agent(&document) { 0 } else { done.effects };
            let pause = pace.after(paced, done.failures.len(), elapsed);
            let idle = done.effects == 0 && done.failures.is_empty();
            span.in_scope(|| self.watcher().applied(&task, &done));
            look = if answers { LOOK } else { (look * 2).min(LONGEST_LOOK) };
            if idle {
                let of: [&Hypervisor; 1] = [&document];
                let again = async {
                    match (answers, tells_everything(&document)) {
                        (true, true) => std::future::pending().await,
                        (true, false) => round(&task).await,
                        (false, _) => sleep_until(last + look).await,
                    }
                };
                tokio::select! {
                    biased;
                    () = self.context.run.stop.cancelled() => return,
                    () = wakes.look.notified() => {}
                    // What is on it was told as it changed.
                    () = wakes.wanted.notified() => looks = !answers || !tells_everything(&document),
                    () = self.context.machines.changed(&of) => {}
                    () = again => {}
                }
                if answers {
                    // The connection stood until now.
                    self.state().heard(name, self.now());
                }
            }
            self.pause_until(last + pause).await;
        }
    }

    fn machine_document(&self, name: &HypervisorName) -> Option<(Shared<Hypervisor>, Wakes)> {
        let state = self.state();
        let machine = state.machines.get(name)?;
        let wakes = Wakes { look: machine.wake.clone(), wanted: machine.wanted.clone() };
        Some((state.documents.hypervisors.get(name)?.clone(), wakes))
    }

    /// Returns whether it answers. `obeys`: it obeys this leader already.
    async fn look_at(&self, name: &HypervisorName, document: &Hypervisor, obeys: &mut bool) -> bool {
        let seen = self.look(document, obeys).instrument(debug_span!("observe")).await;
        self.watcher().looked(name, &seen);
        let answers = matches!(seen, Seen::Known(_));
        let now = self.now();
        let mut state = self.state();
        if answers {
            state.heard(name, now);
        }
        state.saw(name, seen);
        answers
    }

    /// Brings the machine to its config, once each cluster that has components there told what it wants.
    async fn bring(&self, name: &HypervisorName, looked_at: &Hypervisor) -> Result<Applying, PassError> {
        let order = match debug_span!("plan").in_scope(|| self.order(name, looked_at)) {
            Ok(Some(order)) => order,
            Ok(None) => return Ok(Applying::default()),
            Err(why) => return Ok(Applying { effects: 0, failures: vec![why] }),
        };
        let Order { document, config, issue, actions } = order;
        if self.context.run.stop.is_cancelled() {
            return Ok(Applying::default());
        }
        if let Some(issue) = issue {
            // Saved before the machine takes it.
            let before = document.status.as_ref().and_then(|status| status.issued.clone());
            let clusters = config.pods.keys().map(|pod| pod.cluster.clone()).collect();
            let edit = Edit::Issue { machine: name.clone(), before, issue, clusters };
            if !self.save(edit).instrument(debug_span!("save")).await? {
                self.look_at_again(name);
                return Ok(Applying::default());
            }
        }
        let applying = self.context.machines.apply(&document, config, actions, &self.context.run);
        Ok(applying.instrument(debug_span!("apply")).await)
    }

    /// What there is to do. None: nothing, or not all that it depends on is known yet.
    fn order(&self, name: &HypervisorName, looked_at: &Hypervisor) -> Result<Option<Order>, String> {
        let (document, seen, all, known, wants) = {
            let state = self.state();
            let documents = &state.documents;
            let Some(document) = documents.hypervisors.get(name) else { return Ok(None) };
            let Some(seen) = state.machines.get(name).and_then(|machine| machine.seen.clone()) else { return Ok(None) };
            // What was seen may be of another machine of its name, and its task is woken.
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
            let wants: Vec<_> = wants
                .filter_map(|cluster| Some((cluster.wants.get(name)?.clone(), cluster.documents.clone())))
                .collect();
            (document.clone(), seen, documents.clone(), state.index.ids().clone(), wants)
        };
        let Seen::Known(found) = &*seen else { return Ok(None) };
        let term = self.term();
        let (mut pods, mut left) = (BTreeMap::new(), BTreeSet::new());
        let mut read: Option<(World, Arc<Documents>)> = None;
        for (wants, documents) in wants {
            let world = match &read {
                Some((world, before)) => world.beside(before, &documents),
                None => World::of(&documents),
            };
            let world = world.map_err(|faults| faults.to_string())?;
            pods.extend(wants.pods(&documents, &world));
            left.extend(wants.left().iter().cloned());
            read = Some((world, documents));
        }
        // One whose task did not see yet that it is paused, or no longer is, loses nothing either.
        let is_looked_after = |id: &ClusterId| {
            let cluster = known.get(id).and_then(|name| all.clusters.get(name));
            cluster.is_some_and(|cluster| !cluster.spec.paused) && !left.contains(id)
        };
        let Some((config, fence)) = machine_config(&document, found, is_looked_after, pods, term) else {
            return Ok(None);
        };
        let issued = document.status.as_ref().and_then(|status| status.issued.as_ref());
        let is_new = issued != Some(&fence) && !config.pods.is_empty();
        // An agent decides for itself what a config asks for, which at the least is to be recorded.
        let actions = if is_new && has_agent(&document) {
            converge::check((&config, &fence), found).map(|()| Vec::new())
        } else {
            converge_to((&config, &fence), found)
        };
        let actions = actions.map_err(|refusal| refusal.to_string())?;
        if actions.is_empty() && !is_new {
            return Ok(None);
        }
        let issue = (issued != Some(&fence)).then_some(fence);
        if let Some(machine) = self.state().machines.get_mut(name) {
            machine.giving = config.pods.keys().map(|pod| pod.cluster.clone()).collect();
        }
        Ok(Some(Order { document, config, issue, actions }))
    }

    /// Whether there are all of these clusters: of one that was forgotten meanwhile nothing would take away what a config has of it.
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
