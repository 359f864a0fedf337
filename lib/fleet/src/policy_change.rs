//! What a change of policies would do: the objects that would run elsewhere. Nothing is written.

use alloc::collections::{BTreeMap, BTreeSet};

use k8s_openapi::jiff::Timestamp;
use serde::Serialize;

use crate::{
    CandidateCluster, ClusterActivity, ContentRole, DecisionRequest, FleetClock, FleetObject, FleetState,
    PlacedCluster, PlacedKind, PlacementDemands, PlacementLink, PlacementOutcome, PlacementReason, PlacementSpec,
    PodKinds, PolicySet, Work, WorkloadCluster, WorkloadPlacement, WorkloadRef, decide, is_placeable,
    names::cluster_of_namespace, placement_link,
};

const DEFINITION: &str = "CustomResourceDefinition";

/// The documents of a fleet at one time.
#[derive(Debug, Clone, Default)]
pub struct FleetDocuments {
    /// The clusters.
    pub clusters: Vec<WorkloadCluster>,
    /// The Placements.
    pub placements: Vec<WorkloadPlacement>,
    /// The Works of all clusters.
    pub works: Vec<Work>,
    /// The objects of all kinds that a fleet places, among them all Namespaces and HorizontalPodAutoscalers.
    pub objects: Vec<FleetObject>,
    /// Where the objects of each kind have their pods.
    pub pod_kinds: PodKinds,
    /// The time of the decisions.
    pub now: Timestamp,
}

/// An object that would run elsewhere.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PlacementChange {
    /// The object.
    pub object: WorkloadRef,
    /// What is decided with the policies of the fleet.
    pub before: DecidedPlacement,
    /// What would be decided.
    pub after: DecidedPlacement,
}

/// What is decided on an object.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct DecidedPlacement {
    /// The policy that decides. It is absent if annotations do, or nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// The clusters that run the object.
    pub clusters: Vec<PlacedCluster>,
    /// Why each cluster runs the object or does not.
    pub reasons: Vec<PlacementReason>,
}

/// The place of an object in a list.
fn place(object: &WorkloadRef) -> (Option<&str>, &str, &str, &str) {
    (object.namespace.as_deref(), &object.kind, &object.group, &object.name)
}

impl FleetDocuments {
    /// Returns the objects that would run in other clusters, or with other replicas or overrides, if the policies of the fleet were replaced. Both
    /// decisions are made now, so what would change anyway is no difference. They are in the order of their namespaces, kinds and names.
    #[must_use]
    pub fn changes(&self, before: &PolicySet, after: &PolicySet) -> Vec<PlacementChange> {
        let (mut before, mut after) = (self.decided(before), self.decided(after));
        let changed = self.placeable().filter_map(|object| {
            let link = placement_link(&object.reference);
            let before = before.remove(&link).unwrap_or_default();
            let after = after.remove(&link).unwrap_or_default();
            let is_changed = before.clusters != after.clusters;
            is_changed.then(|| PlacementChange { object: object.reference.clone(), before, after })
        });
        let mut changed: Vec<PlacementChange> = changed.collect();
        changed.sort_by(|a, b| place(&a.object).cmp(&place(&b.object)));
        changed
    }

    fn placeable(&self) -> impl Iterator<Item = &FleetObject> {
        self.objects.iter().filter(|object| is_placeable(object) && !object.is_deleting)
    }

    /// Decides on each object. What was decided is reserved for the next one.
    fn decided(&self, policies: &PolicySet) -> BTreeMap<PlacementLink, DecidedPlacement> {
        let link = |placement: &WorkloadPlacement| {
            let name = placement.metadata.name.clone().unwrap_or_default();
            PlacementLink { namespace: placement.metadata.namespace.clone().unwrap_or_default(), name }
        };
        let saved: BTreeMap<PlacementLink, &PlacementSpec> =
            self.placements.iter().map(|placement| (link(placement), &placement.spec)).collect();
        let mut works: BTreeMap<&PlacementLink, Vec<&Work>> = BTreeMap::new();
        for work in &self.works {
            works.entry(&work.spec.placement).or_default().push(work);
        }
        let autoscalers: Vec<_> = self.of_kind("HorizontalPodAutoscaler").map(|object| &object.manifest).collect();
        let objects: Vec<(PlacementLink, &FleetObject, bool)> = self
            .placeable()
            .map(|object| {
                let is_autoscaled = object.is_autoscaled_by(autoscalers.iter().copied());
                (placement_link(&object.reference), object, is_autoscaled)
            })
            .collect();
        let mut fleet = self.state(policies);
        let reserve = |fleet: &mut FleetState,
                       link: &PlacementLink,
                       object: &FleetObject,
                       is_autoscaled: bool,
                       placement: &PlacementSpec| {
            let (kinds, capacity) = (&self.pod_kinds, &fleet.capacity);
            let demands = PlacementDemands { object, placement, kinds, capacity };
            let demands = demands.uncounted(works.get(link).into_iter().flatten().copied(), [], || is_autoscaled);
            let demands = demands.into_iter().map(|(cluster, (_, demand))| (cluster, demand)).collect();
            fleet.capacity.reserve(link, &demands);
        };
        for (link, object, is_autoscaled) in &objects {
            if let Some(placement) = saved.get(link) {
                reserve(&mut fleet, link, object, *is_autoscaled, placement);
            }
        }
        let mut decided = BTreeMap::new();
        // Resources of a kind are placed once its definition is.
        let built_in: BTreeSet<(String, String)> = PlacedKind::built_in().map(|kind| (kind.group, kind.kind)).collect();
        let (definitions, others): (Vec<_>, Vec<_>) =
            objects.into_iter().partition(|(_, object, _)| object.reference.kind == DEFINITION);
        let mut custom_kinds = BTreeSet::new();
        for (link, object, is_autoscaled) in definitions.into_iter().chain(others) {
            let kind = (object.reference.group.clone(), object.reference.kind.clone());
            if !built_in.contains(&kind) && !custom_kinds.contains(&kind) {
                continue;
            }
            let current = saved.get(&link).copied();
            let decision = decide(&fleet, &DecisionRequest { object, is_autoscaled, current });
            let placement = match decision.outcome {
                PlacementOutcome::NotSelected => continue,
                PlacementOutcome::Keep(_) => current.cloned(),
                PlacementOutcome::Place(placement) => {
                    reserve(&mut fleet, &link, object, is_autoscaled, &placement);
                    Some(placement)
                }
            };
            let Some(PlacementSpec { policy, clusters, reasons, .. }) = placement else { continue };
            let definition = Some(object).filter(|object| object.reference.kind == DEFINITION);
            let kind = definition.and_then(|object| PlacedKind::defined_by(&object.manifest));
            custom_kinds.extend(kind.map(|kind| (kind.group, kind.kind)));
            decided.insert(link, DecidedPlacement { policy, clusters, reasons });
        }
        decided
    }

    fn of_kind(&self, kind: &'static str) -> impl Iterator<Item = &FleetObject> {
        self.objects.iter().filter(move |object| object.reference.kind == kind)
    }

    fn state(&self, policies: &PolicySet) -> FleetState {
        let clusters = self.clusters.iter().map(CandidateCluster::read);
        let namespaces = self.of_kind("Namespace").map(|object| (object.reference.name.clone(), object.labels.clone()));
        let mut fleet = FleetState {
            clusters: clusters.map(|cluster| (cluster.name.clone(), cluster)).collect(),
            policies: policies.clone(),
            namespaces: namespaces.collect(),
            pod_kinds: self.pod_kinds.clone(),
            clock: FleetClock { now: self.now, ..FleetClock::default() },
            ..FleetState::default()
        };
        for cluster in &self.clusters {
            let report = cluster.status.as_ref().and_then(|status| status.capacity.as_ref());
            fleet.capacity.report(cluster.metadata.name.as_deref().unwrap_or_default(), report);
        }
        for work in &self.works {
            let Some(cluster) = work.metadata.namespace.as_deref().and_then(cluster_of_namespace) else { continue };
            let manifest = &work.spec.manifest;
            let namespace = manifest["metadata"]["namespace"].as_str().unwrap_or_default();
            let activity: &mut ClusterActivity = fleet.activity.entry(cluster.to_owned()).or_default();
            activity.add(ContentRole::of(manifest, &self.pod_kinds), namespace);
        }
        fleet
    }
}
