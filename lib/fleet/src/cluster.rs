//! `Cluster` of `fleet.keelway.dev`: a workload cluster.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use keelway_api::condition;
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{CapacityReport, ResourceQuantities};

/// The condition of a cluster whose agent reports and reaches the API server of its cluster.
pub const CLUSTER_READY: &str = "Ready";
/// The condition of a cluster in which the fleet runs nothing that uses resources.
pub const CLUSTER_IDLE: &str = "Idle";
/// The condition of a cluster that the fleet has put to sleep. It is always `False`: the fleet does not do that yet.
pub const CLUSTER_STANDBY: &str = "Standby";

/// A workload cluster: a Kubernetes cluster in which the fleet runs objects. Its agent creates it when it registers.
///
/// Policies select clusters by label. The labels `kubernetes.io/metadata.name` and `fleet.keelway.dev/{provider,region,zone,version}` are
/// set for you; add any others.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[kube(
    crates(kube_core = "kube_core"),
    group = "fleet.keelway.dev",
    version = "v1alpha1",
    kind = "Cluster",
    root = "WorkloadCluster",
    plural = "clusters",
    status = "WorkloadClusterStatus",
    shortname = "wc",
    category = "keelway-fleet",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadClusterSpec {
    /// The provider, such as `aws`, `gce` or `keelway`. It is also the label `fleet.keelway.dev/provider`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// The region. It is also the label `fleet.keelway.dev/region`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub region: Option<String>,
    /// The zone. It is also the label `fleet.keelway.dev/zone`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// If true, the cluster adds nodes while pods wait for room. If no cluster has room for an object, it is placed in a cluster that adds nodes.
    #[serde(default, skip_serializing_if = "is_false")]
    pub autoscaled: bool,
    /// If true, the cluster is cordoned: nothing new is placed in it. What runs there stays.
    #[serde(default, skip_serializing_if = "is_false")]
    pub unschedulable: bool,
    /// If set, the cluster is drained: nothing new is placed in it, and what runs there moves to other clusters that can run it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub drain: Option<ClusterDrain>,
    /// Objects that do not tolerate a taint with the effect `NoSchedule` are not placed in the cluster. What runs there stays.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub taints: Vec<ClusterTaint>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
pub(crate) fn is_false(value: &bool) -> bool {
    !*value
}

/// How a cluster is drained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterDrain {
    /// How many objects with pods may move at a time. Objects without pods move at once.
    #[serde(default = "ClusterDrain::default_moves")]
    #[schemars(range(min = 1))]
    pub max_moves: u32,
}

impl ClusterDrain {
    /// The number of moves at a time, unless another one is set.
    #[must_use]
    pub fn default_moves() -> u32 {
        4
    }
}

/// A taint of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ClusterTaint {
    /// The key of the taint.
    pub key: String,
    /// The value of the taint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// What happens to objects that do not tolerate the taint.
    pub effect: TaintEffect,
}

/// What a taint does to objects that do not tolerate it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TaintEffect {
    /// They are not placed in the cluster.
    NoSchedule,
    /// They are placed in the cluster only if no other cluster can run them.
    PreferNoSchedule,
}

/// What the agent and the fleet controller report of a cluster.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct WorkloadClusterStatus {
    /// `Ready`: the agent reports, and it reaches the API server of its cluster. `Unknown` after 40 seconds without a report, and `False`
    /// after 120. `Idle`: the fleet runs nothing there that uses resources. `Standby`: always `False`, because the fleet puts no cluster to
    /// sleep. It does not depend on `spec.asleep` of a Keelway cluster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(schema_with = "condition::list_schema")]
    pub conditions: Vec<Condition>,
    /// The release of Kubernetes that the cluster runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kubernetes_version: Option<String>,
    /// The release of the agent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent_version: Option<String>,
    /// Whether the agent applies objects (`--orchestration-enabled`). If `false`, the fleet chooses the cluster of an object, another orchestrator
    /// submits the object there, and the agent tracks it by the label `fleet.keelway.dev/schedule: "true"`. Absent means `true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub orchestration_enabled: Option<bool>,
    /// Whether the fleet may look for another cluster by itself for what runs there (`--rescheduling-enabled`). If `false`, failover moves nothing
    /// away. Absent means `true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rescheduling_enabled: Option<bool>,
    /// The resources that pods can use on all nodes together.
    #[serde(default, skip_serializing_if = "ResourceQuantities::is_empty")]
    pub allocatable: ResourceQuantities,
    /// What the cluster has room for. It is absent until the agent has read all nodes and pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub capacity: Option<CapacityReport>,
    /// The generation of the cluster that the status describes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub observed_generation: Option<i64>,
}
