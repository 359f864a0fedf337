//! What a workload cluster has room for, as its agent reports it.

use alloc::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::{ResourceQuantities, WorkloadTaint};

/// What a cluster has room for. Nodes with equal labels and taints are one group, and those of a group with equal room are counted together. All
/// amounts are rounded down.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct CapacityReport {
    /// The report counts all pods that the cluster had at this time, on the clock of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "date_time")]
    pub observed_time: Option<MicroTime>,
    /// The number of nodes.
    #[serde(default)]
    #[schemars(range(min = 0))]
    pub nodes: u32,
    /// What is free on all nodes together.
    #[serde(default, skip_serializing_if = "ResourceQuantities::is_empty")]
    pub free: ResourceQuantities,
    /// The nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub node_groups: Vec<NodeGroup>,
    /// Keys of labels that nodes have, and that the report leaves out because their values differ from node to node. `*` stands for more keys. Pods
    /// that select nodes by such a label do not fit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub omitted_labels: Vec<String>,
    /// The number of nodes that the report leaves out, because it would become too large.
    #[serde(default, skip_serializing_if = "is_zero")]
    #[schemars(range(min = 0))]
    pub omitted_nodes: u32,
}

/// Nodes with equal labels and taints.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeGroup {
    /// The labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// The taints that keep pods away.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<WorkloadTaint>,
    /// The room of the nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub rooms: Vec<NodeRooms>,
}

/// Nodes with equal room.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeRooms {
    /// The number of nodes.
    #[schemars(range(min = 0))]
    pub nodes: u32,
    /// What is free on each of them.
    #[serde(default, skip_serializing_if = "ResourceQuantities::is_empty")]
    pub free: ResourceQuantities,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(value: &u32) -> bool {
    *value == 0
}

/// The schema of a time.
pub(crate) fn date_time(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "format": "date-time" })
}
