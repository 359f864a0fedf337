//! Decides what to write for one object. Pure.

use std::{collections::BTreeMap, mem};

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use keelway_fleet::{
    ClusterReport, DecisionRequest, ExistingWork, FleetObject, LeaveCause, ObjectState, PlacementDecision,
    PlacementLink, PlacementOutcome, PlacementSpec, PlacementStatus, TargetLabel, WORK_APPLIED, Work, WorkOrder,
    WorkPlan, WorkloadPlacement, WorkloadRef, decide, is_placeable,
    names::{EVENT_LOST, EVENT_MATCHED, EVENT_MOVING, REASON_CANNOT_MOVE, REASON_NOT_SUBMITTED, cluster_of_namespace},
    object_status, placement_status, plan_works,
};
use kube::{core::ApiResource, runtime::events::EventType};
use serde_json::Value;

use super::model::FleetModel;

/// The reason of the Event that an object cannot be applied in a cluster.
const EVENT_FAILED: &str = "ApplyFailed";

/// Kinds whose status the fleet's own API server writes.
const OWN_STATUS: [&str; 2] = ["CustomResourceDefinition", "Namespace"];

/// What to write for one object, in this order.
#[derive(Debug, Default)]
pub(super) struct ObjectPlan {
    pub(super) object: Option<WorkloadRef>,
    /// How the API server serves the kind of the object.
    pub(super) resource: Option<ApiResource>,
    pub(super) save: Option<PlacementSpec>,
    pub(super) orders: Vec<WorkOrder>,
    /// The object names the cluster in which another orchestrator submits it.
    pub(super) target: Option<TargetLabel>,
    pub(super) object_status: Option<Value>,
    pub(super) placement_status: Option<PlacementStatus>,
    /// The clusters that the object leaves once fewer others do, and why.
    pub(super) waits: BTreeMap<String, LeaveCause>,
    /// The Placement is no longer needed.
    pub(super) remove: bool,
    pub(super) events: Vec<PlannedEvent>,
}

/// An Event about an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PlannedEvent {
    pub(super) is_warning: bool,
    pub(super) reason: &'static str,
    pub(super) note: String,
}

impl PlannedEvent {
    pub(super) fn kind(&self) -> EventType {
        if self.is_warning { EventType::Warning } else { EventType::Normal }
    }
}

/// Plans one object.
pub(super) fn plan(link: &PlacementLink, model: &FleetModel) -> ObjectPlan {
    let state = model.object_state(link);
    let saved = model.placement(link);
    let mut plan = ObjectPlan { object: model.reference(link), ..ObjectPlan::default() };
    plan.resource = plan.object.as_ref().and_then(|object| model.resource(object));
    let mut is_autoscaled = false;
    if let ObjectState::Present(object) = &state {
        plan.object = Some(object.reference.clone());
        plan.resource = model.resource(&object.reference);
        is_autoscaled = model.is_autoscaled(object);
        if !object.is_deleting && is_placeable(object) {
            let request = DecisionRequest { object, is_autoscaled, current: saved.map(|saved| &saved.spec) };
            plan.place(decide(model.state(), &request), saved);
        }
    }
    let kinds = &model.state().pod_kinds;
    let existing: Vec<ExistingWork> = model.works(link).filter_map(|work| ExistingWork::read(work, kinds)).collect();
    let current = plan.save.as_ref().or(saved.map(|saved| &saved.spec));
    let target = match (&state, current) {
        (ObjectState::Present(object), Some(placement)) if !object.is_deleting => {
            TargetLabel::needed(object, placement, kinds)
        }
        (_, _) => None,
    };
    let mut works = plan_works(&state, is_autoscaled, current, link, &existing);
    plan.target = target;
    plan.orders = mem::take(&mut works.orders);
    plan.orders.retain(|order| match order {
        WorkOrder::Create(work) | WorkOrder::Update(work) => model.is_member(&work.cluster),
        WorkOrder::Delete { .. } => true,
    });
    match (&state, saved) {
        (ObjectState::Present(object), Some(saved)) if plan.save.is_none() => {
            plan.report(object, saved, &works, &reported(link, saved, model));
        }
        (ObjectState::Deleted, Some(_)) => plan.remove = existing.is_empty(),
        (_, _) => {}
    }
    plan
}

impl ObjectPlan {
    fn place(&mut self, decision: PlacementDecision, saved: Option<&WorkloadPlacement>) {
        self.waits = decision.waits;
        let PlacementOutcome::Place(spec) = decision.outcome else { return };
        self.events.extend(saved.and_then(|saved| moved(&saved.spec, &spec)));
        let is_new_policy = saved.is_none_or(|saved| saved.spec.policy != spec.policy);
        if let Some(policy) = spec.policy.as_ref().filter(|_| is_new_policy) {
            let clusters: Vec<&str> = spec.clusters.iter().map(|cluster| cluster.name.as_str()).collect();
            let note = match clusters.as_slice() {
                [] => format!("SchedulePolicy {policy} selects the object, and no cluster can run it"),
                clusters => format!("SchedulePolicy {policy} selects the object for {}", clusters.join(", ")),
            };
            self.events.push(PlannedEvent { is_warning: false, reason: EVENT_MATCHED, note });
            if !decision.ignored.is_empty() {
                let ignored = decision.ignored.join(", ");
                let note = format!("SchedulePolicy {policy} comes before {ignored}, which select the object as well");
                self.events.push(PlannedEvent { is_warning: true, reason: EVENT_LOST, note });
            }
        }
        self.save = Some(spec);
    }

    /// Reports what the clusters report.
    fn report(
        &mut self,
        object: &FleetObject,
        saved: &WorkloadPlacement,
        works: &WorkPlan,
        reports: &[ClusterReport<'_>],
    ) {
        let faults = works.faults();
        let mut reports = reports.to_vec();
        for report in reports.iter_mut().filter(|report| faults.contains_key(report.cluster)) {
            report.is_current = false;
        }
        let reports = reports.as_slice();
        let generation = saved.metadata.generation;
        let now = Time(Timestamp::now());
        let after = placement_status(&saved.spec, generation, reports, works, saved.status.as_ref(), &now);
        self.events.extend(failures(saved.status.as_ref(), &after));
        self.placement_status = (saved.status.as_ref() != Some(&after)).then_some(after);
        if !OWN_STATUS.contains(&object.reference.kind.as_str()) {
            let merged = object_status(object, &saved.spec, reports);
            self.object_status = merged.filter(|merged| !is_same(merged, &object.manifest["status"]));
        }
    }
}

/// Returns what the clusters of a Placement report.
fn reported<'a>(link: &PlacementLink, saved: &WorkloadPlacement, model: &'a FleetModel) -> Vec<ClusterReport<'a>> {
    let report = |work: &'a Work| {
        let cluster = cluster_of_namespace(work.metadata.namespace.as_deref()?)?;
        let status = work.status.as_ref()?;
        let is_current = status.observed_generation == work.metadata.generation;
        Some(ClusterReport { cluster, status, is_current })
    };
    let mut reports: Vec<ClusterReport<'a>> = model.works(link).filter_map(report).collect();
    reports.retain(|report| saved.spec.clusters.iter().any(|cluster| cluster.name == report.cluster));
    reports.sort_by_key(|report| report.cluster);
    reports
}

/// Returns an Event if an object leaves clusters, or if it has to and cannot. It names the cause.
fn moved(before: &PlacementSpec, after: &PlacementSpec) -> Option<PlannedEvent> {
    let why = |cluster: &str| {
        let reason = after.reasons.iter().find(|reason| reason.cluster == cluster);
        reason.map_or("the cluster was removed from the fleet", |reason| &reason.message)
    };
    if let Some(stuck) = after.stuck().filter(|stuck| before.stuck() != Some(stuck)) {
        let note = format!("The object stays in {}: {}", stuck.cluster, stuck.message);
        return Some(PlannedEvent { is_warning: true, reason: REASON_CANNOT_MOVE, note });
    }
    let runs = |placement: &PlacementSpec, name: &str| placement.clusters.iter().any(|cluster| cluster.name == name);
    let left: Vec<&str> =
        before.clusters.iter().map(|one| one.name.as_str()).filter(|name| !runs(after, name)).collect();
    let new: Vec<&str> = after.clusters.iter().map(|one| one.name.as_str()).collect();
    let first = left.first().filter(|_| !new.is_empty())?;
    let note = format!("The object moves from {} to {}: {}", left.join(", "), new.join(", "), why(first));
    Some(PlannedEvent { is_warning: false, reason: EVENT_MOVING, note })
}

/// Returns an Event for each cluster that reports a new failure.
fn failures(before: Option<&PlacementStatus>, after: &PlacementStatus) -> Vec<PlannedEvent> {
    let failure = |status: &PlacementStatus, name: &str| {
        let cluster = status.clusters.iter().find(|cluster| cluster.name == name)?;
        let applied = cluster.conditions.iter().find(|condition| condition.type_ == WORK_APPLIED)?;
        (applied.status == "False" && applied.reason != REASON_NOT_SUBMITTED).then(|| applied.message.clone())
    };
    let new = after.clusters.iter().filter_map(|cluster| {
        let message = failure(after, &cluster.name)?;
        let is_known = before.and_then(|before| failure(before, &cluster.name)).as_ref() == Some(&message);
        (!is_known).then(|| PlannedEvent {
            is_warning: true,
            reason: EVENT_FAILED,
            note: format!("{}: {message}", cluster.name),
        })
    });
    new.collect()
}

/// Whether two statuses are the same to an API server, which leaves out what is empty or zero.
fn is_same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            let mut keys = a.keys().chain(b.keys());
            keys.all(|key| is_same(a.get(key).unwrap_or(&Value::Null), b.get(key).unwrap_or(&Value::Null)))
        }
        (Value::Array(a), Value::Array(b)) => a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_same(a, b)),
        (a, b) => a == b || (is_empty(a) && is_empty(b)),
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(is) => !is,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.values().all(is_empty),
    }
}
