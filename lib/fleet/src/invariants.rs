//! Checks decisions: one function for each invariant.

use core::fmt;

use crate::{
    CandidateCluster, DecisionRequest, ExistingWork, FailoverRecovery, FleetState, LeaveCause, MoveObstacle,
    ObjectDemand, PlacedCluster, PlacementDecision, PlacementOutcome, PlacementSpec, PlacementVerdict, PodCount,
    Rejection, ResourceAmounts, ScoreStep, WorkOrder, WorkPlan, WorkRemoval, decide, placement_link,
};

/// An invariant that a decision breaks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacementViolation {
    /// The invariant.
    pub invariant: &'static str,
    /// What breaks it.
    pub what: String,
}

impl fmt::Display for PlacementViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.invariant, self.what)
    }
}

fn violation(invariant: &'static str, what: impl Into<String>) -> PlacementViolation {
    PlacementViolation { invariant, what: what.into() }
}

/// Checks a decision.
#[must_use]
pub fn check_decision(
    fleet: &FleetState,
    request: &DecisionRequest<'_>,
    decision: &PlacementDecision,
) -> Vec<PlacementViolation> {
    let PlacementOutcome::Place(placement) = &decision.outcome else { return unknown_is_kept(request, decision) };
    let mut all = sum_is_kept(request, placement);
    all.extend(each_cluster_once(placement));
    all.extend(clusters_are_allowed(fleet, request, placement));
    all.extend(no_delegated_cluster_has_a_part(fleet, request, placement));
    all.extend(delegation_is_recorded(fleet, placement));
    all.extend(the_pinned_stay(fleet, request, decision));
    all.extend(it_fits(fleet, request, placement));
    all.extend(moves_are_paced(fleet, request, placement, decision));
    all.extend(failover_is_patient(fleet, request, placement, decision));
    all.extend(the_lost_are_remembered(fleet, request, placement, decision));
    all.extend(what_cannot_move_stays(fleet, request, placement));
    all.extend(what_is_needed_stays(fleet, request, placement));
    all.extend(every_cluster_has_a_reason(fleet, decision));
    all.extend(nothing_is_lost(fleet, request, placement));
    all.extend(it_is_settled(fleet, request, placement));
    all
}

/// The replicas of a divided object are those that it asks for: no fewer and no more.
fn sum_is_kept(request: &DecisionRequest<'_>, placement: &PlacementSpec) -> Vec<PlacementViolation> {
    let divided: Vec<u64> = placement.clusters.iter().filter_map(|cluster| cluster.replicas).map(u64::from).collect();
    let asked = request.object.replicas().map(u64::from);
    let sum: u64 = divided.iter().sum();
    let is_whole = divided.is_empty() || (divided.len() == placement.clusters.len() && Some(sum) == asked);
    if is_whole { Vec::new() } else { vec![violation("sum is kept", format!("{sum} of {asked:?} replicas"))] }
}

/// No cluster is named twice.
fn each_cluster_once(placement: &PlacementSpec) -> Vec<PlacementViolation> {
    let names: alloc::collections::BTreeSet<&str> =
        placement.clusters.iter().map(|cluster| cluster.name.as_str()).collect();
    let is_once = names.len() == placement.clusters.len();
    if is_once { Vec::new() } else { vec![violation("each cluster once", format!("{:?}", placement.clusters))] }
}

/// A cluster that is new for the object is registered, ready, and neither cordoned nor being removed.
fn clusters_are_allowed(
    fleet: &FleetState,
    request: &DecisionRequest<'_>,
    placement: &PlacementSpec,
) -> Vec<PlacementViolation> {
    let is_allowed = |name: &str| {
        fleet.clusters.get(name).is_some_and(|cluster| {
            let is_ready = cluster.ready.as_ref().is_some_and(|ready| ready.status == "True");
            is_ready && !cluster.is_cordoned && cluster.drain.is_none() && !cluster.is_leaving
        })
    };
    new_clusters(request, placement)
        .filter(|cluster| !is_allowed(&cluster.name))
        .map(|cluster| violation("clusters are allowed", cluster.name.clone()))
        .collect()
}

/// A cluster that delegates objects to another orchestrator gets none that is spread.
fn no_delegated_cluster_has_a_part(
    fleet: &FleetState,
    request: &DecisionRequest<'_>,
    placement: &PlacementSpec,
) -> Vec<PlacementViolation> {
    let is_annotated = request.object.named_cluster().is_none() && !request.object.spread_onto().is_empty();
    if !is_annotated && !fleet.policies.is_spreading(placement.policy.as_deref()) {
        return Vec::new();
    }
    let is_delegated = |name: &str| fleet.clusters.get(name).is_some_and(|cluster| cluster.is_delegated);
    new_clusters(request, placement)
        .filter(|cluster| is_delegated(&cluster.name))
        .map(|cluster| violation("no delegated cluster has a part", cluster.name.clone()))
        .collect()
}

/// A Placement states of each of its clusters whether another orchestrator submits the object there.
fn delegation_is_recorded(fleet: &FleetState, placement: &PlacementSpec) -> Vec<PlacementViolation> {
    let differs = |placed: &&PlacedCluster| {
        fleet.clusters.get(&placed.name).is_some_and(|cluster| cluster.is_delegated != placed.delegated)
    };
    placement
        .clusters
        .iter()
        .filter(differs)
        .map(|placed| violation("delegation is recorded", placed.name.clone()))
        .collect()
}

/// Failover moves nothing away from a cluster whose agent has `--rescheduling-enabled=false`. What left it before is not in it any more.
fn the_pinned_stay(
    fleet: &FleetState,
    request: &DecisionRequest<'_>,
    decision: &PlacementDecision,
) -> Vec<PlacementViolation> {
    let has_left =
        |name: &str| request.current.is_some_and(|current| current.lost_clusters.iter().any(|lost| lost == name));
    let is_wrong = |name: &str, cause: &LeaveCause| match cause {
        LeaveCause::Drain(_) | LeaveCause::Deselected => false,
        LeaveCause::Lost { .. } | LeaveCause::Return { .. } => is_pinned(fleet, name) && !has_left(name),
    };
    let left = left(fleet, request, decision).filter(|(name, cause)| is_wrong(name, cause));
    left.map(|(name, _)| violation("the pinned stay", name)).collect()
}

/// A cluster that was chosen for an object, and that does not run it yet, has as much of each resource as all of its pods request, unless it adds nodes
/// and no other cluster was found to have room.
fn it_fits(fleet: &FleetState, request: &DecisionRequest<'_>, placement: &PlacementSpec) -> Vec<PlacementViolation> {
    let ([only], Some(_)) = (placement.clusters.as_slice(), &placement.policy) else { return Vec::new() };
    let is_current =
        request.current.is_some_and(|current| current.clusters.iter().any(|cluster| cluster.name == only.name));
    let is_chosen = fleet.policies.is_choosing(placement.policy.as_deref());
    let demand = fleet.pod_kinds.demand(&request.object.manifest);
    if is_current || !is_chosen || demand.is_empty() {
        return Vec::new();
    }
    let is_growing = placement.reasons.iter().any(|reason| reason.cluster == only.name && reason.reason == "Grows");
    if is_growing {
        return grows(fleet, &only.name, placement, &demand);
    }
    let Some(room) = fleet.capacity.room(&only.name) else {
        return vec![violation("it fits", format!("it is not known what {} has room for", only.name))];
    };
    let mut needed = ResourceAmounts::default();
    for pods in demand.pods() {
        match pods.count {
            PodCount::Number(number) => needed.add(&pods.requests.times(number)),
            PodCount::EachNode => (),
        }
    }
    if needed.exceeds(&room.total()) {
        return vec![violation("it fits", format!("{} lacks {}", only.name, needed.minus(&room.total()).readable()))];
    }
    Vec::new()
}

/// A cluster that adds nodes is chosen only if those that were rejected for their room have none.
fn grows(fleet: &FleetState, name: &str, placement: &PlacementSpec, demand: &ObjectDemand) -> Vec<PlacementViolation> {
    let full = placement.reasons.iter().filter(|reason| matches!(reason.reason.as_str(), "NoRoom" | "UnknownRoom"));
    let has_room = full.map(|reason| &reason.cluster).find(|cluster| fleet.has_no_room(cluster, demand).is_none());
    let outranked = placement.reasons.iter().filter(|reason| reason.reason == "Outranked");
    let adds_nodes = |name: &str| fleet.clusters.get(name).is_some_and(|cluster| cluster.is_autoscaled);
    let other = outranked.map(|reason| &reason.cluster).find(|cluster| !adds_nodes(cluster));
    if has_room.is_some() || other.is_some() || !adds_nodes(name) {
        return vec![violation("it grows only if it has to", name.to_owned())];
    }
    Vec::new()
}

/// The clusters of a Placement that the object did not have before.
fn new_clusters<'a>(
    request: &'a DecisionRequest<'_>,
    placement: &'a PlacementSpec,
) -> impl Iterator<Item = &'a PlacedCluster> {
    let current = request.current.map(|placement| placement.clusters.as_slice()).unwrap_or_default();
    placement.clusters.iter().filter(|cluster| !current.iter().any(|known| known.name == cluster.name))
}

fn is_pinned(fleet: &FleetState, cluster: &str) -> bool {
    fleet.clusters.get(cluster).is_some_and(|cluster| cluster.is_pinned)
}

/// The clusters that an object leaves for a cause.
fn left<'a>(
    fleet: &'a FleetState,
    request: &DecisionRequest<'a>,
    decision: &'a PlacementDecision,
) -> impl Iterator<Item = (&'a str, LeaveCause)> {
    let current = request.current.into_iter().flat_map(|placement| &placement.clusters);
    current.filter_map(|placed| {
        let name = placed.name.as_str();
        let failover = || fleet.policies.failover(decision.policy.as_deref()?);
        let cause = match decision.verdicts.get(name)? {
            PlacementVerdict::Rejected(Rejection::Draining) => LeaveCause::Drain(fleet.drain_of(name)?),
            // While failover is paused, and in a pinned cluster, only a drain moves it.
            PlacementVerdict::Rejected(Rejection::Lost { .. })
                if (fleet.is_failover_paused() || is_pinned(fleet, name)) && fleet.drain_of(name).is_some() =>
            {
                LeaveCause::Drain(fleet.drain_of(name)?)
            }
            PlacementVerdict::Rejected(Rejection::Lost { since }) => {
                LeaveCause::Lost { since: *since, max_moves: failover()?.max_moves }
            }
            PlacementVerdict::Outranked { by: ScoreStep::Home, .. } => {
                LeaveCause::Return { max_moves: failover()?.max_moves }
            }
            PlacementVerdict::Runs(_) | PlacementVerdict::Rejected(_) | PlacementVerdict::Outranked { .. } => {
                return None;
            }
        };
        Some((name, cause))
    })
}

/// An object leaves a cluster that it has to leave only if nothing would be lost. An object with pods leaves it only while fewer others than allowed are
/// leaving. If its other clusters run it as before, nothing moves.
fn moves_are_paced(
    fleet: &FleetState,
    request: &DecisionRequest<'_>,
    placement: &PlacementSpec,
    decision: &PlacementDecision,
) -> Vec<PlacementViolation> {
    let current = || request.current.into_iter().flat_map(|current| &current.clusters);
    let is_more = |placed: &PlacedCluster| {
        let before = current().find(|before| before.name == placed.name);
        before.is_none_or(|before| placed.replicas > before.replicas)
    };
    if !placement.clusters.iter().any(is_more) {
        return Vec::new();
    }
    let link = placement_link(&request.object.reference);
    let has_pods = fleet.pod_kinds.has_pods(&request.object.manifest);
    let is_early = |name: &str, cause: &LeaveCause| {
        has_pods && fleet.activity.get(name).is_some_and(|activity| activity.is_full(&link, cause))
    };
    let is_bound = MoveObstacle::of(request.object).is_some();
    let left = left(fleet, request, decision).filter(|(name, cause)| is_bound || is_early(name, cause));
    left.map(|(name, _)| violation("moves are paced", name)).collect()
}

/// An object leaves a cluster as lost, or returns to one that it left, only if the condition `Ready` of the cluster has been as it is for the time that
/// the policy states, and not while most clusters are not ready.
fn failover_is_patient(
    fleet: &FleetState,
    request: &DecisionRequest<'_>,
    placement: &PlacementSpec,
    decision: &PlacementDecision,
) -> Vec<PlacementViolation> {
    let remembered =
        |name: &str| request.current.is_some_and(|current| current.lost_clusters.iter().any(|it| it == name));
    let runs = |placement: Option<&PlacementSpec>, name: &str| {
        placement.is_some_and(|placement| placement.clusters.iter().any(|placed| placed.name == name))
    };
    let is_due = |name: &str, is_ready: bool| {
        let failover = decision.policy.as_deref().and_then(|policy| fleet.policies.failover(policy));
        let changed = fleet.clusters.get(name).filter(|cluster| cluster.is_ready() == is_ready);
        let changed = changed.and_then(CandidateCluster::changed);
        failover.zip(changed).is_some_and(|(failover, changed)| {
            let seconds = fleet.clock.now.duration_since(changed).as_secs();
            u64::try_from(seconds).is_ok_and(|seconds| seconds >= failover.after.seconds()) && !fleet.is_disrupted()
        })
    };
    let mut all = Vec::new();
    for (name, cause) in left(fleet, request, decision) {
        let is_early = match cause {
            LeaveCause::Lost { .. } => !remembered(name) && !is_due(name, false),
            LeaveCause::Return { .. } => {
                !placement.clusters.iter().any(|home| remembered(&home.name) && is_due(&home.name, true))
            }
            LeaveCause::Drain(_) | LeaveCause::Deselected => false,
        };
        if is_early {
            all.push(violation("failover is patient", format!("{name}: {cause:?}")));
        }
    }
    let is_divided = placement.clusters.iter().any(|placed| placed.replicas.is_some());
    let has_failover = decision.policy.as_deref().is_some_and(|policy| fleet.policies.failover(policy).is_some());
    let returned = placement.clusters.iter().map(|placed| placed.name.as_str());
    let returned =
        returned.filter(|name| remembered(name) && !runs(request.current, name) && is_divided && has_failover);
    all.extend(returned.filter(|name| !is_due(name, true)).map(|name| violation("failover is patient", name)));
    all
}

/// A Placement remembers the clusters that its object left because they were lost, if the object returns.
fn the_lost_are_remembered(
    fleet: &FleetState,
    request: &DecisionRequest<'_>,
    placement: &PlacementSpec,
    decision: &PlacementDecision,
) -> Vec<PlacementViolation> {
    let failover = decision.policy.as_deref().and_then(|policy| fleet.policies.failover(policy));
    let is_divided = placement.clusters.iter().any(|placed| placed.replicas.is_some());
    let returns = is_divided || failover.is_some_and(|failover| failover.recovery == FailoverRecovery::Return);
    let lost = left(fleet, request, decision).filter(|(_, cause)| matches!(cause, LeaveCause::Lost { .. }));
    let has_home = !is_divided && request.current.is_some_and(|current| !current.lost_clusters.is_empty());
    let is_remembered = |name: &str| placement.lost_clusters.iter().any(|lost| lost == name);
    let forgotten = lost.filter(|(name, _)| returns && !has_home && !is_remembered(name));
    forgotten.map(|(name, _)| violation("the lost are remembered", name)).collect()
}

/// The clusters of a Placement that the object had before and has no more, without those that people removed from the fleet.
fn dropped_clusters<'a>(
    fleet: &'a FleetState,
    request: &'a DecisionRequest<'_>,
    placement: &'a PlacementSpec,
) -> impl Iterator<Item = &'a str> {
    let current = request.current.into_iter().flat_map(|current| &current.clusters).map(|placed| placed.name.as_str());
    current.filter(|name| placement.clusters.iter().all(|placed| placed.name != *name) && !fleet.is_removed(name))
}

/// An object that would lose data or begin again leaves no cluster, whatever changes, unless people remove the cluster from the fleet.
fn what_cannot_move_stays(
    fleet: &FleetState,
    request: &DecisionRequest<'_>,
    placement: &PlacementSpec,
) -> Vec<PlacementViolation> {
    let is_bound = MoveObstacle::of(request.object).is_some();
    let left = dropped_clusters(fleet, request, placement).filter(|_| is_bound);
    left.map(|name| violation("what cannot move stays", name)).collect()
}

/// An object without pods does not leave a cluster, unless people remove it from the fleet, while something there may need it.
fn what_is_needed_stays(
    fleet: &FleetState,
    request: &DecisionRequest<'_>,
    placement: &PlacementSpec,
) -> Vec<PlacementViolation> {
    let left = dropped_clusters(fleet, request, placement).filter(|name| fleet.needs(name, request.object));
    left.map(|name| violation("what is needed stays", name)).collect()
}

/// There is a verdict on every cluster, and the clusters that run the object are those with such a verdict.
fn every_cluster_has_a_reason(fleet: &FleetState, decision: &PlacementDecision) -> Vec<PlacementViolation> {
    let PlacementOutcome::Place(placement) = &decision.outcome else { return Vec::new() };
    let silent = fleet.clusters.keys().filter(|name| !decision.verdicts.contains_key(*name));
    let mut all: Vec<PlacementViolation> =
        silent.map(|name| violation("every cluster has a reason", name.clone())).collect();
    for (name, verdict) in &decision.verdicts {
        let runs = placement.clusters.iter().any(|cluster| cluster.name == *name);
        if runs != verdict.runs() || verdict.to_string().is_empty() {
            all.push(violation("every cluster has a reason", format!("{name}: {verdict:?}")));
        }
    }
    all
}

/// An object that runs in a cluster which was not removed is never left without a cluster.
fn nothing_is_lost(
    fleet: &FleetState,
    request: &DecisionRequest<'_>,
    placement: &PlacementSpec,
) -> Vec<PlacementViolation> {
    let runs = request
        .current
        .is_some_and(|current| current.clusters.iter().any(|cluster| !fleet.removed.contains(&cluster.name)));
    if runs && placement.clusters.is_empty() {
        vec![violation("nothing is lost", "no cluster is left")]
    } else {
        Vec::new()
    }
}

/// Deciding again on the result changes nothing.
fn it_is_settled(
    fleet: &FleetState,
    request: &DecisionRequest<'_>,
    placement: &PlacementSpec,
) -> Vec<PlacementViolation> {
    let again = decide(fleet, &DecisionRequest { current: Some(placement), ..*request });
    match again.outcome {
        PlacementOutcome::Keep(_) => Vec::new(),
        changed @ (PlacementOutcome::Place(_) | PlacementOutcome::NotSelected) => {
            vec![violation("a decision is settled", format!("{placement:?} {changed:?}"))]
        }
    }
}

/// While it is not known which policy decides, nothing changes, and no cluster is judged.
fn unknown_is_kept(request: &DecisionRequest<'_>, decision: &PlacementDecision) -> Vec<PlacementViolation> {
    let is_lost = decision.outcome == PlacementOutcome::NotSelected && request.current.is_some();
    if is_lost { vec![violation("unknown is kept", "the Placement is forgotten")] } else { Vec::new() }
}

/// A Work of an object that exists is deleted only if its Placement names clusters, and not the Work's own, and each of these has applied the object. If
/// the Work has pods that are ready, those of the others are ready, too. `existing` are the Works of the object.
#[must_use]
pub fn check_works(
    placement: Option<&PlacementSpec>,
    is_deleted: bool,
    existing: &[ExistingWork],
    plan: &WorkPlan,
) -> Vec<PlacementViolation> {
    let of = |cluster: &str| existing.iter().find(|work| work.cluster == cluster);
    let is_ordered = |cluster: &str, why: WorkRemoval| match why {
        WorkRemoval::ObjectDeleted => is_deleted,
        WorkRemoval::Moved => placement.is_some_and(|placement| {
            let is_serving = of(cluster).is_some_and(|work| work.pods.is_serving);
            let has_taken_over = |name: &str| {
                name != cluster && of(name).is_some_and(|work| work.is_applied && (work.pods.is_ready || !is_serving))
            };
            !placement.clusters.is_empty() && placement.clusters.iter().all(|placed| has_taken_over(&placed.name))
        }),
    };
    let deletions = plan.orders.iter().filter_map(|order| match order {
        WorkOrder::Delete { cluster, why, .. } if !is_ordered(cluster, *why) => Some((cluster, why)),
        WorkOrder::Delete { .. } | WorkOrder::Create(_) | WorkOrder::Update(_) => None,
    });
    deletions.map(|(cluster, why)| violation("absence deletes nothing", format!("{cluster}: {why:?}"))).collect()
}
