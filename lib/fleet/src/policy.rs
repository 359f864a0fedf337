//! `SchedulePolicy`: which objects run in which clusters.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use keelway_api::duration::Span;
use kube_derive::CustomResource;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use crate::{ClusterToleration, names::NAME_LABEL};

/// Which objects run in which clusters.
///
/// If several policies select an object, the one with the highest `priority` decides, then the first by name. Annotations of an object
/// come before all policies: `fleet.keelway.dev/cluster: NAME`, and `fleet.keelway.dev/spread-onto: NAME,NAME`.
#[derive(CustomResource, Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    crates(kube_core = "kube_core"),
    group = "fleet.keelway.dev",
    version = "v1alpha1",
    kind = "SchedulePolicy",
    plural = "schedulepolicies",
    shortname = "sp",
    category = "keelway-fleet",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase")]
pub struct SchedulePolicySpec {
    /// The labels of the namespaces whose objects the policy selects. The default is all namespaces. Objects without a namespace are
    /// selected whatever this field contains.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace_selector: Option<LabelSelector>,
    /// The objects that the policy selects.
    pub resource_selectors: ResourceSelectors,
    /// The labels of the clusters that may run the objects. The default is all clusters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cluster_selector: Option<LabelSelector>,
    /// The clusters that may run the objects, in the order in which they are filled. Each object runs in the first cluster that has room for
    /// it. It stays there when an earlier one has room again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ordered_cluster_selector: Option<OrderedClusterSelector>,
    /// The taints of clusters that do not keep the objects away.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<ClusterToleration>,
    /// If several policies select an object, the one with the highest priority decides, then the first by name.
    #[serde(default)]
    pub priority: i32,
    /// What happens if an object with the name exists in the cluster and does not belong to the fleet.
    #[serde(default)]
    pub conflict_resolution: ConflictResolution,
    /// What happens if a field that the fleet applied is changed in a cluster.
    #[serde(default)]
    pub drift: DriftPolicy,
    /// How the objects are spread over all clusters that the policy selects. If the field is absent, each object runs in one cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread_constraints: Option<SpreadConstraints>,
    /// When objects leave a cluster that is not ready. If the field is absent, they stay there. It does not apply to objects that run in every
    /// cluster, or whose clusters an annotation names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failover: Option<FailoverPolicy>,
}

/// When objects leave a cluster that is not ready, and whether they return to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FailoverPolicy {
    /// How long the condition `Ready` of a cluster has to be `Unknown` or `False` before objects leave it. They leave it only if another cluster
    /// can run them. It is also how long a cluster has to be ready again before objects return to it.
    #[serde(default = "FailoverPolicy::default_after")]
    pub after: Span,
    /// Whether an object returns to the cluster that it left. Replicas that are divided always return.
    #[serde(default)]
    pub recovery: FailoverRecovery,
    /// How many objects with pods may leave a cluster, or return to it, at a time. An object counts until it is ready in its new clusters. Objects
    /// without pods move at once.
    #[serde(default = "FailoverPolicy::default_moves")]
    #[schemars(range(min = 1))]
    pub max_moves: u32,
}

impl FailoverPolicy {
    /// The time, unless another one is set.
    #[must_use]
    pub fn default_after() -> Span {
        Span::minutes(5)
    }

    /// The number of moves at a time, unless another one is set.
    #[must_use]
    pub fn default_moves() -> u32 {
        4
    }
}

/// What happens with an object that left a cluster once the cluster is ready again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum FailoverRecovery {
    /// The object stays in its new cluster.
    #[default]
    Stay,
    /// The object moves back, if it has room there. Its new cluster runs it until it is ready.
    Return,
}

/// The objects that a policy selects. An object is selected if one of the label selectors matches it and one of the kinds is its own. A
/// list that is absent selects every object.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourceSelectors {
    /// Selectors of labels, of which one has to match. An empty selector matches every object.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub label_selectors: Vec<LabelSelector>,
    /// Kinds, of which one has to match.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kinds: Vec<KindSelector>,
}

/// Clusters in an order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OrderedClusterSelector {
    /// One label of clusters, and its values in the order in which clusters are filled.
    pub match_expressions: Vec<OrderedValues>,
}

/// The values of a label of clusters, in an order.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OrderedValues {
    /// The label. The name of a cluster is the label `kubernetes.io/metadata.name`.
    pub key: String,
    /// The operator, which is `In`.
    pub operator: OrderedOperator,
    /// The values. Clusters with the first one are filled first. Clusters with no value of the list run nothing of the policy.
    pub values: Vec<String>,
}

/// The operator of an ordered selector.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum OrderedOperator {
    /// The label has one of the values.
    #[default]
    In,
}

/// A kind of objects.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KindSelector {
    /// The API group. The core group is `core`, or the empty text.
    pub group: String,
    /// The version. The default is every version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The kind, such as `Deployment`.
    pub kind: String,
}

/// What happens if an object with the name exists in the cluster and does not belong to the fleet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ConflictResolution {
    /// The object is adopted if no other manager owns a different value of a field that the fleet applies. Otherwise the conflict is
    /// reported, and nothing is changed.
    #[default]
    Fail,
    /// The object is adopted, and the values of the fleet replace those of other managers.
    Overwrite,
}

/// What happens if a field that the fleet applied is changed in a cluster.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum DriftPolicy {
    /// The agent applies the object again.
    #[default]
    Correct,
    /// The agent reports the fields, and leaves them.
    Report,
}

/// How objects are spread over the clusters that a policy selects.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SpreadConstraints {
    /// A label of clusters. Clusters with the same value of it form one domain. The default is the name, so that each cluster is a domain
    /// of its own. Clusters without the label run nothing of the policy.
    #[serde(default = "name_label")]
    pub topology_key: String,
    /// Whether the replicas of an object are divided among the domains, or each cluster runs all of them. Objects without replicas run in
    /// every cluster in both modes.
    #[serde(default)]
    pub spread_mode: SpreadMode,
    /// The share of each domain in the replicas. The shares add up to 100. A domain that is not named runs none. If the list is absent,
    /// the shares are equal.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub percentage_split: Vec<PercentageShare>,
    /// The fields that differ between domains.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<TopologyOverrides>,
}

fn name_label() -> String {
    NAME_LABEL.to_owned()
}

/// How the replicas of an object are spread.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SpreadMode {
    /// The replicas are divided. Their sum is what the object asks for.
    #[default]
    Divide,
    /// Each cluster runs all replicas.
    Duplicate,
}

/// The share of a domain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct PercentageShare {
    /// The value of the label that `topologyKey` names.
    pub topology_value: String,
    /// The share in percent.
    #[schemars(range(min = 0, max = 100))]
    pub percentage: u32,
}

/// The fields that differ in a domain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct TopologyOverrides {
    /// The value of the label that `topologyKey` names.
    pub topology_value: String,
    /// The objects with such fields.
    pub resources: Vec<ResourceOverride>,
}

/// The fields of an object that differ in a domain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ResourceOverride {
    /// The API group. The core group is `core`, or the empty text.
    #[serde(default)]
    pub group: String,
    /// The version. The default is every version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The kind, such as `Deployment`.
    pub kind: String,
    /// The name of the object.
    pub name: String,
    /// The namespace of the object. The default is every namespace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The fields.
    #[serde(rename = "override")]
    pub fields: Vec<FieldOverride>,
}

/// A field and its value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct FieldOverride {
    /// The path of the field: names separated by dots, `[n]` for an item of a list, and `['key']` for a name with dots or slashes, such as
    /// `metadata.labels['example.com/net']` or `spec.template.spec.containers[0].env[0].value`.
    pub field_path: String,
    /// The value.
    pub value: OverrideValue,
}

/// The value of a field.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct OverrideValue {
    /// Any value: a text, a number, a list, an object.
    #[schemars(schema_with = "any_value")]
    pub static_value: Json,
}

fn any_value(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "x-kubernetes-preserve-unknown-fields": true })
}
