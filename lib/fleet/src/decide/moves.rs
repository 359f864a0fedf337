//! Objects leave clusters that are being drained or were lost, and return. What cannot move, and what others may need, stays.

use alloc::collections::BTreeMap;

use super::{Choice, CurrentClusters};
use crate::{
    DecisionRequest, FleetObject, FleetState, LeaveCause, MoveObstacle, ObjectDemand, PlacedCluster, PlacementVerdict,
    Rejection, RunReason, failover::ObjectFailover, keep::rescaled,
};

/// The clusters of an object, and what was decided on each cluster.
pub(super) struct Selection {
    pub(super) clusters: Vec<PlacedCluster>,
    pub(super) verdicts: BTreeMap<String, PlacementVerdict>,
    /// The pods that had to fit.
    pub(super) demand: Option<ObjectDemand>,
    /// The clusters that the object leaves because they were lost.
    pub(super) left: Vec<String>,
    /// [`super::PlacementDecision::waits`].
    pub(super) waits: BTreeMap<String, LeaveCause>,
}

/// The clusters that an object may leave.
#[derive(Default)]
pub(super) struct Departure<'a> {
    /// The clusters that do not count as its own any more.
    pub(super) from: Vec<&'a str>,
    /// The cluster to which it returns.
    pub(super) home: Option<&'a str>,
}

impl Selection {
    /// Notes that the object cannot leave clusters. `left` is what was decided when it tried to.
    fn stuck(mut self, left: &Self, causes: &BTreeMap<&str, LeaveCause>, obstacle: &MoveObstacle) -> Self {
        for (cluster, verdict) in &left.verdicts {
            if !self.runs_in(cluster) && !verdict.runs() {
                self.verdicts.insert(cluster.clone(), verdict.clone());
            }
        }
        let stays = |cause| PlacementVerdict::Runs(RunReason::CannotMove { cause, obstacle: obstacle.clone() });
        let own = causes.iter().filter(|(cluster, _)| self.runs_in(cluster));
        let own: Vec<_> = own.map(|(&cluster, &cause)| (cluster.to_owned(), stays(cause))).collect();
        self.verdicts.extend(own);
        self
    }

    /// Notes when the object returns to clusters that have recently become ready, unless the policy itself rejects them.
    fn note_returns(&mut self, failover: Option<&ObjectFailover<'_>>) {
        let awaited = failover.into_iter().flat_map(ObjectFailover::awaited);
        for (name, rejection) in awaited {
            if let Some(
                verdict @ (PlacementVerdict::Outranked { .. }
                | PlacementVerdict::Rejected(
                    Rejection::Lost { .. }
                    | Rejection::Draining
                    | Rejection::Cordoned
                    | Rejection::Tainted { .. }
                    | Rejection::UnknownRoom
                    | Rejection::NoRoom(_),
                )),
            ) = self.verdicts.get_mut(name)
            {
                *verdict = PlacementVerdict::Rejected(rejection);
            }
        }
    }

    fn runs_in(&self, cluster: &str) -> bool {
        self.clusters.iter().any(|placed| placed.name == cluster)
    }

    /// Keeps an object that cannot move in all of its clusters, if it would leave one that is not removed from the fleet. Its replicas stay divided as
    /// they are.
    fn hold(
        &mut self,
        fleet: &FleetState,
        request: &DecisionRequest<'_>,
        current: &CurrentClusters<'_>,
        obstacle: &MoveObstacle,
    ) {
        let is_left = |name: &&str| !self.runs_in(name) && !fleet.is_removed(name);
        let left: Vec<&str> = current.keys().copied().filter(is_left).collect();
        let Some(first) = left.first() else { return };
        // What else is true of the other clusters does not matter, and would change the Placement again and again.
        for (_, verdict) in self.verdicts.iter_mut().filter(|(name, _)| !current.contains_key(name.as_str())) {
            if !matches!(verdict, PlacementVerdict::Rejected(rejection) if rejection.is_lasting()) {
                *verdict = PlacementVerdict::Rejected(Rejection::Held { by: (*first).to_owned() });
            }
        }
        let kept = |placed: &&PlacedCluster| {
            let selected = self.clusters.iter().find(|cluster| cluster.name == placed.name);
            let overrides = selected.map_or(&placed.overrides, |selected| &selected.overrides).clone();
            let replicas = placed.replicas.filter(|_| !request.is_autoscaled);
            let is_kept = selected.is_some() || left.contains(&placed.name.as_str());
            is_kept.then(|| PlacedCluster { replicas, overrides, ..(*placed).clone() })
        };
        let mut clusters: Vec<PlacedCluster> = current.values().filter_map(kept).collect();
        let replicas = rescaled(request, &clusters);
        for (placed, replicas) in clusters.iter_mut().zip(replicas.into_iter().flatten()) {
            placed.replicas = Some(replicas);
        }
        let total = request.object.replicas().unwrap_or(0);
        for placed in &clusters {
            let is_left = left.contains(&placed.name.as_str());
            let reason = match (self.verdicts.get(&placed.name), placed.replicas) {
                _ if is_left => RunReason::CannotMove { cause: LeaveCause::Deselected, obstacle: obstacle.clone() },
                (Some(PlacementVerdict::Runs(RunReason::CannotMove { .. })), _) => continue,
                (_, Some(replicas)) => RunReason::Divided { replicas, total },
                (_, None) => RunReason::Stays,
            };
            self.verdicts.insert(placed.name.clone(), PlacementVerdict::Runs(reason));
        }
        self.clusters = clusters;
    }

    /// Adds the clusters that the object would leave, and that are not removed from the fleet, while something there may need it.
    fn keep_needed(&mut self, fleet: &FleetState, object: &FleetObject, current: &CurrentClusters<'_>) {
        if self.clusters.is_empty() {
            return;
        }
        for (name, placed) in current {
            if !fleet.is_removed(name) && !self.runs_in(name) && fleet.needs(name, object) {
                self.clusters.push((*placed).clone());
                self.verdicts.insert((*name).to_owned(), PlacementVerdict::Runs(RunReason::Needed));
            }
        }
        self.clusters.sort_by(|a, b| a.name.cmp(&b.name));
    }
}

impl Choice<'_> {
    /// Returns the clusters of an object.
    pub(super) fn selection<'a>(
        &'a self,
        fleet: &'a FleetState,
        request: &DecisionRequest<'_>,
        current: &CurrentClusters<'a>,
        failover: Option<&'a ObjectFailover<'a>>,
    ) -> Selection {
        let stays = self.selected(fleet, request, current, failover, Departure::default());
        let cause = |name: &&'a str| {
            let lost = failover.and_then(|failover| failover.cause(name));
            Some((*name, lost.or_else(|| fleet.drain_of(name).map(LeaveCause::Drain))?))
        };
        let causes: BTreeMap<&str, LeaveCause> = current.keys().filter_map(cause).collect();
        let mut selection = if causes.keys().any(|name| stays.runs_in(name)) {
            self.leaving(fleet, request, current, failover, &causes, stays)
        } else if let Some((failover, home)) = failover.and_then(|failover| Some((failover, failover.home()?))) {
            self.returning(fleet, request, current, failover, home, stays)
        } else {
            stays
        };
        if let Some(obstacle) = MoveObstacle::of(request.object) {
            selection.hold(fleet, request, current, &obstacle);
        }
        selection.keep_needed(fleet, request.object, current);
        selection.note_returns(failover);
        selection
    }

    /// Returns the clusters of an object without those that it has to leave, or those in which it `stays` if it cannot move, or if it is not its turn.
    fn leaving<'a>(
        &'a self,
        fleet: &'a FleetState,
        request: &DecisionRequest<'_>,
        current: &CurrentClusters<'a>,
        failover: Option<&'a ObjectFailover<'a>>,
        causes: &BTreeMap<&'a str, LeaveCause>,
        stays: Selection,
    ) -> Selection {
        let home = failover.and_then(ObjectFailover::home);
        let departure = Departure { from: causes.keys().copied().collect(), home };
        let left = self.selected(fleet, request, current, failover, departure);
        let no_other = left.clusters.is_empty().then_some(MoveObstacle::NoOtherCluster);
        let no_room = || Some(MoveObstacle::NoRoomIn(fleet.overfilled(request, &left.clusters)?.name.clone()));
        if let Some(obstacle) = MoveObstacle::of(request.object).or(no_other).or_else(no_room) {
            return stays.stuck(&left, causes, &obstacle);
        }
        let waits = fleet.without_turn(request.object, causes);
        if !waits.is_empty() {
            return Selection { waits, ..stays };
        }
        let lost = causes.iter().filter(|(_, cause)| matches!(cause, LeaveCause::Lost { .. }));
        Selection { left: lost.map(|(name, _)| (*name).to_owned()).collect(), ..left }
    }

    /// Returns the clusters of an object that returns to `home`, or those in which it `stays` if `home` cannot run it, or if it is not its turn.
    fn returning<'a>(
        &'a self,
        fleet: &'a FleetState,
        request: &DecisionRequest<'_>,
        current: &CurrentClusters<'a>,
        failover: &'a ObjectFailover<'a>,
        home: &'a str,
        mut stays: Selection,
    ) -> Selection {
        let from: Vec<&str> = current.keys().copied().filter(|name| *name != home).collect();
        let cause = LeaveCause::Return { max_moves: failover.policy.max_moves };
        let causes = from.iter().map(|name| (*name, cause)).collect();
        let departure = Departure { from, home: Some(home) };
        let mut returned = self.selected(fleet, request, current, Some(failover), departure);
        if !returned.runs_in(home) || MoveObstacle::of(request.object).is_some() {
            let verdict = returned.verdicts.remove(home).filter(|verdict| !verdict.runs() && !stays.runs_in(home));
            stays.verdicts.extend(verdict.map(|verdict| (home.to_owned(), verdict)));
            return stays;
        }
        let waits = fleet.without_turn(request.object, &causes);
        if waits.is_empty() { returned } else { Selection { waits, ..stays } }
    }
}
