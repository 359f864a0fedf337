//! `Work`: one object for one cluster.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, MicroTime};
use keelway_api::condition;
use kube_derive::CustomResource;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use crate::{ConflictResolution, DriftPolicy, capacity::date_time};

/// The condition of a Work whose object the agent has applied.
pub const WORK_APPLIED: &str = "Applied";

/// One object for one cluster, in the namespace `fleet-CLUSTER`. The fleet controller writes it, and the agent of the cluster applies it.
/// If it is deleted, the agent deletes the object.
#[derive(CustomResource, Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    crates(kube_core = "kube_core"),
    group = "fleet.keelway.dev",
    version = "v1alpha1",
    kind = "Work",
    plural = "works",
    namespaced,
    status = "WorkStatus",
    shortname = "wk",
    category = "keelway-fleet",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct WorkSpec {
    /// The object as the agent applies it.
    #[schemars(schema_with = "embedded_object")]
    pub manifest: Json,
    /// The Placement that the Work belongs to.
    pub placement: PlacementLink,
    /// What happens if an object with the name exists in the cluster and does not belong to the fleet.
    #[serde(default)]
    pub conflict_resolution: ConflictResolution,
    /// What happens if a field that the fleet applied is changed in the cluster.
    #[serde(default)]
    pub drift: DriftPolicy,
    /// Who decides on `spec.replicas` of the object.
    #[serde(default)]
    pub replicas_owner: ReplicasOwner,
}

/// The Placement that a Work belongs to.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PlacementLink {
    /// The namespace of the Placement.
    pub namespace: String,
    /// The name of the Placement.
    pub name: String,
}

/// Who decides on `spec.replicas` of an object.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ReplicasOwner {
    /// The fleet: the number is in the manifest.
    #[default]
    Fleet,
    /// An autoscaler in the cluster: the manifest has no number, and the agent keeps the one in the cluster.
    Autoscaler,
}

/// What the agent reports of a Work.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkStatus {
    /// `Applied`: the agent has applied the object.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "condition::list_schema")]
    pub conditions: Vec<Condition>,
    /// The generation of the Work that the status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
    /// The generation of the object in the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub object_generation: Option<i64>,
    /// The status of the object in the cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "preserved_object")]
    pub object_status: Option<Json>,
    /// When the agent observed the status of the object, on its own clock. The agent's report of capacity counts the pods that the object had then, if
    /// it is not older.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "date_time")]
    pub observed_time: Option<MicroTime>,
    /// The paths of fields that were changed in the cluster, if the policy says `drift: Report`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub drift: Vec<String>,
}

/// The API server records the owner of the object as a whole. With an owner for each field in it, a Work would be nearly twice as large.
const ATOMIC: &str = "atomic";

fn embedded_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "x-kubernetes-embedded-resource": true,
        "x-kubernetes-map-type": ATOMIC,
        "x-kubernetes-preserve-unknown-fields": true,
    })
}

fn preserved_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "x-kubernetes-map-type": ATOMIC,
        "x-kubernetes-preserve-unknown-fields": true,
    })
}
