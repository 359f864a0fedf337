//! What clusters have room for, and what is reserved for objects whose pods the reports do not count yet.

use std::collections::BTreeMap;

use keelway_fleet::{
    CandidateCluster, ObjectDemand, PlacedKind, PlacementDemands, PlacementLink, PodKinds, WorkOrder, names::POD_KINDS,
};
use kube::{ResourceExt, api::DynamicObject, runtime::watcher::Event};

use super::{FleetModel, ListedChange};
use crate::placement::plan::ObjectPlan;

/// The namespace of [`POD_KINDS`].
const POD_KINDS_NAMESPACE: &str = "kube-system";

/// Where the objects of each kind have their pods, and what is reserved for them.
#[derive(Debug, Default)]
pub(super) struct ReservedCapacity {
    pub(super) kinds: PodKinds,
    /// Whether room is reserved for everything that was placed before this replica.
    is_prepared: bool,
    /// Whether something may fit that did not fit before.
    has_grown: bool,
    /// How many pods of an object are not counted in each of its clusters, for a generation of its Work.
    uncounted: BTreeMap<PlacementLink, BTreeMap<String, (Option<i64>, u64)>>,
}

impl FleetModel {
    /// Notes the report of a cluster. Returns whether nothing else changed that decisions read.
    pub(super) fn observe_capacity(&mut self, changed: &ListedChange<String>) -> bool {
        match changed {
            ListedChange::Nothing => false,
            ListedChange::Changed(name) => {
                let Some(cluster) = self.clusters.items.get(name) else { return false };
                let is_same = self.state.clusters.get(name) == Some(&CandidateCluster::read(cluster));
                let report = cluster.status.as_ref().and_then(|status| status.capacity.as_ref());
                self.reserved.has_grown |= self.state.capacity.report(name, report);
                let reserving: Vec<PlacementLink> = self.state.capacity.reserving(name).cloned().collect();
                for link in &reserving {
                    self.reserve(link, None);
                }
                is_same
            }
            ListedChange::Deleted(name) => {
                self.state.capacity.remove(name);
                false
            }
            ListedChange::Listed { missing } => {
                for name in missing {
                    self.state.capacity.remove(name);
                }
                false
            }
        }
    }

    /// Returns the objects without a cluster and those that cannot move, if one may fit now.
    pub(super) fn take_fitting(&mut self) -> Vec<PlacementLink> {
        if !std::mem::take(&mut self.reserved.has_grown) {
            return Vec::new();
        }
        self.unscheduled.iter().cloned().collect()
    }

    /// Whether decisions know what is reserved.
    pub(super) fn is_prepared(&self) -> bool {
        self.reserved.is_prepared
    }

    /// Reserves room for what was placed before this replica, before it decides for the first time.
    pub(super) fn prepare_capacity(&mut self) {
        if !std::mem::replace(&mut self.reserved.is_prepared, true) {
            let links: Vec<PlacementLink> = self.placements.items.keys().cloned().collect();
            for link in &links {
                self.reserve(link, None);
                self.note_leaving(link, None);
            }
        }
    }

    /// Reserves room for the pods of an object that the reports do not count. `plan` is what is about to be written.
    pub(super) fn reserve(&mut self, link: &PlacementLink, plan: Option<&ObjectPlan>) {
        if !self.reserved.is_prepared {
            return;
        }
        let demands = self.demands(link, plan);
        let before = self.reserved.uncounted.remove(link).unwrap_or_default();
        let mut reserved = BTreeMap::new();
        let mut uncounted = BTreeMap::new();
        for (cluster, (generation, demand)) in demands {
            // Once a report has counted a pod, it stays counted: the pod that replaces it is in the cluster at once.
            let known = before.get(&cluster).filter(|(known, _)| generation.is_some() && *known == generation);
            let number = known.map_or(demand.number(), |(_, number)| demand.number().min(*number));
            uncounted.insert(cluster.clone(), (generation, number));
            reserved.insert(cluster, demand.without(demand.number() - number));
        }
        if !uncounted.is_empty() {
            self.reserved.uncounted.insert(link.clone(), uncounted);
        }
        self.reserved.has_grown |= self.state.capacity.reserve(link, &reserved);
    }

    /// Returns the pods that each cluster of an object has or gets, and that its report does not count, with the generation of the Work.
    fn demands(
        &self,
        link: &PlacementLink,
        plan: Option<&ObjectPlan>,
    ) -> BTreeMap<String, (Option<i64>, ObjectDemand)> {
        let saved = self.placements.items.get(link).map(|placement| &placement.spec);
        let (Some(object), Some(placement)) = (self.object(link), plan.and_then(|plan| plan.save.as_ref()).or(saved))
        else {
            return BTreeMap::new();
        };
        let demands =
            PlacementDemands { object, placement, kinds: &self.reserved.kinds, capacity: &self.state.capacity };
        let orders = plan.into_iter().flat_map(|plan| &plan.orders);
        let ordered = orders.filter_map(|order| match order {
            WorkOrder::Create(work) | WorkOrder::Update(work) => Some(work),
            WorkOrder::Delete { .. } => None,
        });
        demands.uncounted(self.works(link), ordered, || self.is_autoscaled(object))
    }

    /// Notes the table of kinds with pods. Returns whether it changed.
    pub(super) fn observe_pod_kinds(&mut self, kind: &PlacedKind, event: &Event<DynamicObject>) -> bool {
        if kind.kind != "ConfigMap" {
            return false;
        }
        let is_table = |object: &DynamicObject| {
            object.name_any() == POD_KINDS && object.namespace().as_deref() == Some(POD_KINDS_NAMESPACE)
        };
        let kinds = match event {
            Event::Apply(object) | Event::InitApply(object) if is_table(object) => read_kinds(object),
            Event::Delete(object) if is_table(object) => PodKinds::default(),
            Event::Apply(_) | Event::InitApply(_) | Event::Delete(_) | Event::Init | Event::InitDone => return false,
        };
        let is_new = kinds != self.reserved.kinds;
        self.reserved.kinds = kinds;
        is_new
    }
}

fn read_kinds(object: &DynamicObject) -> PodKinds {
    let data: BTreeMap<String, String> = serde_json::from_value(object.data["data"].clone()).unwrap_or_default();
    let (kinds, errors) = PodKinds::with_rows(&data);
    for error in errors {
        tracing::warn!("the ConfigMap {POD_KINDS_NAMESPACE}/{POD_KINDS} has a row that cannot be used: {error}");
    }
    kinds
}
