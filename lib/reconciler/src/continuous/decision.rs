//! The decision of one pass of a cluster: the plan with its keys, the desired pods, and the documents to save now.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use keelway_api::{
    Component, Documents, Shared,
    jiff::Timestamp,
    machine::ObservedValue,
    name::{HypervisorName, PodName},
};
use keelway_planner::{
    Configs, Decision, DesiredPods, Neighbours, PassObservation, Plan, PlanScope, ValidatedDocuments, Waves, plan_part,
    plan_progress, refuse, wait_for_clock,
};

use super::{
    InstallationReconciler,
    save_queue::{Edit, StagedEdit},
};
use crate::{PassError, clocks::clocks_ahead};

/// What a pass decided.
pub(super) struct PartDecision {
    pub(super) plan: Plan,
    /// The documents of the plan in the form that is saved now.
    pub(super) saved: Documents,
    /// The desired pods of each machine; none after they were published.
    pub(super) desired: Option<BTreeMap<HypervisorName, DesiredPods>>,
    /// The observation that the decision is based on.
    pub(super) seen: PassObservation,
}

/// What is saved of a decision.
pub(super) enum StagedPart {
    /// Nothing: the decision changes no document.
    Same,
    /// Nothing: a document that the decision is based on has changed since.
    Stale,
    /// The edit is in the save queue.
    Waits(StagedEdit),
}

impl InstallationReconciler<'_> {
    /// Decides, mints keys, and puts the result into the save queue.
    pub(super) fn decide(
        &self,
        documents: Documents,
        seen: PassObservation,
        loaded: &Documents,
        says_later: bool,
    ) -> Result<(PartDecision, StagedPart), PassError> {
        // Most passes neither use room of machines nor wait for a wave, so their decision depends on no other cluster. We try this cheaper way first.
        let (nothing, nobody, any) = (Documents::default(), BTreeSet::new(), Waves::default());
        let alone = Neighbours { documents: &nothing, users: &nobody, waves: &any };
        let (mut plan, mut seen) = decide(documents.clone(), alone, seen, self.now())?;
        let _placing = if takes_of_machines(&plan, loaded) || waits_for_wave(&plan) {
            let placing = self.placing();
            // With `placing` held, no other cluster can use the room and ports that this decision uses.
            let (all, users, waves) = self.neighbours();
            let neighbours = Neighbours { documents: &all, users: &users, waves: &waves };
            (plan, seen) = decide(documents, neighbours, seen, self.now())?;
            Some(placing)
        } else {
            None
        };
        let now = self.now();
        wait_for_clock(&mut plan, |documents| clocks_ahead(&*self.context.machines, documents, now));
        self.minter().mint(&mut plan.documents, &plan.mint, self.now()).map_err(PassError::Mint)?;
        let (mut plan, wants) = wanted(plan, &seen, self.now())?;
        plan.documents.share_equal(loaded);
        let saved = if says_later { without_condition_text(&plan.documents, loaded) } else { plan.documents.clone() };
        let staged = self.stage_part(loaded, &saved);
        Ok((PartDecision { plan, saved, desired: Some(wants), seen }, staged))
    }

    fn neighbours(&self) -> (Arc<Documents>, BTreeSet<u32>, Waves) {
        let state = self.state();
        let seen = state.machines.values().filter_map(|machine| machine.seen.as_deref());
        let files = seen.filter_map(ObservedValue::known).flat_map(|state| state.files.values());
        let users = files.map(|file| file.user).collect();
        let waves = state.waves.clone();
        drop(state);
        (self.staged(), users, waves)
    }

    /// Puts the changes of a decision into the save queue.
    pub(super) fn stage_part(&self, before: &Documents, after: &Documents) -> StagedPart {
        let changes = after.changes_since(before);
        if changes.is_empty() {
            return StagedPart::Same;
        }
        let edit = Edit::Part { before: before.clone(), after: after.clone(), changes };
        self.stage(edit).map_or(StagedPart::Stale, StagedPart::Waits)
    }
}

fn decide(
    documents: Documents,
    neighbours: Neighbours<'_>,
    mut seen: PassObservation,
    now: Timestamp,
) -> Result<(Plan, PassObservation), PassError> {
    refuse(&documents, &mut seen);
    let plan = plan_part(documents, PlanScope::Cluster(neighbours), &seen, now).map_err(PassError::Faults)?;
    Ok((plan, seen))
}

/// Returns whether a plan uses room or ports that another cluster could use as well.
fn takes_of_machines(plan: &Plan, loaded: &Documents) -> bool {
    let port = |documents: &Documents| -> Vec<Option<u16>> {
        documents.clusters.values().map(|cluster| cluster.status.as_ref()?.ingress_port).collect()
    };
    let takes =
        |decision: &Decision| matches!(decision, Decision::PlaceComponent { .. } | Decision::AssignPorts { .. });
    plan.decisions.iter().any(takes) || port(&plan.documents) != port(loaded)
}

/// Returns whether the plan's cluster waits for a wave. Only a decision that sees all clusters can find out whether that wave has begun.
fn waits_for_wave(plan: &Plan) -> bool {
    plan.documents.clusters.values().any(|cluster| Waves::awaits(cluster))
}

/// Returns the documents in `after`, except documents of which only the text of conditions changes: these stay as in `before`.
fn without_condition_text(after: &Documents, before: &Documents) -> Documents {
    let mut documents = after.clone();
    for change in after.changes_since(before).iter().filter(|change| after.changes_only_condition_text(before, change))
    {
        documents.make(change, before);
    }
    // The status of a new component is saved later, with its first true condition.
    let is_silent = |(name, component): &(&PodName, &Shared<Component>)| {
        !before.components.contains_key(*name) && component.has_no_true_condition()
    };
    let silent: Vec<PodName> = after.components.iter().filter(is_silent).map(|(name, _)| name.clone()).collect();
    for name in silent {
        if let Some(component) = documents.components.get_mut(&name) {
            component.status = None;
        }
    }
    documents
}

/// Returns the plan, completed with what it waits for, and its desired pods. All keys are minted before.
fn wanted(
    mut plan: Plan,
    seen: &PassObservation,
    now: Timestamp,
) -> Result<(Plan, BTreeMap<HypervisorName, DesiredPods>), PassError> {
    let (wants, waiting, outdated) = {
        let world = ValidatedDocuments::of_pass(&plan.documents, seen).map_err(PassError::Faults)?;
        let configs = Configs::of(&plan.documents, &world, seen);
        let (wants, unbuildable) = configs.desired_pods();
        (wants, [configs.waiting(), &unbuildable].concat(), configs.outdated_servers())
    };
    plan.waiting.extend(waiting);
    plan.hold_store_orders(&outdated);
    plan_progress(&mut plan, seen, now);
    Ok((plan, wants))
}
