//! `Placement`: what was decided for one object.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use keelway_api::condition;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    ConflictResolution, DriftPolicy, FailoverPolicy, FieldOverride, cluster::is_false, names::REASON_CANNOT_MOVE,
};

/// The condition of a Placement with a cluster for its object.
pub const PLACEMENT_SCHEDULED: &str = "Scheduled";
/// The condition of a Placement whose object is applied in each of its clusters.
pub const PLACEMENT_APPLIED: &str = "Applied";

/// The condition of a Placement whose object moves, or has to and cannot. Other Placements do not have it.
pub const PLACEMENT_MOVING: &str = "Moving";

/// What was decided for one object: the clusters that run it, and the reason for each cluster. The fleet controller writes it. Change the
/// policy or the annotations of the object instead.
#[derive(CustomResource, Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    crates(kube_core = "kube_core"),
    group = "fleet.keelway.dev",
    version = "v1alpha1",
    kind = "Placement",
    root = "WorkloadPlacement",
    plural = "placements",
    namespaced,
    status = "PlacementStatus",
    shortname = "pl",
    category = "keelway-fleet",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct PlacementSpec {
    /// The object.
    pub object: WorkloadRef,
    /// The policy that decides. It is absent if annotations of the object decide.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// What happens if an object with the name exists in a cluster and does not belong to the fleet.
    #[serde(default)]
    pub conflict_resolution: ConflictResolution,
    /// What happens if a field that the fleet applied is changed in a cluster.
    #[serde(default)]
    pub drift: DriftPolicy,
    /// When the object leaves a cluster that is not ready. It is absent if it never does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failover: Option<FailoverPolicy>,
    /// The clusters that run the object.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clusters: Vec<PlacedCluster>,
    /// The clusters that the object leaves, or left, because they were not ready, as long as that matters: until it has left them, or until it
    /// returns. If it is not divided, it returns to the first one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lost_clusters: Vec<String>,
    /// The pods that the object asks for, while no cluster has room for them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub needs: Option<String>,
    /// Why each cluster runs the object or does not.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<PlacementReason>,
}

impl PlacementSpec {
    /// Returns the reason of a cluster that the object has to leave and cannot, if there is one.
    #[must_use]
    pub fn stuck(&self) -> Option<&PlacementReason> {
        self.reasons.iter().find(|reason| reason.reason == REASON_CANNOT_MOVE)
    }

    /// Whether another orchestrator submits the object in one of its clusters.
    #[must_use]
    pub fn is_delegated(&self) -> bool {
        self.clusters.iter().any(|cluster| cluster.delegated)
    }

    /// Returns the cluster in which another orchestrator has to submit the object, if it runs in that cluster only.
    #[must_use]
    pub fn delegated_to(&self) -> Option<&str> {
        match self.clusters.as_slice() {
            [only] if only.delegated => Some(&only.name),
            _ => None,
        }
    }
}

/// An object in the fleet.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadRef {
    /// The API group. The core group is the empty text.
    #[serde(default)]
    pub group: String,
    /// The version.
    pub version: String,
    /// The kind.
    pub kind: String,
    /// The namespace. It is absent for objects without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The name.
    pub name: String,
    /// The unique id. A later object with the same name has another one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uid: Option<String>,
}

/// A cluster that runs an object.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlacedCluster {
    /// The name of the cluster.
    pub name: String,
    /// The replicas that the cluster runs. It is absent if the object is not divided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub replicas: Option<u32>,
    /// If true, the agent of the cluster applies nothing: another orchestrator submits the object there, with the label
    /// `fleet.keelway.dev/schedule: "true"`.
    #[serde(default, skip_serializing_if = "is_false")]
    pub delegated: bool,
    /// The fields that differ in the cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<FieldOverride>,
}

/// Why a cluster runs an object or does not.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlacementReason {
    /// The name of the cluster.
    pub cluster: String,
    /// One CamelCase word for machines.
    pub reason: String,
    /// A sentence for people.
    pub message: String,
}

/// What the clusters report of an object.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlacementStatus {
    /// `Scheduled`: there is a cluster for the object. Its reason is `Delegated` if another orchestrator submits the object there. `Applied`: each cluster has applied it. `Moving`: it leaves clusters, or it has to leave one and
    /// cannot. It is absent otherwise.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "condition::list_schema")]
    pub conditions: Vec<Condition>,
    /// What each cluster reports.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clusters: Vec<PlacedClusterStatus>,
    /// The generation of the Placement that the status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}

/// What a cluster reports of an object.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlacedClusterStatus {
    /// The name of the cluster.
    pub name: String,
    /// The replicas in the cluster, if the object has replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub replicas: Option<u32>,
    /// The replicas in the cluster that are ready, if the object has replicas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 0))]
    pub ready_replicas: Option<u32>,
    /// The conditions of the object's Work in the cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "condition::list_schema")]
    pub conditions: Vec<Condition>,
}
