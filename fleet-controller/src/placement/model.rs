//! What the controller knows of its fleet, and which objects a change may affect.

mod capacity;
mod moves;
#[cfg(test)]
mod tests;
mod usage;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use k8s_openapi::jiff::Timestamp;
use keelway_fleet::{
    CandidateCluster, ContentRole, FleetObject, FleetState, ObjectState, PlacedKind, PlacementLink, PlacementSpec,
    PolicySet, SchedulePolicy, Work, WorkloadCluster, WorkloadPlacement, WorkloadRef, names::cluster_of_namespace,
    placement_link,
};
use kube::{ResourceExt, api::DynamicObject, core::ApiResource, runtime::watcher::Event};

use self::{capacity::ReservedCapacity, moves::FleetMoves, usage::ClusterUsage};
use super::{
    census::{CensusState, FleetCensus},
    listed::{ListedChange, ListedObjects},
    plan::PlannedEvent,
    queue::{PlanCause, PlanQueue},
};

/// A change of a document.
#[derive(Debug)]
pub(crate) enum FleetChange {
    Cluster(Event<WorkloadCluster>),
    Policy(Event<SchedulePolicy>),
    Placement(Event<WorkloadPlacement>),
    Work(Event<Work>),
    Object(PlacedKind, Event<DynamicObject>),
}

/// The namespace and the name of a Work.
pub(super) type WorkKey = (String, String);

/// What the writes of one object left behind.
#[derive(Debug, Default)]
pub(super) struct WrittenObjects {
    pub(super) placement: Option<WorkloadPlacement>,
    pub(super) works: Vec<Work>,
    /// The Event that the controller may not write the label of the object.
    pub(super) refused_label: Option<PlannedEvent>,
}

/// What is remembered of a Work, so that it is known once the Work is gone.
#[derive(Debug, Clone, PartialEq, Eq)]
struct IndexedWork {
    link: PlacementLink,
    has_pods: bool,
    role: ContentRole,
    /// The namespace of the object.
    namespace: String,
}

/// All documents of a fleet.
#[derive(Debug, Default)]
pub(crate) struct FleetModel {
    clusters: ListedObjects<String, WorkloadCluster>,
    policies: ListedObjects<String, SchedulePolicy>,
    placements: ListedObjects<PlacementLink, WorkloadPlacement>,
    works: ListedObjects<WorkKey, Work>,
    objects: BTreeMap<PlacedKind, ListedObjects<PlacementLink, FleetObject>>,
    custom: BTreeSet<PlacedKind>,
    works_of: BTreeMap<PlacementLink, BTreeSet<WorkKey>>,
    indexed: BTreeMap<WorkKey, IndexedWork>,
    /// The Placements without a cluster, those that cannot leave one, and those that may return to one.
    unscheduled: BTreeSet<PlacementLink>,
    removed: BTreeSet<String>,
    /// Namespaces of clusters whose last Work is gone.
    emptied: BTreeSet<String>,
    /// What is known of objects that no watch contains.
    verified: BTreeMap<PlacementLink, ObjectState>,
    queue: PlanQueue,
    usage: ClusterUsage,
    state: FleetState,
    reserved: ReservedCapacity,
    moves: FleetMoves,
    /// [`FleetState::next_deadline`].
    deadline: Option<Timestamp>,
}

impl FleetModel {
    pub(super) fn new(kinds: impl Iterator<Item = PlacedKind>) -> Self {
        Self { objects: kinds.map(|kind| (kind, ListedObjects::default())).collect(), ..Self::default() }
    }

    /// Adds a kind that people define. Nothing waits for its list: its API server may not serve it.
    pub(super) fn add_custom(&mut self, kind: PlacedKind) {
        self.custom.insert(kind.clone());
        self.objects.entry(kind).or_default();
    }

    /// Returns how the API server serves the kind of an object.
    pub(super) fn resource(&self, object: &WorkloadRef) -> Option<ApiResource> {
        let kind = self.objects.keys().find(|kind| kind.group == object.group && kind.kind == object.kind)?;
        Some(kind.resource())
    }

    /// Returns the kinds of definitions that are placed themselves.
    pub(super) fn custom_kinds(&self) -> Vec<PlacedKind> {
        let definitions = self.objects.iter().filter(|(kind, _)| kind.kind == "CustomResourceDefinition");
        let placed = definitions.flat_map(|(_, listed)| &listed.items);
        let placed = placed.filter(|(link, _)| self.placements.items.contains_key(*link));
        placed.filter_map(|(_, object)| PlacedKind::defined_by(&object.manifest)).collect()
    }

    /// Notes a change.
    pub(super) fn observe(&mut self, change: FleetChange, now: Instant) {
        match change {
            FleetChange::Cluster(event) => {
                let before = self.clusters.items.len();
                let changed = self.clusters.observe(event, |cluster| Some((cluster.name_any(), cluster)));
                match &changed {
                    ListedChange::Deleted(name) => drop(self.removed.insert(name.clone())),
                    ListedChange::Changed(name) => drop(self.removed.remove(name)),
                    ListedChange::Nothing | ListedChange::Listed { .. } => {}
                }
                if self.clusters.items.len() != before {
                    self.usage.note_clusters();
                }
                let is_only_capacity = self.observe_capacity(&changed);
                self.refresh(changed != ListedChange::Nothing && !is_only_capacity, now);
            }
            FleetChange::Policy(event) => {
                let changed = self.policies.observe(event, |policy| Some((policy.name_any(), policy)));
                self.refresh(changed != ListedChange::Nothing, now);
            }
            FleetChange::Placement(event) if self.placements.has(&event, link_of) => {}
            FleetChange::Placement(event) => {
                let changed = self.placements.observe(event, |placement| Some((link_of(&placement), placement)));
                let links = touched(changed);
                for link in &links {
                    self.index_placement(link);
                }
                self.pend(links, PlanCause::Report, now);
            }
            FleetChange::Work(event) if self.works.has(&event, work_key) => {}
            FleetChange::Work(event) => {
                let changed = self.works.observe(event, |work| Some((work_key(&work), work)));
                for key in touched(changed) {
                    self.index(key, now);
                }
            }
            FleetChange::Object(kind, event) => self.observe_object(&kind, event, now),
        }
        self.pend_fitting(now);
        self.pend_moves(now);
    }

    /// Plans objects without a cluster again, and those that cannot move, if one may fit now.
    fn pend_fitting(&mut self, now: Instant) {
        let links = self.take_fitting();
        self.pend(links, PlanCause::Decision, now);
    }

    fn observe_object(&mut self, kind: &PlacedKind, event: Event<DynamicObject>, now: Instant) {
        let (is_namespace, is_autoscaler) = (kind.kind == "Namespace", kind.kind == "HorizontalPodAutoscaler");
        let has_other_pods = self.observe_pod_kinds(kind, &event);
        if has_other_pods {
            self.index_all(now);
        }
        let read = |object| read(kind, object);
        let Some(listed) = self.objects.get_mut(kind) else { return };
        let changed = listed.observe(event, read);
        match &changed {
            ListedChange::Deleted(link) => {
                self.verified.insert(link.clone(), ObjectState::Deleted);
            }
            ListedChange::Changed(link) => {
                self.verified.remove(link);
            }
            ListedChange::Nothing | ListedChange::Listed { .. } => {}
        }
        if is_namespace || is_autoscaler || has_other_pods {
            self.refresh(has_other_pods || changed != ListedChange::Nothing, now);
        }
        self.pend(touched(changed), PlanCause::Decision, now);
    }

    /// Notes whether a Placement waits for room, and whether its object is leaving clusters.
    fn index_placement(&mut self, link: &PlacementLink) {
        self.note_leaving(link, None);
        let waits =
            |spec: &PlacementSpec| spec.clusters.is_empty() || spec.stuck().is_some() || !spec.lost_clusters.is_empty();
        if self.placements.items.get(link).is_some_and(|placement| waits(&placement.spec)) {
            self.unscheduled.insert(link.clone());
        } else {
            self.unscheduled.remove(link);
        }
    }

    /// Notes a Work under its Placement, or that it is gone.
    fn index(&mut self, key: WorkKey, now: Instant) {
        let after = self.works.items.get(&key).map(|work| self.indexed_work(work));
        let before = match &after {
            Some(after) => self.indexed.insert(key.clone(), after.clone()),
            None => self.indexed.remove(&key),
        };
        if before != after {
            self.count(&key, before.as_ref(), after.as_ref(), now);
        }
        match &after {
            Some(after) => drop(self.works_of.entry(after.link.clone()).or_default().insert(key)),
            None => self.note_emptied(&key.0),
        }
        let link = after.or(before).map(|indexed| indexed.link);
        if let Some(link) = &link {
            self.reserve(link, None);
            self.note_leaving(link, None);
        }
        self.pend(link, PlanCause::Report, now);
    }

    fn indexed_work(&self, work: &Work) -> IndexedWork {
        let (kinds, manifest) = (&self.reserved.kinds, &work.spec.manifest);
        IndexedWork {
            link: work.spec.placement.clone(),
            has_pods: kinds.has_pods(manifest),
            role: ContentRole::of(manifest, kinds),
            namespace: manifest["metadata"]["namespace"].as_str().unwrap_or_default().to_owned(),
        }
    }

    fn count(&mut self, key: &WorkKey, before: Option<&IndexedWork>, after: Option<&IndexedWork>, now: Instant) {
        let Some(cluster) = cluster_of_namespace(&key.0) else { return };
        if after.is_some_and(|work| work.has_pods) {
            self.usage.add(cluster);
        }
        if before.is_some_and(|work| work.has_pods) {
            self.usage.remove(cluster);
        }
        let content = |work: &IndexedWork| (work.role, work.namespace.clone());
        self.note_content(key, before.map(content), after.map(content), now);
    }

    /// Notes all Works again: other kinds have pods now.
    fn index_all(&mut self, now: Instant) {
        let all: Vec<(WorkKey, IndexedWork)> =
            self.works.items.iter().map(|(key, work)| (key.clone(), self.indexed_work(work))).collect();
        for (key, after) in all {
            let before = self.indexed.insert(key.clone(), after.clone());
            self.count(&key, before.as_ref(), Some(&after), now);
        }
    }

    fn note_emptied(&mut self, namespace: &str) {
        let mut from = self.works.items.range((namespace.to_owned(), String::new())..);
        if from.next().is_none_or(|((next, _), _)| next != namespace) {
            self.emptied.insert(namespace.to_owned());
        }
    }

    /// Whether the last Work of a cluster has gone since the last call.
    pub(super) fn take_emptied(&mut self) -> bool {
        !std::mem::take(&mut self.emptied).is_empty()
    }

    /// Rebuilds what every decision reads. Every object may be affected.
    fn refresh(&mut self, is_changed: bool, now: Instant) {
        if !is_changed || !self.is_whole() {
            return;
        }
        let namespaces = self.of_kind("Namespace").map(|object| (object.reference.name.clone(), object.labels.clone()));
        let state = FleetState {
            clusters: self
                .clusters
                .items
                .iter()
                .map(|(name, cluster)| (name.clone(), CandidateCluster::read(cluster)))
                .collect(),
            removed: self.removed.clone(),
            policies: PolicySet::read(self.policies.items.values().cloned()),
            namespaces: namespaces.collect(),
            pod_kinds: self.reserved.kinds.clone(),
            capacity: std::mem::take(&mut self.state.capacity),
            activity: std::mem::take(&mut self.state.activity),
            clock: self.state.clock,
        };
        let is_changed = !state.is_same_but_capacity(&self.state);
        self.state = state;
        if is_changed {
            self.deadline = self.state.next_deadline();
            self.pend_all(now);
        }
    }

    /// Returns the next time at which objects may have to move although no document changes.
    pub(super) fn deadline(&self) -> Option<Timestamp> {
        self.deadline
    }

    /// Notes the time that decisions use. If a deadline has passed, the objects with failover are planned.
    pub(super) fn set_time(&mut self, time: Timestamp, now: Instant) {
        let clock = &mut self.state.clock;
        clock.now = time;
        if clock.observing_since == Timestamp::UNIX_EPOCH {
            clock.observing_since = time;
            self.deadline = self.state.next_deadline();
        }
        if self.deadline.is_some_and(|deadline| deadline <= time) {
            self.deadline = self.state.next_deadline();
            let may_move = |placement: &&WorkloadPlacement| placement.spec.failover.is_some();
            let links: Vec<PlacementLink> = self.placements.items.values().filter(may_move).map(link_of).collect();
            self.pend(links, PlanCause::Decision, now);
        }
    }

    fn pend_all(&mut self, now: Instant) {
        let links: Vec<PlacementLink> = self.objects.values().flat_map(|listed| listed.items.keys()).cloned().collect();
        self.pend(links, PlanCause::Decision, now);
        let links: Vec<PlacementLink> = self.placements.items.keys().cloned().collect();
        self.pend(links, PlanCause::Decision, now);
    }

    /// Plans these objects later.
    pub(super) fn pend(&mut self, links: impl IntoIterator<Item = PlacementLink>, cause: PlanCause, now: Instant) {
        for link in links {
            self.queue.add(link, cause, now);
        }
    }

    /// Whether every watch has listed its objects.
    fn is_whole(&self) -> bool {
        let own = self.clusters.is_whole && self.policies.is_whole && self.placements.is_whole && self.works.is_whole;
        own && self.objects.iter().all(|(kind, listed)| listed.is_whole || self.custom.contains(kind))
    }

    /// Returns when the next object is due. Nothing is planned before every watch has listed its objects.
    pub(super) fn next_due(&mut self, now: Instant) -> Option<Instant> {
        if self.is_whole() { self.queue.next_due(now) } else { None }
    }

    /// Returns objects to plan, and regards them as planned.
    pub(super) fn next(&mut self, most: usize, now: Instant) -> Vec<PlacementLink> {
        if !self.is_whole() {
            return Vec::new();
        }
        if !self.is_prepared() {
            self.refresh(true, now);
        }
        self.prepare_capacity();
        self.pend_moves(now);
        std::iter::from_fn(|| self.queue.next(now)).take(most).collect()
    }

    pub(super) fn object(&self, link: &PlacementLink) -> Option<&FleetObject> {
        self.objects.values().find_map(|listed| listed.items.get(link))
    }

    pub(super) fn object_state(&self, link: &PlacementLink) -> ObjectState {
        match (self.object(link), self.verified.get(link)) {
            (Some(object), _) => ObjectState::Present(object.clone()),
            (None, Some(state)) => state.clone(),
            (None, None) => ObjectState::Unreadable("the object was not read yet".to_owned()),
        }
    }

    /// Whether the object of a Placement or Work has to be read from the API server.
    pub(super) fn is_unknown(&self, link: &PlacementLink) -> bool {
        let is_deleted = matches!(self.verified.get(link), Some(ObjectState::Deleted));
        self.object(link).is_none() && !is_deleted && self.reference(link).is_some()
    }

    pub(super) fn verified(&mut self, link: PlacementLink, state: ObjectState) {
        self.verified.insert(link, state);
    }

    /// Returns the object of a Placement or its Works.
    pub(super) fn reference(&self, link: &PlacementLink) -> Option<WorkloadRef> {
        if let Some(placement) = self.placement(link) {
            return Some(placement.spec.object.clone());
        }
        let work = self.works(link).next()?;
        FleetObject::parse(work.spec.manifest.clone()).ok().map(|object| object.reference)
    }

    pub(super) fn placement(&self, link: &PlacementLink) -> Option<&WorkloadPlacement> {
        self.placements.items.get(link)
    }

    pub(super) fn works(&self, link: &PlacementLink) -> impl Iterator<Item = &Work> {
        let keys = self.works_of.get(link).into_iter().flatten();
        keys.filter_map(|key| self.works.items.get(key))
    }

    /// Whether a cluster is in the fleet, and is not being removed. No Work is written for others.
    pub(super) fn is_member(&self, cluster: &str) -> bool {
        let found = self.clusters.items.get(cluster);
        found.is_some_and(|found| found.metadata.deletion_timestamp.is_none())
    }

    /// Returns the clusters, and those that have an object that runs pods, if that may have changed since the last call.
    pub(super) fn take_usage(&mut self) -> Option<(BTreeSet<String>, BTreeSet<String>)> {
        let busy = self.usage.take_change()?;
        Some((self.clusters.items.keys().cloned().collect(), busy))
    }

    /// Counts Placements and Works by state.
    pub(super) fn census(&self) -> FleetCensus {
        let mut census = FleetCensus { pending: self.queue.len(), ..FleetCensus::default() };
        for placement in self.placements.items.values() {
            *census.placements.entry(CensusState::of_placement(placement)).or_default() += 1;
        }
        for name in self.clusters.items.keys() {
            census.works.entry(name.clone()).or_default();
        }
        for ((namespace, _), work) in &self.works.items {
            let Some(cluster) = cluster_of_namespace(namespace) else { continue };
            let of_cluster = census.works.entry(cluster.to_owned()).or_default();
            *of_cluster.entry(CensusState::of_work(work)).or_default() += 1;
        }
        census
    }

    pub(super) fn state(&self) -> &FleetState {
        &self.state
    }

    pub(super) fn is_autoscaled(&self, object: &FleetObject) -> bool {
        object.is_autoscaled_by(self.of_kind("HorizontalPodAutoscaler").map(|object| &object.manifest))
    }

    fn of_kind(&self, kind: &'static str) -> impl Iterator<Item = &FleetObject> {
        let listed = self.objects.iter().filter(move |(placed, _)| placed.kind == kind);
        listed.flat_map(|(_, listed)| listed.items.values())
    }

    /// Notes what was written, so that the next plan does not write it again before a watch reports it.
    pub(super) fn written(&mut self, written: WrittenObjects, now: Instant) {
        if let Some(mut placement) = written.placement {
            // As the watches have it.
            placement.metadata.managed_fields = None;
            let link = link_of(&placement);
            let reported = placement.status.as_ref().and_then(|status| status.observed_generation);
            if reported != placement.metadata.generation {
                self.pend([link.clone()], PlanCause::Report, now);
            }
            self.placements.items.insert(link.clone(), placement);
            self.index_placement(&link);
        }
        for mut work in written.works {
            work.metadata.managed_fields = None;
            let key = work_key(&work);
            self.works.items.insert(key.clone(), work);
            self.index(key, now);
        }
        self.pend_fitting(now);
        self.pend_moves(now);
    }
}

fn link_of(placement: &WorkloadPlacement) -> PlacementLink {
    PlacementLink { namespace: placement.namespace().unwrap_or_default(), name: placement.name_any() }
}

fn work_key(work: &Work) -> WorkKey {
    (work.namespace().unwrap_or_default(), work.name_any())
}

fn read(kind: &PlacedKind, object: DynamicObject) -> Option<(PlacementLink, FleetObject)> {
    let object = kind.read(serde_json::to_value(object).ok()?)?;
    Some((placement_link(&object.reference), object))
}

fn touched<K: Ord>(change: ListedChange<K>) -> BTreeSet<K> {
    match change {
        ListedChange::Nothing => BTreeSet::new(),
        ListedChange::Changed(key) | ListedChange::Deleted(key) => [key].into(),
        ListedChange::Listed { missing } => missing,
    }
}
