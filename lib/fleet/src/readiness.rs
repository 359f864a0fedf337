//! Whether the pods of an object in a cluster are ready, by its status.

use serde_json::Value as Json;

use crate::{PodKinds, Work, arrival::is_observed};

/// How far the pods of an object in a cluster are. An object without pods is ready, and serves nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PodReadiness {
    /// Whether all pods are ready.
    pub is_ready: bool,
    /// Whether some pods are ready.
    pub is_serving: bool,
}

impl PodReadiness {
    /// Reads the status of a Work.
    pub(crate) fn read(work: &Work, kinds: &PodKinds) -> Self {
        let manifest = &work.spec.manifest;
        if !kinds.has_pods(manifest) {
            return Self { is_ready: true, is_serving: false };
        }
        let Some(status) = &work.status else { return Self { is_ready: false, is_serving: false } };
        let object = status.object_status.as_ref().unwrap_or(&Json::Null);
        let (ready, wanted) = match manifest["kind"].as_str().unwrap_or_default() {
            // Each run is one of many, or the only one. Nothing waits for pods.
            "CronJob" | "Job" => return Self { is_ready: true, is_serving: false },
            "Deployment" | "ReplicaSet" | "ReplicationController" | "StatefulSet" => {
                // Without a number, an autoscaler decides.
                let wanted = manifest["spec"]["replicas"].as_u64();
                (number(object, "readyReplicas"), wanted.unwrap_or_else(|| number(object, "replicas").max(1)))
            }
            "DaemonSet" => (number(object, "numberReady"), number(object, "desiredNumberScheduled")),
            "Pod" => (u64::from(is_ready_pod(object)), 1),
            _ => (u64::from(is_running(object)), 1),
        };
        Self { is_ready: is_observed(work, status) && ready >= wanted, is_serving: ready > 0 }
    }
}

fn number(status: &Json, field: &str) -> u64 {
    status[field].as_u64().unwrap_or(0)
}

fn is_ready_pod(status: &Json) -> bool {
    let mut conditions = status["conditions"].as_array().into_iter().flatten();
    conditions.any(|one| one["type"] == "Ready" && one["status"] == "True")
}

/// Whether the operator of another kind has written a status, and none of the usual conditions in it contradicts.
fn is_running(status: &Json) -> bool {
    let mut conditions = status["conditions"].as_array().into_iter().flatten();
    let is_there = status.as_object().is_some_and(|fields| !fields.is_empty());
    is_there && conditions.all(|one| (one["type"] != "Ready" && one["type"] != "Available") || one["status"] == "True")
}
