//! Decides in which clusters an object runs.
//!
//! 1. An annotation decides, or else the policy with the highest priority, or else nothing changes.
//! 2. Filters reject clusters. A cluster that runs the object already stays even if it is cordoned, tainted or unreachable. One that is being drained,
//!    or that was lost, stays only if the object cannot move, or if it is not its turn.
//! 3. If a policy lets one cluster be chosen, and the object does not run in any of them yet, those without room for all of it are rejected. If none has
//!    room, those that add nodes are left.
//! 4. The best cluster is chosen, or all of them if the object is spread.
//! 5. Replicas are divided.
//! 6. An object that would lose data or begin again stays in all of its clusters, unless one is removed from the fleet.
//! 7. An object without pods stays in a cluster for as long as something there may need it.
//! 8. If no cluster is left, an object that runs somewhere stays there.

mod moves;

use alloc::collections::{BTreeMap, BTreeSet};

use self::moves::{Departure, Selection};
use crate::{
    CandidateCluster, CapacityLedger, ClusterActivity, DivisionPart, FieldOverride, FleetClock, FleetObject,
    LeaveCause, ObjectDemand, PercentageShare, PlacedCluster, PlacementReason, PlacementSpec, PlacementVerdict,
    PodKinds, PolicySet, Rejection, RunReason, SpreadMode, TopologyOverrides, UnknownPolicy,
    candidate::{ClusterAsk, deciding_step, rejection, scores},
    divide,
    failover::ObjectFailover,
    keep::keep,
    names::NAME_LABEL,
    policies::{ParsedPolicy, is_group},
    verdict::{are_same, rendered},
};

/// What is known of a fleet.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FleetState {
    /// The clusters, by name.
    pub clusters: BTreeMap<String, CandidateCluster>,
    /// The clusters that were removed from the fleet: the API server reported that they are deleted. A cluster that is neither here nor in `clusters`
    /// keeps what it runs.
    pub removed: BTreeSet<String>,
    /// The policies.
    pub policies: PolicySet,
    /// The labels of namespaces.
    pub namespaces: BTreeMap<String, BTreeMap<String, String>>,
    /// What each cluster has room for, without what was decided already.
    pub capacity: CapacityLedger,
    /// What goes on in each cluster while objects move.
    pub activity: BTreeMap<String, ClusterActivity>,
    /// Where the objects of each kind have their pods.
    pub pod_kinds: PodKinds,
    /// The time.
    pub clock: FleetClock,
}

impl FleetState {
    /// Whether at most the time, the capacity of clusters and what goes on in them differ. They are no reason to decide on what is placed already:
    /// [`Self::next_deadline`] is the next time that is.
    #[must_use]
    pub fn is_same_but_capacity(&self, other: &Self) -> bool {
        self.clusters == other.clusters
            && self.removed == other.removed
            && self.policies == other.policies
            && self.namespaces == other.namespaces
            && self.pod_kinds == other.pod_kinds
    }

    /// Whether a cluster was removed from the fleet, or is being removed. People order that, so what runs there leaves.
    pub(crate) fn is_removed(&self, cluster: &str) -> bool {
        self.removed.contains(cluster) || self.clusters.get(cluster).is_some_and(|cluster| cluster.is_leaving)
    }

    /// Notes for each cluster whether another orchestrator submits objects there. A cluster that is not known stays as it was.
    pub(crate) fn note_delegation(&self, clusters: &mut [PlacedCluster]) {
        for placed in clusters {
            if let Some(cluster) = self.clusters.get(&placed.name) {
                placed.delegated = cluster.is_delegated;
            }
        }
    }
}

/// The inputs of a decision about one object.
#[derive(Debug, Clone, Copy)]
pub struct DecisionRequest<'a> {
    /// The object.
    pub object: &'a FleetObject,
    /// Whether a HorizontalPodAutoscaler scales the object, so that no replicas are divided.
    pub is_autoscaled: bool,
    /// The current Placement.
    pub current: Option<&'a PlacementSpec>,
}

/// What was decided on an object.
#[derive(Debug, Clone, PartialEq)]
pub struct PlacementDecision {
    /// What to do.
    pub outcome: PlacementOutcome,
    /// The policy that decided. It is `None` if annotations did, or nothing.
    pub policy: Option<String>,
    /// The policies that select the object as well, and lost.
    pub ignored: Vec<String>,
    /// What was decided on each cluster.
    pub verdicts: BTreeMap<String, PlacementVerdict>,
    /// The clusters that the object can leave once fewer other objects are leaving them, and why it has to.
    pub waits: BTreeMap<String, LeaveCause>,
}

/// What to do with the Placement of an object.
#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "there is one at a time")]
pub enum PlacementOutcome {
    /// Nothing selects the object, and it has no Placement.
    NotSelected,
    /// The Placement is to be written.
    Place(PlacementSpec),
    /// The Placement, or that there is none, stays as it is.
    Keep(KeepReason),
}

/// Why a Placement stays as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KeepReason {
    /// It is as decided.
    Settled,
    /// No policy and no annotation selects the object any more.
    NoLongerSelected,
    /// No other cluster can run the object, so it stays where it is.
    NoAlternative,
    /// It is not known which policy decides.
    UnknownPolicy(UnknownPolicy),
}

/// Returns where an object runs.
#[must_use]
pub fn decide(fleet: &FleetState, request: &DecisionRequest<'_>) -> PlacementDecision {
    let object = request.object;
    if let Some(cluster) = object.named_cluster() {
        let choice = Choice { named: Some(vec![cluster]), policy: None, spread: None };
        return choice.decide(fleet, request, Vec::new());
    }
    let names = object.spread_onto();
    if !names.is_empty() {
        let choice = Choice { named: Some(names), policy: None, spread: Some(Spread::BY_NAME) };
        return choice.decide(fleet, request, Vec::new());
    }
    let selecting = match fleet.policies.selecting(object, &fleet.namespaces) {
        Ok(selecting) => selecting,
        Err(unknown) => return keep(fleet, request, KeepReason::UnknownPolicy(unknown)),
    };
    let Some(policy) = selecting.winner else {
        return match request.current {
            Some(_) => keep(fleet, request, KeepReason::NoLongerSelected),
            None => not_selected(),
        };
    };
    let ignored = selecting.losers.into_iter().map(str::to_owned).collect();
    let spread = policy.spec.spread_constraints.as_ref().map(|constraints| Spread {
        key: &constraints.topology_key,
        mode: constraints.spread_mode,
        shares: &constraints.percentage_split,
        overrides: &constraints.overrides,
    });
    Choice { named: None, policy: Some(policy), spread }.decide(fleet, request, ignored)
}

fn not_selected() -> PlacementDecision {
    PlacementDecision::without_choice(PlacementOutcome::NotSelected)
}

impl PlacementDecision {
    /// Returns a decision for which no clusters were compared.
    pub(crate) fn without_choice(outcome: PlacementOutcome) -> Self {
        Self { outcome, policy: None, ignored: Vec::new(), verdicts: BTreeMap::new(), waits: BTreeMap::new() }
    }
}

/// Which clusters are wanted.
struct Choice<'a> {
    named: Option<Vec<&'a str>>,
    policy: Option<&'a ParsedPolicy>,
    spread: Option<Spread<'a>>,
}

/// How an object is spread.
#[derive(Clone, Copy)]
struct Spread<'a> {
    key: &'a str,
    mode: SpreadMode,
    shares: &'a [PercentageShare],
    overrides: &'a [TopologyOverrides],
}

impl Spread<'_> {
    /// Evenly over clusters.
    const BY_NAME: Self = Spread { key: NAME_LABEL, mode: SpreadMode::Divide, shares: &[], overrides: &[] };
}

impl Choice<'_> {
    fn decide(&self, fleet: &FleetState, request: &DecisionRequest<'_>, ignored: Vec<String>) -> PlacementDecision {
        let current = current_clusters(request.current);
        let failover = self.failover(fleet, request);
        let selection = self.selection(fleet, request, &current, failover.as_ref());
        let Selection { mut clusters, verdicts, demand, left, waits } = selection;
        fleet.note_delegation(&mut clusters);
        let policy = self.policy.map(|policy| policy.name.clone());
        if clusters.is_empty() && request.current.is_some_and(|current| runs_somewhere(fleet, current)) {
            return match keep(fleet, request, KeepReason::NoAlternative) {
                kept @ PlacementDecision { outcome: PlacementOutcome::Place(_), .. } => kept,
                kept => PlacementDecision { policy, ignored, verdicts, ..kept },
            };
        }
        let needs = demand.filter(|_| clusters.is_empty()).map(|demand| demand.readable());
        let lost_clusters = failover.as_ref().map(|failover| failover.remembered(&clusters, &left));
        let placement = PlacementSpec {
            failover: failover.as_ref().map(|failover| *failover.policy),
            clusters,
            lost_clusters: lost_clusters.unwrap_or_default(),
            needs,
            reasons: rendered(&verdicts),
            ..self.placement(request)
        };
        let is_paused = failover.as_ref().is_some_and(|failover| failover.is_paused);
        PlacementDecision { outcome: outcome(request, placement, is_paused), policy, ignored, verdicts, waits }
    }

    /// Returns the failover of an object. An annotation names its clusters, and what runs in every cluster has a copy elsewhere: it has none.
    fn failover<'a>(&'a self, fleet: &'a FleetState, request: &DecisionRequest<'a>) -> Option<ObjectFailover<'a>> {
        let policy = self.policy?.spec.failover.as_ref()?;
        let is_divided = self.replicas_to_divide(request).is_some();
        if self.spread.is_some() && !is_divided {
            return None;
        }
        let left = request.current.into_iter().flat_map(|current| &current.lost_clusters).map(String::as_str);
        let left: Vec<&str> = left.filter(|name| fleet.clusters.contains_key(*name)).collect();
        let mut others = request.current.into_iter().flat_map(|current| &current.clusters);
        let is_pinned = !is_divided
            && others.any(|placed| {
                let cluster = fleet.clusters.get(&placed.name);
                left.first() != Some(&placed.name.as_str()) && cluster.is_some_and(|cluster| cluster.is_pinned)
            });
        Some(ObjectFailover { fleet, policy, is_divided, left, is_paused: fleet.is_failover_paused(), is_pinned })
    }

    /// Returns the clusters of an object, without those that it leaves.
    fn selected<'a>(
        &'a self,
        fleet: &'a FleetState,
        request: &DecisionRequest<'_>,
        current: &CurrentClusters<'a>,
        failover: Option<&'a ObjectFailover<'a>>,
        departure: Departure<'a>,
    ) -> Selection {
        let divided = self.replicas_to_divide(request);
        let Departure { from, home } = departure;
        let is_left = |cluster: &CandidateCluster| from.contains(&cluster.name.as_str());
        let mut ask = self.ask(divided.is_some());
        ask.failover = failover;
        ask.home = home;
        let kept: CurrentClusters<'_> =
            current.iter().filter(|(name, _)| !from.contains(*name)).map(|(&name, &placed)| (name, placed)).collect();
        let (mut candidates, mut verdicts) = self.filtered(fleet, &ask, &kept);
        let demand = self.demand_to_fit(fleet, request, &candidates, &kept);
        let mut growing = Vec::new();
        if let Some(demand) = &demand {
            growing.extend(candidates.iter().copied().filter(|cluster| cluster.is_autoscaled));
            candidates.retain(|cluster| is_left(cluster) || has_room(fleet, cluster, demand, &mut verdicts));
        }
        let clusters = match self.spread {
            None if candidates.is_empty() && !growing.is_empty() => choose_growing(&ask, &growing, &mut verdicts),
            None => choose(&ask, &candidates, &kept, &mut verdicts),
            Some(spread) => spread.place(&candidates, request.object, &kept, divided, &mut verdicts),
        };
        Selection { clusters, verdicts, demand, left: Vec::new(), waits: BTreeMap::new() }
    }

    /// Returns the replicas to divide, if any are.
    fn replicas_to_divide(&self, request: &DecisionRequest<'_>) -> Option<u32> {
        let is_divided = self.spread.is_some_and(|spread| spread.mode == SpreadMode::Divide);
        request.object.replicas().filter(|_| is_divided && !request.is_autoscaled)
    }

    /// Returns the pods that have to fit, if one cluster is to be chosen. An annotation and a policy that spreads name the clusters, whatever is free
    /// there. What runs already stays.
    fn demand_to_fit(
        &self,
        fleet: &FleetState,
        request: &DecisionRequest<'_>,
        candidates: &[&CandidateCluster],
        current: &CurrentClusters<'_>,
    ) -> Option<ObjectDemand> {
        let is_named = self.named.is_some() || self.spread.is_some();
        let stays = candidates.iter().any(|cluster| current.contains_key(cluster.name.as_str()));
        if is_named || stays || candidates.is_empty() {
            return None;
        }
        let demand = fleet.pod_kinds.demand(&request.object.manifest);
        (!demand.is_empty()).then_some(demand)
    }

    fn ask(&self, is_divided: bool) -> ClusterAsk<'_> {
        ClusterAsk {
            named: self.named.clone(),
            policy: self.policy,
            topology: self.spread.map(|spread| spread.key),
            shares: self.spread.filter(|_| is_divided).map_or(&[], |spread| spread.shares),
            failover: None,
            home: None,
        }
    }

    /// Returns the clusters that no filter rejects, and the verdicts on the others.
    fn filtered<'f>(
        &self,
        fleet: &'f FleetState,
        ask: &ClusterAsk<'_>,
        current: &CurrentClusters<'_>,
    ) -> (Vec<&'f CandidateCluster>, BTreeMap<String, PlacementVerdict>) {
        let unknown = self.named.iter().flatten().filter(|name| !fleet.clusters.contains_key(**name));
        let unknown = unknown.map(|name| (*name, Rejection::NotRegistered));
        let mut verdicts: BTreeMap<String, PlacementVerdict> =
            unknown.map(|(name, rejection)| (name.to_owned(), PlacementVerdict::Rejected(rejection))).collect();
        let mut candidates = Vec::new();
        for cluster in fleet.clusters.values() {
            let name = cluster.name.as_str();
            match rejection(ask, cluster, current.contains_key(name)) {
                Some(rejection) => drop(verdicts.insert(cluster.name.clone(), PlacementVerdict::Rejected(rejection))),
                None => candidates.push(cluster),
            }
        }
        (candidates, verdicts)
    }

    /// Returns a Placement without clusters.
    fn placement(&self, request: &DecisionRequest<'_>) -> PlacementSpec {
        let spec = self.policy.map(|policy| &policy.spec);
        PlacementSpec {
            object: request.object.reference.clone(),
            policy: self.policy.map(|policy| policy.name.clone()),
            conflict_resolution: spec.map(|spec| spec.conflict_resolution).unwrap_or_default(),
            drift: spec.map(|spec| spec.drift).unwrap_or_default(),
            failover: None,
            clusters: Vec::new(),
            lost_clusters: Vec::new(),
            needs: None,
            reasons: Vec::new(),
        }
    }
}

/// Returns what to do with a Placement. While failover is paused, it is not known whether an object that could not leave a lost cluster still has to, or
/// when one returns.
fn outcome(request: &DecisionRequest<'_>, mut placement: PlacementSpec, is_paused: bool) -> PlacementOutcome {
    // The reasons of a decision stay as long as the decision: a cluster that becomes ready or not ready would change every Placement otherwise.
    // Of an object without a cluster, or one that cannot leave a cluster, only what is free stays as it was then. The same holds for the reasons of
    // clusters to which an object may return.
    let of_lost = |reasons: &[PlacementReason]| -> Vec<PlacementReason> {
        let returns = |name: &String| {
            placement.lost_clusters.contains(name) && placement.clusters.iter().all(|placed| placed.name != *name)
        };
        reasons.iter().filter(|reason| returns(&reason.cluster)).cloned().collect()
    };
    let kept = request.current.filter(|current| {
        let was_stuck = current.stuck().is_some() && !is_paused;
        let is_pending = placement.clusters.is_empty() || placement.stuck().is_some() || was_stuck;
        let is_same = current.needs == placement.needs && are_same(&current.reasons, &placement.reasons);
        let is_lost_same = is_paused || are_same(&of_lost(&current.reasons), &of_lost(&placement.reasons));
        current.clusters == placement.clusters && is_lost_same && (!is_pending || is_same)
    });
    if let Some(current) = kept {
        placement.reasons.clone_from(&current.reasons);
    }
    match request.current {
        Some(current) if *current == placement => PlacementOutcome::Keep(KeepReason::Settled),
        Some(_) | None => PlacementOutcome::Place(placement),
    }
}

/// Whether a cluster has room for an object. If not, this is the verdict.
fn has_room(
    fleet: &FleetState,
    cluster: &CandidateCluster,
    demand: &ObjectDemand,
    verdicts: &mut BTreeMap<String, PlacementVerdict>,
) -> bool {
    let rejection = fleet.has_no_room(&cluster.name, demand);
    let has_room = rejection.is_none();
    verdicts.extend(rejection.map(|rejection| (cluster.name.clone(), PlacementVerdict::Rejected(rejection))));
    has_room
}

/// Whether a Placement has a cluster that was not removed.
fn runs_somewhere(fleet: &FleetState, current: &PlacementSpec) -> bool {
    current.clusters.iter().any(|cluster| !fleet.removed.contains(&cluster.name))
}

/// The clusters that run an object already, by name.
type CurrentClusters<'a> = BTreeMap<&'a str, &'a PlacedCluster>;

fn current_clusters(current: Option<&PlacementSpec>) -> CurrentClusters<'_> {
    let clusters = current.into_iter().flat_map(|placement| &placement.clusters);
    clusters.map(|placed| (placed.name.as_str(), placed)).collect()
}

/// Chooses one cluster.
fn choose(
    ask: &ClusterAsk<'_>,
    candidates: &[&CandidateCluster],
    current: &CurrentClusters<'_>,
    verdicts: &mut BTreeMap<String, PlacementVerdict>,
) -> Vec<PlacedCluster> {
    let scored = |cluster: &CandidateCluster| scores(ask, cluster, current.contains_key(cluster.name.as_str()));
    // Candidates are in the order of their names, and the first of equal ones is chosen.
    let Some(winner) = candidates.iter().min_by_key(|cluster| scored(cluster)) else { return Vec::new() };
    for cluster in candidates.iter().filter(|cluster| cluster.name != winner.name) {
        let by = deciding_step(scored(winner), scored(cluster));
        verdicts.insert(cluster.name.clone(), PlacementVerdict::Outranked { winner: winner.name.clone(), by });
    }
    let reason = match current.get(winner.name.as_str()) {
        Some(_) => RunReason::Stays,
        None => RunReason::Chosen { among: candidates.len() },
    };
    verdicts.insert(winner.name.clone(), PlacementVerdict::Runs(reason));
    vec![PlacedCluster { name: winner.name.clone(), ..PlacedCluster::default() }]
}

/// Chooses one of the clusters that add nodes, because no cluster has room.
fn choose_growing(
    ask: &ClusterAsk<'_>,
    growing: &[&CandidateCluster],
    verdicts: &mut BTreeMap<String, PlacementVerdict>,
) -> Vec<PlacedCluster> {
    let clusters = choose(ask, growing, &CurrentClusters::new(), verdicts);
    for placed in &clusters {
        verdicts.insert(placed.name.clone(), PlacementVerdict::Runs(RunReason::Grows));
    }
    clusters
}

impl Spread<'_> {
    /// Places an object in all candidates.
    fn place(
        &self,
        candidates: &[&CandidateCluster],
        object: &FleetObject,
        current: &CurrentClusters<'_>,
        divided: Option<u32>,
        verdicts: &mut BTreeMap<String, PlacementVerdict>,
    ) -> Vec<PlacedCluster> {
        let parts = divided.map(|total| (total, self.divided(candidates, current, total)));
        let placed = candidates.iter().map(|cluster| {
            let replicas = parts.as_ref().map(|(_, parts)| parts.get(cluster.name.as_str()).copied().unwrap_or(0));
            let reason = match (replicas, &parts) {
                (Some(replicas), Some((total, _))) => RunReason::Divided { replicas, total: *total },
                (_, _) => RunReason::Everywhere,
            };
            verdicts.insert(cluster.name.clone(), PlacementVerdict::Runs(reason));
            let overrides = self.overrides_for(cluster, object);
            PlacedCluster { name: cluster.name.clone(), replicas, overrides, ..PlacedCluster::default() }
        });
        placed.collect()
    }

    /// Returns the replicas of each candidate: first divided among domains, then evenly in each.
    fn divided<'c>(
        &self,
        candidates: &[&'c CandidateCluster],
        current: &CurrentClusters<'_>,
        total: u32,
    ) -> BTreeMap<&'c str, u32> {
        let now = |cluster: &CandidateCluster| {
            current.get(cluster.name.as_str()).and_then(|placed| placed.replicas).unwrap_or(0)
        };
        let mut domains: BTreeMap<&str, Vec<&CandidateCluster>> = BTreeMap::new();
        for cluster in candidates {
            domains.entry(self.domain(cluster)).or_default().push(cluster);
        }
        let parts: Vec<DivisionPart> = domains
            .iter()
            .map(|(domain, clusters)| DivisionPart {
                weight: self.weight(domain),
                current: clusters.iter().map(|cluster| now(cluster)).fold(0, u32::saturating_add),
            })
            .collect();
        let mut replicas = BTreeMap::new();
        for (clusters, total) in domains.values().zip(divide(total, &parts)) {
            let parts: Vec<DivisionPart> =
                clusters.iter().map(|cluster| DivisionPart { weight: 1, current: now(cluster) }).collect();
            replicas.extend(clusters.iter().map(|cluster| cluster.name.as_str()).zip(divide(total, &parts)));
        }
        replicas
    }

    fn domain<'c>(&self, cluster: &'c CandidateCluster) -> &'c str {
        cluster.labels.get(self.key).map(String::as_str).unwrap_or_default()
    }

    fn weight(&self, domain: &str) -> u32 {
        if self.shares.is_empty() {
            return 1;
        }
        let share = self.shares.iter().find(|share| share.topology_value == domain);
        share.map_or(0, |share| share.percentage)
    }

    fn overrides_for(&self, cluster: &CandidateCluster, object: &FleetObject) -> Vec<FieldOverride> {
        let of = &object.reference;
        let domain = self.domain(cluster);
        let domains = self.overrides.iter().filter(|overrides| overrides.topology_value == domain);
        let resources = domains.flat_map(|overrides| &overrides.resources).filter(|resource| {
            is_group(&resource.group, &of.group)
                && resource.kind == of.kind
                && resource.name == of.name
                && resource.version.as_ref().is_none_or(|version| *version == of.version)
                && resource.namespace.as_ref().is_none_or(|namespace| Some(namespace) == of.namespace.as_ref())
        });
        resources.flat_map(|resource| resource.fields.clone()).collect()
    }
}
