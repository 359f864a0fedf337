//! Which pods of a Work the reports of its cluster do not count yet.

use alloc::collections::BTreeMap;

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::MicroTime, jiff::Timestamp};
use keelway_api::condition::is_true;
use serde_json::Value as Json;

use crate::{
    CapacityLedger, DesiredWork, FleetObject, ObjectDemand, PlacementSpec, PodKinds, WORK_APPLIED, Work, WorkStatus,
    desired_works, names::works_namespace, pod_kinds::is_finished_job,
};

/// Returns the pods that an agent applied or will apply, and that its last report of capacity does not count. `reported` is the time of that report.
///
/// A report counts all pods that existed at its time. So it counts those that the status of the object shows, if the agent has observed that status
/// before. Otherwise all pods are regarded as not counted, and some may be counted twice until the next report.
#[must_use]
pub fn uncounted_pods(work: &Work, kinds: &PodKinds, reported: Option<Timestamp>) -> ObjectDemand {
    let demand = kinds.demand(&work.spec.manifest);
    let Some(status) = work.status.as_ref().filter(|status| is_observed(work, status)) else { return demand };
    let observed = status.observed_time.as_ref().map(|MicroTime(time)| *time);
    if observed.is_none() || observed > reported {
        return demand;
    }
    let object = status.object_status.as_ref().unwrap_or(&Json::Null);
    match existing_pods(&work.spec.manifest, object) {
        Some(existing) => demand.without(existing),
        None => ObjectDemand::default(),
    }
}

/// An object with its Placement, whose pods the reports of its clusters may not count yet.
#[derive(Debug, Clone, Copy)]
pub struct PlacementDemands<'a> {
    /// The object.
    pub object: &'a FleetObject,
    /// Its Placement, as it is or as it is about to be.
    pub placement: &'a PlacementSpec,
    /// Where the objects of each kind have their pods.
    pub kinds: &'a PodKinds,
    /// What the clusters report.
    pub capacity: &'a CapacityLedger,
}

impl PlacementDemands<'_> {
    /// Returns the pods that each cluster has or gets, and that its report does not count, with the generation of the Work that was read. `ordered` are
    /// the Works that are about to be written. `is_autoscaled` returns whether a HorizontalPodAutoscaler scales the object.
    pub fn uncounted<'w>(
        &self,
        works: impl IntoIterator<Item = &'w Work>,
        ordered: impl IntoIterator<Item = &'w DesiredWork>,
        is_autoscaled: impl FnOnce() -> bool,
    ) -> BTreeMap<String, (Option<i64>, ObjectDemand)> {
        let Self { object, kinds, capacity, .. } = self;
        let mut demands = BTreeMap::new();
        if object.is_deleting || !kinds.runs_pods(&object.reference.group, &object.reference.kind) {
            return demands;
        }
        let mut missing = self.placement.clone();
        for work in works {
            let namespace = work.metadata.namespace.as_deref();
            let cluster =
                missing.clusters.iter().position(|placed| Some(works_namespace(&placed.name).as_str()) == namespace);
            if let Some(index) = cluster {
                let name = missing.clusters.remove(index).name;
                let observed = capacity.observed(&name);
                demands.insert(name, (work.metadata.generation, uncounted_pods(work, kinds, observed)));
            }
        }
        for work in ordered {
            missing.clusters.retain(|placed| placed.name != work.cluster);
            demands.insert(work.cluster.clone(), (None, kinds.demand(&work.spec.manifest)));
        }
        if !missing.clusters.is_empty() {
            let works = desired_works(object, &missing, is_autoscaled()).into_iter().flatten();
            demands.extend(works.map(|work| (work.cluster, (None, kinds.demand(&work.spec.manifest)))));
        }
        demands
    }
}

/// Whether the status describes the Work as it is, and its object as the agent applied it.
pub(crate) fn is_observed(work: &Work, status: &WorkStatus) -> bool {
    let object = status.object_status.as_ref();
    let generation = object.and_then(|object| object["observedGeneration"].as_i64());
    status.observed_generation == work.metadata.generation
        && is_true(&status.conditions, WORK_APPLIED)
        && object.and_then(Json::as_object).is_some_and(|fields| !fields.is_empty())
        && (generation.is_none() || generation == status.object_generation)
}

/// Returns how many pods of an object exist by its status, or `None` if all of them do.
fn existing_pods(manifest: &Json, status: &Json) -> Option<u64> {
    let number = |field: &str| status[field].as_u64().unwrap_or(0);
    match manifest["kind"].as_str().unwrap_or_default() {
        "Deployment" | "ReplicaSet" | "StatefulSet" | "ReplicationController" => Some(number("replicas")),
        "Job" if is_finished_job(status) => None,
        "Job" => Some(number("active") + finished_places(&manifest["spec"], status)),
        "CronJob" => Some(status["active"].as_array().map_or(0, Vec::len) as u64),
        "DaemonSet" if number("currentNumberScheduled") >= number("desiredNumberScheduled") => None,
        "DaemonSet" => Some(0),
        // The operator of another kind creates the pods before it writes a status.
        _ => None,
    }
}

/// Returns how many of the pods that a Job runs at once are not needed any more, because only few completions are left.
fn finished_places(spec: &Json, status: &Json) -> u64 {
    let Some(completions) = spec["completions"].as_u64() else { return 0 };
    let parallel = spec["parallelism"].as_u64().unwrap_or(1).min(completions);
    let left = completions.saturating_sub(status["succeeded"].as_u64().unwrap_or(0));
    parallel.saturating_sub(left)
}
