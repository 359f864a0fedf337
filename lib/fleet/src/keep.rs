//! An object stays where it is, although nothing selects it, or it is not known what does.

use alloc::collections::BTreeMap;

use crate::{
    DecisionRequest, DivisionPart, FleetState, KeepReason, LeaveCause, MoveObstacle, PlacedCluster, PlacementDecision,
    PlacementOutcome, PlacementSpec, PlacementVerdict, Rejection, RunReason, divide, verdict::rendered,
};

/// Returns the decision to keep a Placement. If the object asks for another number of replicas, or one of its clusters was removed from the fleet, its
/// clusters get the replicas in their proportion. A cluster that is being drained keeps the object, and the reason says so.
pub(crate) fn keep(fleet: &FleetState, request: &DecisionRequest<'_>, reason: KeepReason) -> PlacementDecision {
    let changed = request.current.and_then(|current| changed(fleet, request, current));
    let Some(mut placement) = changed else {
        return PlacementDecision::without_choice(PlacementOutcome::Keep(reason));
    };
    let verdicts = verdicts(fleet, &placement);
    placement.reasons = rendered(&verdicts);
    let policy = placement.policy.clone();
    PlacementDecision { policy, verdicts, ..PlacementDecision::without_choice(PlacementOutcome::Place(placement)) }
}

fn changed(fleet: &FleetState, request: &DecisionRequest<'_>, current: &PlacementSpec) -> Option<PlacementSpec> {
    let mut placement = PlacementSpec { object: request.object.reference.clone(), ..current.clone() };
    placement.clusters.retain(|cluster| !fleet.removed.contains(&cluster.name));
    let has_lost = placement.clusters.len() < current.clusters.len();
    let is_drained = placement.clusters.iter().any(|cluster| fleet.drain_of(&cluster.name).is_some());
    let replicas = rescaled(request, &placement.clusters);
    let before = placement.clusters.clone();
    fleet.note_delegation(&mut placement.clusters);
    let is_delegated_as_before = placement.clusters == before;
    if replicas.is_none() && !has_lost && is_delegated_as_before && is_drained == current.stuck().is_some() {
        return None;
    }
    for (cluster, replicas) in placement.clusters.iter_mut().zip(replicas.into_iter().flatten()) {
        cluster.replicas = Some(replicas);
    }
    Some(placement)
}

/// Returns the replicas of each cluster if they are divided, and their sum is not what the object asks for.
pub(crate) fn rescaled(request: &DecisionRequest<'_>, clusters: &[PlacedCluster]) -> Option<Vec<u32>> {
    let total = request.object.replicas().filter(|_| !request.is_autoscaled)?;
    let divided: Option<Vec<u32>> = clusters.iter().map(|cluster| cluster.replicas).collect();
    let divided = divided.filter(|divided| !divided.is_empty())?;
    let is_whole = divided.iter().map(|replicas| u64::from(*replicas)).sum::<u64>() == u64::from(total);
    let parts: Vec<DivisionPart> =
        divided.into_iter().map(|current| DivisionPart { weight: current, current }).collect();
    (!is_whole).then(|| divide(total, &parts))
}

fn verdicts(fleet: &FleetState, placement: &PlacementSpec) -> BTreeMap<String, PlacementVerdict> {
    let others = fleet.clusters.keys().map(|name| (name.clone(), PlacementVerdict::Rejected(Rejection::Kept)));
    let mut verdicts: BTreeMap<String, PlacementVerdict> = others.collect();
    let total = placement.clusters.iter().filter_map(|cluster| cluster.replicas).sum();
    verdicts.extend(placement.clusters.iter().map(|cluster| {
        let reason = match (fleet.drain_of(&cluster.name), cluster.replicas) {
            (Some(drain), _) => {
                RunReason::CannotMove { cause: LeaveCause::Drain(drain), obstacle: MoveObstacle::NotSelected }
            }
            (None, Some(replicas)) => RunReason::Divided { replicas, total },
            (None, None) => RunReason::Stays,
        };
        (cluster.name.clone(), PlacementVerdict::Runs(reason))
    }));
    verdicts
}
