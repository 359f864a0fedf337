//! A simulated fleet: its API, a controller that dies between any two steps, loses replies and observes Works late, and agents that lose their
//! connection or a reply. Some clusters delegate their objects to another orchestrator at times.
//!
//! The controller and the agents decide with the code of the crate. All choices come from the seed.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{
    apimachinery::pkg::apis::meta::v1::Time,
    jiff::{SignedDuration, Timestamp},
};
use keelway_fleet::{
    CandidateCluster, ClusterActivity, ClusterDrain, DecisionRequest, ExistingWork, FleetClock, FleetState, LeaveCause,
    ObjectState, PlacementDecision, PlacementLink, PlacementOutcome, PlacementSpec, PodReadiness, PolicySet,
    SchedulePolicy, WorkOrder, WorkSpec, WorkWait, decide,
    invariants::{check_decision, check_works},
    names::work_name,
    placement_link, plan_works,
};
use serde_json::{Value as Json, json};

use crate::world::{ample, cluster, deployment, labelled, parsed, policy, report, start};

const OBJECTS: [&str; 3] = ["web", "api", "db"];
const CLUSTERS: [&str; 4] = ["a", "b", "c", "d"];
/// The rounds in which a fleet without faults settles.
const ROUNDS: usize = 40;

/// A bug in the code around the decisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FleetBug {
    /// An object that cannot be read is treated as deleted.
    DeletesWhatItCannotRead,
    /// An object is deleted in its old cluster before the new one has applied it.
    MovesAtOnce,
    /// An object is deleted in its old cluster before its pods are ready in the new one.
    LeavesBeforeReady,
    /// The controller does not count the objects that leave a cluster.
    ForgetsWhoLeaves,
    /// The controller regards objects that have left a cluster as leaving it.
    KeepsCountingWhoLeft,
    /// The rest of a division is dropped.
    LosesTheRest,
    /// The current Placement is not considered.
    ForgetsTheCurrent,
    /// Works are written before the Placement that names their clusters is saved.
    SavesLast,
    /// A cluster whose agent is lost is treated as one that left the fleet.
    TreatsTheLostAsRemoved,
    /// An agent deletes what runs in its cluster without a Work in its list.
    DeletesWhatIsNotListed,
    /// An agent regards a report as sent whose reply was lost.
    ForgetsLostReports,
    /// The controller keeps a Work that it observed once, after the Work is gone.
    KeepsGhosts,
    /// The controller regards an object as settled after a write whose reply was lost.
    ForgetsLostReplies,
    /// Objects leave a cluster as soon as it is not ready.
    FailsOverAtOnce,
    /// Objects return to a cluster as soon as it is ready.
    ReturnsAtOnce,
    /// A Placement does not remember the clusters that its object left.
    ForgetsTheLost,
    /// Objects that other clusters have taken over from a lost cluster count as leaving it.
    CountsWhoWasTakenOver,
    /// The controller spreads objects over clusters that delegate theirs to another orchestrator.
    SpreadsOverDelegated,
    /// A Placement does not state that another orchestrator submits the object.
    ForgetsDelegation,
    /// An agent applies objects that another orchestrator submits.
    AppliesTheDelegated,
    /// An agent deletes objects that another orchestrator submitted.
    DeletesTheDelegated,
    /// An agent reports objects that another orchestrator has not submitted yet.
    TracksTheAbsent,
    /// Failover moves objects away from a cluster in which they stay.
    MovesThePinned,
    /// If nothing is drained and nothing is lost, objects move although their data would not.
    LeavesItsData,
}

impl FleetBug {
    pub(crate) const ALL: [Self; 24] = [
        Self::DeletesWhatItCannotRead,
        Self::MovesAtOnce,
        Self::LeavesBeforeReady,
        Self::ForgetsWhoLeaves,
        Self::KeepsCountingWhoLeft,
        Self::LosesTheRest,
        Self::ForgetsTheCurrent,
        Self::SavesLast,
        Self::TreatsTheLostAsRemoved,
        Self::DeletesWhatIsNotListed,
        Self::ForgetsLostReports,
        Self::KeepsGhosts,
        Self::ForgetsLostReplies,
        Self::FailsOverAtOnce,
        Self::ReturnsAtOnce,
        Self::ForgetsTheLost,
        Self::CountsWhoWasTakenOver,
        Self::SpreadsOverDelegated,
        Self::ForgetsDelegation,
        Self::AppliesTheDelegated,
        Self::DeletesTheDelegated,
        Self::TracksTheAbsent,
        Self::MovesThePinned,
        Self::LeavesItsData,
    ];
}

/// How one pass of the controller goes.
#[derive(Debug, Clone, Copy)]
struct ControllerPass {
    /// The controller dies after so many writes. The last one may have had an effect.
    steps: u64,
    is_readable: bool,
    /// Whether its watch of Works has caught up.
    has_caught_up: bool,
    /// Whether replies to its writes may be lost.
    loses_replies: bool,
}

impl ControllerPass {
    const WITHOUT_FAULTS: Self = Self { steps: u64::MAX, is_readable: true, has_caught_up: true, loses_replies: false };
}

/// A Work in the API of the fleet.
#[derive(Debug, Clone, PartialEq)]
struct StoredWork {
    spec: WorkSpec,
    generation: u64,
    applied: Option<u64>,
    /// The generation of which all pods are ready, as reported.
    ready: Option<u64>,
    is_deleting: bool,
}

/// A simulated fleet.
pub(crate) struct FleetSimulation {
    random: u64,
    bug: Option<FleetBug>,
    /// Whether clusters only lose their connections, and the policy with failover stays.
    has_outages_only: bool,
    now: Timestamp,
    pub(crate) log: Vec<String>,
    objects: BTreeMap<&'static str, Json>,
    policies: Vec<SchedulePolicy>,
    clusters: BTreeMap<String, CandidateCluster>,
    placements: BTreeMap<&'static str, PlacementSpec>,
    works: BTreeMap<(String, String), StoredWork>,
    /// The Works as the controller knows them: of its watch, and of the replies to its writes.
    seen: BTreeMap<(String, String), StoredWork>,
    /// The agents without a connection to the fleet.
    lost: BTreeSet<String>,
    /// The clusters that left the fleet.
    removed: BTreeSet<String>,
    /// What runs in each cluster, by the name of its Work.
    running: BTreeMap<(String, String), Json>,
    /// Where pods are ready.
    serving: BTreeSet<(String, String)>,
    /// The objects that exist, and of which the controller has seen ready pods.
    served: BTreeSet<&'static str>,
    /// The objects that have left a drained cluster, as a controller with a bug counts them.
    counted: BTreeSet<(String, String)>,
    /// The objects that exist and were applied.
    present: BTreeSet<&'static str>,
    /// The clusters that a saved Placement of each object has named.
    named: BTreeSet<(&'static str, String)>,
    /// The reports that an agent with a bug regards as sent, by the generation of the Work.
    regarded: BTreeSet<((String, String), u64)>,
    /// The objects that a controller with a bug regards as settled.
    skipped: BTreeSet<&'static str>,
    /// Where another orchestrator has submitted objects, or has to remove what an agent does not track any more.
    submitted: BTreeSet<(String, String)>,
    /// What an agent changed in a cluster although another orchestrator does.
    trespass: Option<String>,
    /// The number of writes to the API.
    writes: u64,
}

impl FleetSimulation {
    pub(crate) fn new(seed: u64, bug: Option<FleetBug>) -> Self {
        let has_outages_only = seed.is_multiple_of(3);
        let clusters = if has_outages_only { &CLUSTERS[..] } else { &CLUSTERS[..2] };
        Self {
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            bug,
            has_outages_only,
            now: start(),
            log: Vec::new(),
            objects: BTreeMap::new(),
            policies: vec![if has_outages_only { with_failover(seed / 3) } else { policy("all", json!({})) }],
            clusters: clusters.iter().map(|&name| (name.to_owned(), cluster(name))).collect(),
            placements: BTreeMap::new(),
            works: BTreeMap::new(),
            seen: BTreeMap::new(),
            lost: BTreeSet::new(),
            removed: BTreeSet::new(),
            running: BTreeMap::new(),
            serving: BTreeSet::new(),
            served: BTreeSet::new(),
            counted: BTreeSet::new(),
            present: BTreeSet::new(),
            named: BTreeSet::new(),
            regarded: BTreeSet::new(),
            skipped: BTreeSet::new(),
            submitted: BTreeSet::new(),
            trespass: None,
            writes: 0,
        }
    }

    /// Runs a history with faults, lets the fleet settle while clusters are lost, heals everything, and checks that the fleet settles as it should.
    pub(crate) fn run(&mut self, steps: usize) -> Result<(), String> {
        for _ in 0..steps {
            self.step()?;
            self.remove_clusters();
            self.check_presence()?;
        }
        self.settle()?;
        self.check_failover()?;
        self.heal();
        self.settle()?;
        self.check_settled()
    }

    /// Runs rounds without faults until nothing is written, and no time changes that.
    fn settle(&mut self) -> Result<(), String> {
        for _ in 0..ROUNDS {
            let before = self.writes;
            self.round()?;
            self.remove_clusters();
            self.check_presence()?;
            if self.writes == before {
                let Some(deadline) = self.fleet().next_deadline() else { return Ok(()) };
                self.now = deadline;
            }
        }
        Err("the fleet does not settle".to_owned())
    }

    fn next(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 16) % below
    }

    fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        let index = self.next(of.len() as u64);
        of[usize::try_from(index).unwrap()]
    }

    fn step(&mut self) -> Result<(), String> {
        let seconds = i64::try_from(self.next(30)).unwrap();
        self.now += SignedDuration::from_secs(seconds);
        match self.next(10) {
            0 => self.person(),
            1 => self.fault(),
            2..=5 => {
                let object = self.pick(&OBJECTS);
                let pass = ControllerPass {
                    steps: self.next(6),
                    is_readable: self.next(8) > 0,
                    has_caught_up: self.next(2) > 0,
                    loses_replies: true,
                };
                let ControllerPass { steps, is_readable, has_caught_up, .. } = pass;
                let faults = format!("{steps} steps, readable {is_readable}, caught up {has_caught_up}");
                self.log.push(format!("controller: {object}, {faults}"));
                return self.controller(object, pass);
            }
            6 => self.orchestrate(),
            _ => {
                let cluster = self.pick(&CLUSTERS);
                let is_reported = self.next(4) > 0;
                // A list may lack Works: the fleet was restored from a backup, or the list was read in part.
                let is_listed = self.next(8) > 0;
                self.log.push(format!("agent: {cluster}, reported {is_reported}, listed {is_listed}"));
                if is_listed { self.agent(cluster, is_reported) } else { self.agent_lists_nothing(cluster) }
            }
        }
        Ok(())
    }

    fn person(&mut self) {
        let object = self.pick(&OBJECTS);
        let kind = if self.has_outages_only { self.next(6) * 17 } else { self.next(14) };
        let number = u32::try_from(self.next(9)).unwrap();
        self.log.push(format!("person: {object} {kind} {number}"));
        self.skipped.remove(object);
        match kind {
            0 => drop(self.objects.remove(object)),
            1 => self.policies = vec![policy("all", json!({}))],
            2 => {
                self.policies = vec![policy(
                    "all",
                    json!({ "spreadConstraints": { "topologyKey": "kubernetes.io/metadata.name" } }),
                )];
            }
            3 => {
                let only = self.pick(&CLUSTERS);
                let selector = json!({ "matchLabels": { "kubernetes.io/metadata.name": only } });
                self.policies = vec![policy("all", json!({ "clusterSelector": selector }))];
            }
            4 => self.policies.clear(),
            5 => {
                let operator = json!({ "key": "tier", "operator": "Gt", "values": ["1"] });
                self.policies.push(policy("newer", json!({ "clusterSelector": { "matchExpressions": [operator] } })));
            }
            6..=8 => self.policies = vec![with_failover(kind)],
            _ => {
                let mut submitted = deployment(object, number, json!({}), json!({}));
                if number % 4 == 3 {
                    submitted["spec"]["template"]["spec"]["volumes"] =
                        json!([{ "name": "data", "persistentVolumeClaim": { "claimName": "data" } }]);
                }
                self.objects.insert(object, submitted);
            }
        }
    }

    fn fault(&mut self) {
        let name = self.pick(&CLUSTERS).to_owned();
        let kind = match self.next(if self.has_outages_only { 16 } else { 10 }) {
            0 if self.has_outages_only => 5,
            _ if self.has_outages_only => 9,
            kind => kind,
        };
        self.log.push(format!("fault: {name} {kind}"));
        self.removed.remove(&name);
        let now = self.now;
        let cluster = self.clusters.entry(name.clone()).or_insert_with(|| labelled(&name, json!({})));
        match kind {
            0 => cluster.is_cordoned = !cluster.is_cordoned,
            1 => cluster.is_leaving = !cluster.is_leaving,
            2..=3 => cluster.drain = cluster.drain.is_none().then_some(ClusterDrain { max_moves: 1 }),
            4 => {
                cluster.is_delegated = !cluster.is_delegated;
                self.log.push(format!("  {name} delegates {}", cluster.is_delegated));
            }
            5 => {
                cluster.is_pinned = !cluster.is_pinned;
                self.log.push(format!("  {name} pinned {}", cluster.is_pinned));
            }
            _ if !self.lost.remove(&name) => {
                report(cluster, "Unknown", now);
                self.lost.insert(name);
            }
            _ => report(cluster, "True", now),
        }
    }

    fn heal(&mut self) {
        self.log.push("heal".to_owned());
        self.lost.clear();
        for cluster in self.clusters.values_mut() {
            report(cluster, "True", self.now);
        }
    }

    fn round(&mut self) -> Result<(), String> {
        for object in OBJECTS {
            self.controller(object, ControllerPass::WITHOUT_FAULTS)?;
        }
        self.orchestrate();
        for cluster in CLUSTERS {
            for _ in 0..=2 * OBJECTS.len() {
                self.agent(cluster, true);
            }
        }
        Ok(())
    }

    fn state(&self, object: &str, is_readable: bool) -> ObjectState {
        match self.objects.get(object) {
            _ if !is_readable && self.bug == Some(FleetBug::DeletesWhatItCannotRead) => ObjectState::Deleted,
            _ if !is_readable => ObjectState::Unreadable("timeout".to_owned()),
            None => ObjectState::Deleted,
            Some(object) => ObjectState::Present(parsed(object)),
        }
    }

    /// The controller's watch of Works catches up.
    fn catch_up(&mut self) {
        if self.bug != Some(FleetBug::KeepsGhosts) {
            self.seen.retain(|key, _| self.works.contains_key(key));
        }
        self.seen.extend(self.works.clone());
    }

    /// One pass of the controller for one object: decide, save the Placement, write Works.
    fn controller(&mut self, name: &'static str, pass: ControllerPass) -> Result<(), String> {
        if pass.has_caught_up {
            self.catch_up();
        }
        if self.skipped.contains(name) {
            return Ok(());
        }
        let mut steps = pass.steps;
        let state = self.state(name, pass.is_readable);
        let link = link_of(name);
        let mut decided = None;
        if let ObjectState::Present(object) = &state {
            decided = self.decided(name, object)?;
        }
        let late = if self.bug == Some(FleetBug::SavesLast) { decided.clone() } else { None };
        if let Some(placement) = decided.filter(|_| late.is_none()) {
            if steps == 0 {
                return Ok(());
            }
            steps -= 1;
            self.save(name, placement);
        }
        let works: Vec<ExistingWork> =
            self.seen.iter().map(|((cluster, name), work)| work.read(cluster, name)).collect();
        let own: Vec<ExistingWork> = works.into_iter().filter(|work| work.spec.placement == link).collect();
        let placement = late.as_ref().or(self.placements.get(name));
        let mut plan = plan_works(&state, false, placement, &link, &own);
        let is_deleted = !self.objects.contains_key(name);
        if let Some(violation) = check_works(placement, is_deleted, &own, &plan).first() {
            return Err(violation.to_string());
        }
        if matches!(self.bug, Some(FleetBug::MovesAtOnce | FleetBug::LeavesBeforeReady)) {
            let kept = plan.waiting.iter().filter_map(|wait| match (wait, self.bug) {
                (WorkWait::NotAppliedYet { keeps, .. }, Some(FleetBug::MovesAtOnce))
                | (WorkWait::NotReadyYet { keeps, .. }, Some(FleetBug::LeavesBeforeReady)) => {
                    own.iter().find(|work| work.cluster == *keeps)
                }
                (_, _) => None,
            });
            plan.orders.extend(kept.map(|work| WorkOrder::Delete {
                cluster: work.cluster.clone(),
                name: work.name.clone(),
                why: keelway_fleet::WorkRemoval::Moved,
            }));
        }
        for order in plan.orders {
            if steps == 0 {
                return Ok(());
            }
            steps -= 1;
            let is_answered = !pass.loses_replies || self.next(3) > 0;
            self.write(order, is_answered);
            self.check_named(name)?;
            if !is_answered && self.bug == Some(FleetBug::ForgetsLostReplies) {
                self.skipped.insert(name);
                return Ok(());
            }
        }
        if let Some(placement) = late.filter(|_| steps > 0) {
            self.save(name, placement);
        }
        if state == ObjectState::Deleted && own.is_empty() && steps > 0 && self.placements.remove(name).is_some() {
            self.writes += 1;
        }
        Ok(())
    }

    fn save(&mut self, name: &'static str, placement: PlacementSpec) {
        self.writes += 1;
        let left = self.placements.get(name).into_iter().flat_map(|before| &before.clusters);
        let left = left.filter(|cluster| !placement.clusters.iter().any(|placed| placed.name == cluster.name));
        for cluster in left {
            let why = placement.reasons.iter().find(|reason| reason.cluster == cluster.name);
            let why = why.map_or("it is removed", |reason| &reason.message);
            self.log.push(format!("  {name} leaves {}: {why}", cluster.name));
            self.counted.insert((cluster.name.clone(), name.to_owned()));
        }
        if let Some(stuck) = placement.stuck() {
            self.log.push(format!("  {name} stays in {}: {}", stuck.cluster, stuck.message));
        }
        self.named.extend(placement.clusters.iter().map(|cluster| (name, cluster.name.clone())));
        self.placements.insert(name, placement);
    }

    /// A Work is in a cluster only after a saved Placement named it: a controller that dies between both leaves nothing that no document explains.
    fn check_named(&self, name: &'static str) -> Result<(), String> {
        let mut own = self.works.iter().filter(|(_, work)| work.spec.manifest["metadata"]["name"] == name);
        match own.find(|((cluster, _), _)| !self.named.contains(&(name, cluster.clone()))) {
            None => Ok(()),
            Some(((cluster, _), _)) => Err(format!("{name} has a Work in {cluster}, which no Placement has named")),
        }
    }

    fn fleet(&self) -> FleetState {
        FleetState {
            clusters: self.clusters.clone(),
            policies: PolicySet::read(self.policies.clone()),
            removed: self.removed.clone(),
            capacity: ample(CLUSTERS),
            activity: self.activity(),
            clock: FleetClock { now: self.now, ..FleetClock::default() },
            ..FleetState::default()
        }
    }

    /// Returns what the controller decides, with its bug.
    fn decision(&self, request: &DecisionRequest<'_>) -> PlacementDecision {
        let mut seen = self.fleet();
        if self.bug == Some(FleetBug::ForgetsWhoLeaves) {
            seen.activity.clear();
        }
        for cluster in seen.clusters.values_mut() {
            cluster.is_delegated &= self.bug != Some(FleetBug::SpreadsOverDelegated);
            cluster.is_pinned &= self.bug != Some(FleetBug::MovesThePinned);
        }
        if self.bug == Some(FleetBug::KeepsCountingWhoLeft) {
            for (cluster, name) in &self.counted {
                seen.activity.entry(cluster.clone()).or_default().leaving.insert(link_of(name));
            }
        }
        if self.bug == Some(FleetBug::TreatsTheLostAsRemoved) {
            seen.clusters.retain(|name, _| !self.lost.contains(name));
            seen.removed.extend(self.lost.iter().cloned());
        }
        let is_hasty = |status: &str| match self.bug {
            Some(FleetBug::FailsOverAtOnce) => status != "True",
            Some(FleetBug::ReturnsAtOnce) => status == "True",
            _ => false,
        };
        for ready in seen.clusters.values_mut().filter_map(|cluster| cluster.ready.as_mut()) {
            if is_hasty(&ready.status) {
                ready.last_transition_time = Time(start());
            }
        }
        let forgets = self.bug == Some(FleetBug::ForgetsTheCurrent);
        let mut object = request.object.clone();
        let is_calm = seen.clusters.values().all(|cluster| cluster.drain.is_none()) && self.lost.is_empty();
        if self.bug == Some(FleetBug::LeavesItsData) && is_calm {
            object.manifest["spec"]["template"]["spec"]["volumes"] = Json::Null;
        }
        let current = request.current.filter(|_| !forgets);
        decide(&seen, &DecisionRequest { object: &object, current, ..*request })
    }

    /// Returns the Placement to save, if it changes.
    fn decided(&self, name: &str, object: &keelway_fleet::FleetObject) -> Result<Option<PlacementSpec>, String> {
        let fleet = self.fleet();
        let current = self.placements.get(name);
        let request = DecisionRequest { object, is_autoscaled: false, current };
        let decision = self.decision(&request);
        let PlacementOutcome::Place(mut placement) = decision.outcome.clone() else { return Ok(None) };
        if self.bug == Some(FleetBug::ForgetsTheLost) {
            placement.lost_clusters.clear();
        }
        for placed in &mut placement.clusters {
            let is_delegated = fleet.clusters.get(&placed.name).is_some_and(|cluster| cluster.is_delegated);
            match self.bug {
                Some(FleetBug::SpreadsOverDelegated) => placed.delegated = is_delegated,
                Some(FleetBug::ForgetsDelegation) => placed.delegated = false,
                _ => {}
            }
        }
        if self.bug == Some(FleetBug::LosesTheRest) {
            let total = object.replicas().unwrap_or(0);
            let number = u32::try_from(placement.clusters.len().max(1)).unwrap();
            placement
                .clusters
                .iter_mut()
                .for_each(|cluster| cluster.replicas = cluster.replicas.map(|_| total / number));
        }
        let decision =
            keelway_fleet::PlacementDecision { outcome: PlacementOutcome::Place(placement.clone()), ..decision };
        if let Some(violation) = check_decision(&fleet, &request, &decision).first() {
            return Err(violation.to_string());
        }
        // A decision that is repeated is not a change.
        Ok((current != Some(&placement)).then_some(placement))
    }

    /// Writes a Work. The reply contains what the API has.
    fn write(&mut self, order: WorkOrder, is_answered: bool) {
        self.writes += 1;
        self.log.push(format!("  {}, answered {is_answered}", order_text(&order)));
        let key = match &order {
            WorkOrder::Create(work) | WorkOrder::Update(work) => (work.cluster.clone(), work.name.clone()),
            WorkOrder::Delete { cluster, name, .. } => (cluster.clone(), name.clone()),
        };
        match order {
            WorkOrder::Create(work) => {
                let stored =
                    StoredWork { spec: work.spec, generation: 1, applied: None, ready: None, is_deleting: false };
                self.works.entry((work.cluster, work.name)).or_insert(stored);
            }
            WorkOrder::Update(work) => {
                if let Some(stored) = self.works.get_mut(&(work.cluster, work.name)) {
                    stored.spec = work.spec;
                    stored.generation += 1;
                }
            }
            WorkOrder::Delete { cluster, name, .. } => {
                self.works.entry((cluster, name)).and_modify(|work| work.is_deleting = true);
            }
        }
        match self.works.get(&key) {
            Some(work) if is_answered => drop(self.seen.insert(key, work.clone())),
            Some(_) | None => {}
        }
    }

    /// A cluster that is leaving is removed once it has no Works.
    fn remove_clusters(&mut self) {
        let works: BTreeSet<&String> = self.works.keys().map(|(cluster, _)| cluster).collect();
        let gone = self.clusters.values().filter(|cluster| cluster.is_leaving && !works.contains(&cluster.name));
        let gone: Vec<String> = gone.map(|cluster| cluster.name.clone()).collect();
        for name in gone {
            self.log.push(format!("  {name} is removed"));
            self.clusters.remove(&name);
            self.lost.remove(&name);
            self.removed.insert(name);
        }
    }

    /// An agent handles one of its Works: the first that is not as its cluster is. Its report may be lost.
    fn agent(&mut self, cluster: &str, is_reported: bool) {
        if self.lost.contains(cluster) || !self.clusters.contains_key(cluster) {
            return;
        }
        let own = self.works.iter().filter(|((of, _), _)| of == cluster);
        let own = own.filter(|(place, work)| !self.regarded.contains(&((*place).clone(), work.generation)));
        let is_delegated = self.is_delegated(cluster);
        let is_submitted = |place: &(String, String)| {
            let is_blind =
                self.bug == Some(FleetBug::TracksTheAbsent) || self.bug == Some(FleetBug::AppliesTheDelegated);
            !is_delegated || is_blind || self.running.contains_key(place)
        };
        let due = own
            .filter(|(place, work)| work.is_deleting || (work.ready != Some(work.generation) && is_submitted(place)));
        let Some((place, work)) = due.map(|(place, work)| (place.clone(), work.clone())).next() else { return };
        if !is_reported && self.bug == Some(FleetBug::ForgetsLostReports) {
            self.regarded.insert((place.clone(), work.generation));
        }
        if work.is_deleting {
            if is_delegated && self.bug != Some(FleetBug::DeletesTheDelegated) {
                self.log.push(format!("  releases {} in {cluster}", place.1));
                self.submitted.insert(place.clone());
            } else {
                self.change(&place, None);
                self.serving.remove(&place);
            }
            if is_reported {
                self.writes += 1;
                self.works.remove(&place);
            }
            return;
        }
        if work.applied == Some(work.generation) {
            self.serving.insert(place.clone());
            if is_reported {
                self.writes += 1;
                self.works.entry(place).and_modify(|stored| stored.ready = Some(work.generation));
            }
            return;
        }
        if !is_delegated || self.bug == Some(FleetBug::AppliesTheDelegated) {
            self.change(&place, Some(work.spec.manifest));
        }
        if is_reported {
            self.writes += 1;
            self.works.entry(place).and_modify(|stored| stored.applied = Some(work.generation));
        }
    }

    fn is_delegated(&self, cluster: &str) -> bool {
        self.clusters.get(cluster).is_some_and(|cluster| cluster.is_delegated)
    }

    /// An agent applies or deletes an object in its cluster.
    fn change(&mut self, place: &(String, String), manifest: Option<Json>) {
        if self.is_delegated(&place.0) {
            self.trespass =
                Some(format!("the agent of {} changes {}, which another orchestrator does", place.0, place.1));
        }
        match manifest {
            Some(manifest) => drop(self.running.insert(place.clone(), manifest)),
            None => drop(self.running.remove(place)),
        }
    }

    /// Another orchestrator submits objects where Placements delegate them, and removes what it submitted once no agent tracks it and no Placement
    /// delegates it there.
    fn orchestrate(&mut self) {
        let mut targets = BTreeMap::new();
        for (name, placement) in &self.placements {
            if let (Some(cluster), Some(object)) = (placement.delegated_to(), self.objects.get(name)) {
                targets.insert((cluster.to_owned(), work_name(&parsed(object).reference)), object.clone());
            }
        }
        for (place, object) in &targets {
            if !self.running.contains_key(place) {
                self.log.push(format!("orchestrator: submits {} in {}", place.1, place.0));
                self.running.insert(place.clone(), object.clone());
                self.writes += 1;
            }
            self.submitted.insert(place.clone());
        }
        let left =
            self.submitted.iter().filter(|place| !targets.contains_key(*place) && !self.works.contains_key(*place));
        for place in left.cloned().collect::<Vec<_>>() {
            self.submitted.remove(&place);
            self.serving.remove(&place);
            if self.running.remove(&place).is_some() {
                self.log.push(format!("orchestrator: removes {} in {}", place.1, place.0));
                self.writes += 1;
            }
        }
    }

    /// An agent lists its Works, and gets none of them. That orders nothing.
    fn agent_lists_nothing(&mut self, cluster: &str) {
        if self.bug == Some(FleetBug::DeletesWhatIsNotListed) && !self.lost.contains(cluster) {
            self.running.retain(|(of, _), _| of != cluster);
        }
    }

    fn places(&self, name: &str) -> Vec<(&str, &Json)> {
        let is_own = |manifest: &Json| manifest["metadata"]["name"] == name;
        self.running
            .iter()
            .filter(|(_, manifest)| is_own(manifest))
            .map(|((cluster, _), manifest)| (cluster.as_str(), manifest))
            .collect()
    }

    /// An object that an agent has applied runs somewhere, as long as it exists.
    fn check_presence(&mut self) -> Result<(), String> {
        if let Some(trespass) = &self.trespass {
            return Err(trespass.clone());
        }
        for name in OBJECTS {
            let mut own = self.works.values().filter(|work| work.spec.manifest["metadata"]["name"] == name);
            let is_applied = own.any(|work| work.applied.is_some() && !work.is_deleting);
            if !self.objects.contains_key(name) {
                self.present.remove(name);
            } else if is_applied {
                self.present.insert(name);
            }
            if self.present.contains(name) && self.places(name).is_empty() {
                return Err(format!("{name} runs nowhere"));
            }
            self.check_service(name)?;
        }
        Ok(())
    }

    /// An object of which the controller has seen ready pods has ready pods somewhere, as long as it exists.
    fn check_service(&mut self, name: &'static str) -> Result<(), String> {
        let is_own = |work: &StoredWork| work.spec.manifest["metadata"]["name"] == name;
        let is_seen = |key: &(String, String)| self.seen.get(key).is_some_and(|seen| seen.ready.is_some());
        let mut own = self.works.iter().filter(|(_, work)| is_own(work));
        if !self.objects.contains_key(name) {
            self.served.remove(name);
        } else if own.any(|(key, work)| work.ready.is_some() && !work.is_deleting && is_seen(key)) {
            self.served.insert(name);
        }
        let serves = self.places(name).iter().any(|(cluster, _)| {
            self.serving.iter().any(|(of, work)| of == cluster && work.ends_with(&format!(".{name}")))
        });
        if self.served.contains(name) && !serves {
            return Err(format!("no pod of {name} is ready"));
        }
        Ok(())
    }

    /// What the controller knows of the objects that leave clusters.
    fn activity(&self) -> BTreeMap<String, ClusterActivity> {
        let mut all = BTreeMap::<String, ClusterActivity>::new();
        for ((cluster, _), work) in &self.seen {
            let name = work.spec.manifest["metadata"]["name"].as_str().unwrap_or_default();
            let placement = self.placements.get(name);
            if placement.is_some_and(|placement| placement.clusters.iter().all(|placed| placed.name != *cluster)) {
                let activity = all.entry(cluster.clone()).or_default();
                activity.leaving.insert(work.spec.placement.clone());
                if work.is_deleting && self.bug != Some(FleetBug::CountsWhoWasTakenOver) {
                    activity.taken_over.insert(work.spec.placement.clone());
                }
            }
        }
        all
    }

    /// No object waits for its turn to leave a lost cluster any more: what has left does not need its agent. A part that stays in a pinned cluster does,
    /// or one with data that stays in a lost cluster, and the other parts of its object wait for it.
    fn check_failover(&self) -> Result<(), String> {
        let is_lost = |placement: &PlacementSpec| placement.clusters.iter().any(|it| self.lost.contains(&it.name));
        let has_data = |name: &&str| self.objects.get(*name).is_some_and(|object| !volumes(object).is_null());
        if self.lost.iter().any(|name| self.clusters.get(name).is_some_and(|cluster| cluster.is_pinned))
            || self.placements.iter().any(|(name, placement)| has_data(name) && is_lost(placement))
        {
            return Ok(());
        }
        for (name, object) in &self.objects {
            let current = self.placements.get(name);
            let request = DecisionRequest { object: &parsed(object), is_autoscaled: false, current };
            let waits = self.decision(&request).waits;
            if waits.values().any(|cause| matches!(cause, LeaveCause::Lost { .. })) {
                return Err(format!("{name} waits forever to leave {waits:?}"));
            }
        }
        Ok(())
    }

    /// Objects run where their Placements say, and what is deleted runs nowhere.
    fn check_settled(&self) -> Result<(), String> {
        for name in OBJECTS {
            let places = self.places(name);
            let Some(object) = self.objects.get(name) else {
                if places.is_empty() && !self.placements.contains_key(name) {
                    continue;
                }
                return Err(format!("{name} is deleted, and runs in {places:?}"));
            };
            let decided: Vec<&str> = self
                .placements
                .get(name)
                .into_iter()
                .flat_map(|placement| &placement.clusters)
                .map(|cluster| cluster.name.as_str())
                .collect();
            // A Placement that nothing selects any more keeps what was spread, and a cluster that delegates its objects since then waits for a person.
            let current = self.placements.get(name);
            if current.is_some_and(|placement| placement.is_delegated() && placement.delegated_to().is_none()) {
                continue;
            }
            let actual: Vec<&str> = places.iter().map(|(cluster, _)| *cluster).collect();
            if decided != actual {
                return Err(format!("{name} is placed in {decided:?}, and runs in {actual:?}"));
            }
            let replicas: Vec<u64> =
                places.iter().filter_map(|(_, manifest)| manifest["spec"]["replicas"].as_u64()).collect();
            let request =
                DecisionRequest { object: &parsed(object), is_autoscaled: false, current: self.placements.get(name) };
            let waits = self.decision(&request).waits;
            if !waits.is_empty() {
                return Err(format!("{name} waits forever to leave {waits:?}"));
            }
            let is_divided = decided.len() > 1;
            let sum: u64 = replicas.iter().sum();
            if is_divided && Some(sum) != object["spec"]["replicas"].as_u64() {
                return Err(format!("{name} has {replicas:?} replicas"));
            }
        }
        Ok(())
    }
}

/// A policy that lets one cluster be chosen, one to which objects return, or one that divides.
fn with_failover(kind: u64) -> SchedulePolicy {
    let mut more = json!({ "failover": { "after": "1m", "maxMoves": 1 } });
    match kind % 3 {
        0 => {}
        1 => more["failover"]["recovery"] = json!("Return"),
        _ => more["spreadConstraints"] = json!({}),
    }
    policy("all", more)
}

fn volumes(deployment: &Json) -> &Json {
    &deployment["spec"]["template"]["spec"]["volumes"]
}

fn link_of(name: &str) -> PlacementLink {
    placement_link(&parsed(&deployment(name, 0, json!({}), json!({}))).reference)
}

impl StoredWork {
    fn read(&self, cluster: &str, name: &str) -> ExistingWork {
        ExistingWork {
            cluster: cluster.to_owned(),
            name: name.to_owned(),
            spec: self.spec.clone(),
            is_applied: self.applied == Some(self.generation),
            pods: PodReadiness { is_ready: self.ready == Some(self.generation), is_serving: self.ready.is_some() },
            is_deleting: self.is_deleting,
        }
    }
}

fn order_text(order: &WorkOrder) -> String {
    match order {
        WorkOrder::Create(work) => format!("create {}/{}", work.cluster, work.name),
        WorkOrder::Update(work) => format!("update {}/{}", work.cluster, work.name),
        WorkOrder::Delete { cluster, name, why } => format!("delete {cluster}/{name}: {why:?}"),
    }
}
