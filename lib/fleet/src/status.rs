//! The status of an object in the fleet, merged from what its clusters report.

mod conditions;
mod counted;
mod fields;
mod job;

use alloc::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use keelway_api::condition::{ConditionStatus, ConditionValue, is_true, set, set_or_remove};
use serde_json::{Map, Value as Json, json};

use crate::{
    FleetObject, PLACEMENT_APPLIED, PLACEMENT_MOVING, PLACEMENT_SCHEDULED, PlacedClusterStatus, PlacementSpec,
    PlacementStatus, WORK_APPLIED, WorkPlan, WorkStatus,
    names::{
        REASON_CANNOT_MOVE, REASON_DELEGATED, REASON_NOT_SUBMITTED, REASON_SPREAD_REFUSED, REASON_TRACKED,
        SCHEDULE_LABEL, SCHEDULE_TRUE,
    },
    object::APPS,
};

/// What a cluster reports of an object.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ClusterReport<'a> {
    /// The cluster.
    pub cluster: &'a str,
    /// The status of the Work.
    pub status: &'a WorkStatus,
    /// Whether the Work is as decided, and the agent has observed it.
    pub is_current: bool,
}

impl ClusterReport<'_> {
    fn object(&self) -> Option<&Json> {
        self.status.object_status.as_ref()
    }

    /// Whether the status in the cluster describes what the fleet asks for.
    fn is_observed(&self) -> bool {
        let observed = self.object().and_then(|status| status.get("observedGeneration")).and_then(Json::as_i64);
        self.is_current && (observed.is_none() || observed == self.status.object_generation)
    }
}

/// How the statuses of a kind are merged.
enum MergeRule {
    /// Numbers are added.
    Counts(&'static [&'static str]),
    /// As a Job: numbers are added, and it is complete once it is complete everywhere.
    Job,
    /// Lists of runs are joined, and times are the latest.
    CronJob,
    /// Addresses of load balancers are joined.
    LoadBalancer,
    /// The phase is the least advanced.
    Phase(&'static [&'static str]),
    /// Only conditions are merged.
    Conditions,
}

fn rule(group: &str, kind: &str) -> MergeRule {
    match (group, kind) {
        (APPS, "Deployment") => MergeRule::Counts(&counted::DEPLOYMENT),
        (APPS, "ReplicaSet") | ("", "ReplicationController") => MergeRule::Counts(&counted::REPLICA_SET),
        (APPS, "StatefulSet") => MergeRule::Counts(&counted::STATEFUL_SET),
        (APPS, "DaemonSet") => MergeRule::Counts(&counted::DAEMON_SET),
        ("batch", "Job") => MergeRule::Job,
        ("batch", "CronJob") => MergeRule::CronJob,
        ("", "Service") | ("networking.k8s.io", "Ingress") => MergeRule::LoadBalancer,
        ("", "PersistentVolumeClaim") => MergeRule::Phase(&["Lost", "Pending", "Bound"]),
        ("", "Pod") => MergeRule::Phase(&["Failed", "Unknown", "Pending", "Running", "Succeeded"]),
        _ => MergeRule::Conditions,
    }
}

/// Returns the status of an object with a Placement, or `None` if no cluster reports one. A cluster of the Placement without a report counts as one that
/// has not applied the object, and reports of other clusters do not count.
#[must_use]
pub fn object_status(object: &FleetObject, placement: &PlacementSpec, reports: &[ClusterReport<'_>]) -> Option<Json> {
    let none = WorkStatus::default();
    let complete: Vec<ClusterReport<'_>> = placement
        .clusters
        .iter()
        .map(|placed| {
            let reported = reports.iter().find(|report| report.cluster == placed.name).copied();
            reported.unwrap_or(ClusterReport { cluster: &placed.name, status: &none, is_current: false })
        })
        .collect();
    merged_status(object, &complete)
}

/// Returns the status of an object, or `None` if no cluster reports one. There is one report for each cluster that runs the object, in the order of
/// their names.
///
/// An object in one cluster has the status of that cluster. The generation that it describes is that of the object in the fleet, once every cluster
/// has observed it.
#[must_use]
pub fn merged_status(object: &FleetObject, reports: &[ClusterReport<'_>]) -> Option<Json> {
    let parts: Vec<(&str, &Json)> =
        reports.iter().filter_map(|report| Some((report.cluster, report.object()?))).collect();
    let rule = rule(&object.reference.group, &object.reference.kind);
    let mut status = match (parts.as_slice(), reports.len()) {
        ([], _) => return None,
        ([(_, only)], 1) => (*only).clone(),
        (parts, clusters) => merged(&rule, parts, clusters),
    };
    let describes = reports.iter().all(ClusterReport::is_observed);
    let fields = status.as_object_mut()?;
    let has_generation = parts.iter().any(|(_, part)| part.get("observedGeneration").is_some());
    // The generation of an object in a cluster means nothing in the fleet, and API servers refuse a smaller count of collisions.
    fields.shift_remove("observedGeneration");
    fields.shift_remove("collisionCount");
    if matches!(rule, MergeRule::Job) {
        job::only_forward(fields, &object.manifest["status"]);
    }
    if let Some(generation) = object.generation.filter(|_| has_generation) {
        // Not yet observed is the generation before.
        let observed = if describes { generation } else { generation - 1 };
        fields.insert("observedGeneration".to_owned(), json!(observed.max(0)));
    }
    Some(status)
}

fn merged(rule: &MergeRule, parts: &[(&str, &Json)], clusters: usize) -> Json {
    let mut status = Map::new();
    match rule {
        MergeRule::Counts(fields) => counted::add(&mut status, parts, fields),
        MergeRule::Job => job::merge(&mut status, parts, clusters),
        MergeRule::CronJob => {
            fields::join(&mut status, parts, "/active");
            fields::latest(&mut status, parts, &["lastScheduleTime", "lastSuccessfulTime"]);
        }
        MergeRule::LoadBalancer => fields::load_balancer(&mut status, parts),
        MergeRule::Phase(order) => fields::phase(&mut status, parts, order, clusters),
        MergeRule::Conditions => (),
    }
    let conditions = conditions::merge(parts, clusters);
    if !conditions.is_empty() {
        status.insert("conditions".to_owned(), Json::Array(conditions));
    }
    if matches!(rule, MergeRule::Job) {
        job::defer_failure(&mut status, parts, clusters);
    }
    Json::Object(status)
}

/// Returns the status of a Placement: what each of its clusters reports, and whether all have applied the object. `works` is the plan of its Works.
#[must_use]
pub fn placement_status(
    placement: &PlacementSpec,
    generation: Option<i64>,
    reports: &[ClusterReport<'_>],
    works: &WorkPlan,
    before: Option<&PlacementStatus>,
    now: &Time,
) -> PlacementStatus {
    let by_name: BTreeMap<&str, &ClusterReport<'_>> = reports.iter().map(|report| (report.cluster, report)).collect();
    let reported = |name: &str| by_name.get(name).copied();
    let mut status = PlacementStatus {
        conditions: before.map(|before| before.conditions.clone()).unwrap_or_default(),
        clusters: placement
            .clusters
            .iter()
            .map(|cluster| cluster_status(&cluster.name, reported(&cluster.name)))
            .collect(),
        observed_generation: generation,
    };
    let faults = works.faults();
    let is_applied = |name: &&str| {
        let report = reported(name);
        report.is_some_and(|report| report.is_current && is_true(&report.status.conditions, WORK_APPLIED))
    };
    let missing: Vec<&str> =
        placement.clusters.iter().map(|cluster| cluster.name.as_str()).filter(|name| !is_applied(name)).collect();
    set(&mut status.conditions, PLACEMENT_SCHEDULED, scheduled(placement), generation, now);
    set(&mut status.conditions, PLACEMENT_APPLIED, applied(placement, &missing), generation, now);
    let moving = works.moving().or_else(|| cannot_move(placement));
    set_or_remove(&mut status.conditions, PLACEMENT_MOVING, moving, generation, now);
    for (cluster, fault) in faults {
        status.replace_report(cluster, fault, before, now);
    }
    status
}

fn cluster_status(name: &str, report: Option<&ClusterReport<'_>>) -> PlacedClusterStatus {
    let number = |field: &str| {
        let value = report?.object()?.get(field)?.as_u64()?;
        u32::try_from(value).ok()
    };
    PlacedClusterStatus {
        name: name.to_owned(),
        replicas: number("replicas"),
        // API servers leave out numbers that are 0.
        ready_replicas: number("readyReplicas").or_else(|| number("replicas").map(|_| 0)),
        conditions: report.map(|report| report.status.conditions.clone()).unwrap_or_default(),
    }
}

impl PlacementStatus {
    /// Says why a cluster has no Work as decided, in the place of what its agent reports: that is about a previous Work.
    fn replace_report(&mut self, cluster: &str, fault: ConditionValue, before: Option<&Self>, now: &Time) {
        let is_it = |status: &&PlacedClusterStatus| status.name == cluster;
        let before = before.and_then(|before| before.clusters.iter().find(is_it));
        let Some(status) = self.clusters.iter_mut().find(|status| status.name == cluster) else { return };
        if let Some(before) = before {
            status.conditions.clone_from(&before.conditions);
        }
        set(&mut status.conditions, WORK_APPLIED, fault, None, now);
    }
}

fn scheduled(placement: &PlacementSpec) -> ConditionValue {
    if placement.is_delegated() {
        let message = format!(
            "{}; another orchestrator submits the object there, with the label {SCHEDULE_LABEL}: \"{SCHEDULE_TRUE}\"",
            running(placement)
        );
        return value(ConditionStatus::True, REASON_DELEGATED, message);
    }
    if !placement.clusters.is_empty() {
        return value(ConditionStatus::True, "Scheduled", running(placement));
    }
    let reasons = placement.reasons.iter().map(|reason| format!("{}: {}", reason.cluster, reason.message));
    let reasons: Vec<String> = reasons.take(MOST_NAMED).collect();
    let more = placement.reasons.len().saturating_sub(MOST_NAMED);
    let message = match (reasons.is_empty(), more) {
        (true, _) => "the fleet has no cluster; register one with `keelway fleet token create`".to_owned(),
        (false, 0) => reasons.join("; "),
        (false, more) => format!("{}; and {more} more clusters", reasons.join("; ")),
    };
    if let Some(needs) = &placement.needs {
        let message = format!("the object asks for {needs}, and no cluster that may run it has room: {message}");
        return value(ConditionStatus::False, "NoRoom", message);
    }
    let is_refused = placement.reasons.iter().any(|reason| reason.reason == REASON_SPREAD_REFUSED);
    value(ConditionStatus::False, if is_refused { REASON_SPREAD_REFUSED } else { "NoCluster" }, message)
}

fn applied(placement: &PlacementSpec, missing: &[&str]) -> ConditionValue {
    match (placement.clusters.is_empty(), missing) {
        (true, _) => value(ConditionStatus::False, "NoCluster", "no cluster runs the object".to_owned()),
        (false, []) if placement.is_delegated() => {
            value(ConditionStatus::True, REASON_TRACKED, "every cluster has the object".to_owned())
        }
        (false, missing) if missing.iter().any(|name| is_delegated_in(placement, name)) => value(
            ConditionStatus::False,
            REASON_NOT_SUBMITTED,
            format!("no orchestrator has submitted the object in {}; status.clusters has the reasons", listed(missing)),
        ),
        (false, []) => value(ConditionStatus::True, "Applied", "every cluster has applied the object".to_owned()),
        (false, missing) => value(
            ConditionStatus::False,
            "NotApplied",
            format!("not applied in {}; status.clusters has the reasons", listed(missing)),
        ),
    }
}

fn is_delegated_in(placement: &PlacementSpec, cluster: &str) -> bool {
    placement.clusters.iter().any(|placed| placed.delegated && placed.name == cluster)
}

/// Returns why the object cannot leave a cluster that it has to leave, if it cannot.
fn cannot_move(placement: &PlacementSpec) -> Option<ConditionValue> {
    let stuck = placement.stuck()?;
    Some(value(ConditionStatus::False, REASON_CANNOT_MOVE, format!("{}: {}", stuck.cluster, stuck.message)))
}

/// The number of clusters that a message names.
const MOST_NAMED: usize = 8;

/// Returns the clusters that run an object. If there is one, the reason follows.
fn running(placement: &PlacementSpec) -> String {
    let names: Vec<&str> = placement.clusters.iter().map(|cluster| cluster.name.as_str()).collect();
    let reason = match names.as_slice() {
        [only] => placement.reasons.iter().find(|reason| reason.cluster == *only),
        [] | [_, _, ..] => None,
    };
    reason.map_or_else(|| listed(&names), |reason| format!("{}: {}", reason.cluster, reason.message))
}

fn listed(names: &[&str]) -> String {
    let first = names.iter().take(MOST_NAMED).copied().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(MOST_NAMED) {
        0 => first,
        more => format!("{first} and {more} more"),
    }
}

fn value(status: ConditionStatus, reason: &str, message: String) -> ConditionValue {
    ConditionValue { status, reason: reason.to_owned(), message }
}
