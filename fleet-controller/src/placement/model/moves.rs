//! Which objects move away from clusters, and which wait for their turn.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use keelway_fleet::{ContentRole, LeaveCause, PlacementLink, PlacementSpec, Work, names::cluster_of_namespace};
use kube::ResourceExt;

use super::{FleetModel, WorkKey};
use crate::placement::{plan::ObjectPlan, queue::PlanCause};

/// The moves that are under way, and the objects that wait for them.
#[derive(Debug, Default)]
pub(super) struct FleetMoves {
    /// The clusters that each object is leaving.
    leaving: BTreeMap<PlacementLink, BTreeSet<String>>,
    /// The objects that can leave each cluster once fewer others do.
    waiting: BTreeMap<String, BTreeMap<PlacementLink, LeaveCause>>,
}

impl FleetModel {
    /// Notes what is about to be written.
    pub(in crate::placement) fn planned(&mut self, link: &PlacementLink, plan: &ObjectPlan) {
        self.reserve(link, Some(plan));
        self.note_leaving(link, plan.save.as_ref());
        self.note_waiting(link, &plan.waits);
    }

    /// Notes which clusters an object is leaving: it has a Work there, and its Placement names others. `planned` is the Placement that is about to be
    /// written.
    pub(in crate::placement) fn note_leaving(&mut self, link: &PlacementLink, planned: Option<&PlacementSpec>) {
        let saved = self.placements.items.get(link).map(|placement| &placement.spec);
        // With whether the agent has been ordered to delete the object.
        let left: BTreeMap<String, bool> = match planned.or(saved) {
            Some(placement) => self.left_clusters(link, placement),
            None => BTreeMap::new(),
        };
        let after: BTreeSet<String> = left.keys().cloned().collect();
        let before = self.moves.leaving.remove(link).unwrap_or_default();
        for cluster in before.difference(&after) {
            if let Some(activity) = self.state.activity.get_mut(cluster) {
                activity.leaving.remove(link);
                activity.taken_over.remove(link);
            }
        }
        for (cluster, is_taken_over) in left {
            let activity = self.state.activity.entry(cluster).or_default();
            activity.leaving.insert(link.clone());
            if is_taken_over {
                activity.taken_over.insert(link.clone());
            } else {
                activity.taken_over.remove(link);
            }
        }
        if !after.is_empty() {
            self.moves.leaving.insert(link.clone(), after);
        }
    }

    fn left_clusters(&self, link: &PlacementLink, placement: &PlacementSpec) -> BTreeMap<String, bool> {
        let with_pods = self.works(link).filter(|work| self.state.pod_kinds.has_pods(&work.spec.manifest));
        let works = with_pods.filter_map(|work| Some((cluster_of(work)?, work.metadata.deletion_timestamp.is_some())));
        works.filter(|(cluster, _)| placement.clusters.iter().all(|placed| placed.name != *cluster)).collect()
    }

    /// Notes that an object waits to leave clusters, or does not wait any more.
    fn note_waiting(&mut self, link: &PlacementLink, waits: &BTreeMap<String, LeaveCause>) {
        self.moves.waiting.retain(|cluster, waiting| {
            if !waits.contains_key(cluster) {
                waiting.remove(link);
            }
            !waiting.is_empty()
        });
        for (cluster, cause) in waits {
            self.moves.waiting.entry(cluster.clone()).or_default().insert(link.clone(), *cause);
        }
    }

    /// Plans as many of the waiting objects as may leave their clusters now.
    pub(super) fn pend_moves(&mut self, now: Instant) {
        let mut next = Vec::new();
        for (cluster, waiting) in &self.moves.waiting {
            let moves = |cause| self.state.activity.get(cluster).map_or(0, |activity| activity.moves(cause));
            let mut begun = 0;
            for (link, cause) in waiting {
                if moves(cause) + begun < cause.max_moves() as usize {
                    begun += 1;
                    next.push(link.clone());
                }
            }
        }
        self.pend(next, PlanCause::Decision, now);
    }

    /// Counts a Work in its cluster. If the last one with pods in a namespace is gone, what stayed for it may leave.
    pub(super) fn note_content(
        &mut self,
        (namespace, _): &WorkKey,
        before: Option<(ContentRole, String)>,
        after: Option<(ContentRole, String)>,
        now: Instant,
    ) {
        let Some(cluster) = cluster_of_namespace(namespace) else { return };
        let activity = self.state.activity.entry(cluster.to_owned()).or_default();
        if let Some((role, of)) = after {
            activity.add(role, &of);
        }
        if before.is_some_and(|(role, of)| activity.remove(role, &of)) {
            let from = (namespace.clone(), String::new());
            let others = self.works.items.range(from..).take_while(|((next, _), _)| next == namespace);
            let others: Vec<PlacementLink> = others.map(|(_, work)| work.spec.placement.clone()).collect();
            self.pend(others, PlanCause::Decision, now);
        }
    }
}

fn cluster_of(work: &Work) -> Option<String> {
    cluster_of_namespace(work.namespace().as_deref()?).map(str::to_owned)
}
