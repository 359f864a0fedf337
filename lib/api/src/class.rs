//! `ClusterClass`: defaults and limits that an operator sets for Clusters.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use crate::class_status::{ClassImagesSpec, ClassStatus};

use crate::{
    Newer,
    allowed_sink::AllowedSinkSpec,
    duration::Span,
    hypervisor::SecretReference,
    quantity::{Cpu, Memory},
    role::Role,
    secret_name::SecretName,
};

/// The annotation of the default class, which Clusters that name no class get, as with a StorageClass.
pub const DEFAULT_CLASS: &str = "keelway.dev/is-default-class";

/// Defaults and limits that an operator sets for the Clusters of the class.
#[derive(CustomResource, Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[kube(
    crates(kube_core = "kube_core"),
    group = "keelway.dev",
    version = "v1alpha1",
    kind = "ClusterClass",
    plural = "clusterclasses",
    shortname = "kwcc",
    category = "keelway",
    derive = "PartialEq"
)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClusterClassSpec {
    /// The namespaces whose Clusters may use the class. The default is all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<String>,
    /// The labels of the machines on which components of these Clusters are placed. The default is all machines. Components that are
    /// already placed do not move.
    #[serde(default)]
    pub hypervisor_selector: LabelSelector,
    /// The registry of images and its credentials. If any of them is set, Clusters may not set their own.
    #[serde(default)]
    pub images: ClassImagesSpec,
    /// The maximum values that Clusters may set.
    #[serde(default)]
    pub limits: LimitsSpec,
    /// The arguments that Clusters may set for their components.
    #[serde(default)]
    pub allowed_arguments: AllowedArgumentsSpec,
    /// The Kubernetes releases that Clusters may run. The default is all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub versions: Vec<String>,
    /// The places where Clusters may store snapshots (`spec.etcd.snapshots.sink`). The manager writes there. The default is
    /// none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub snapshot_sinks: Vec<AllowedSinkSpec>,
    /// Fields of a newer release.
    #[serde(skip)]
    pub newer: Newer,
}

/// The maximum values that Clusters may set. A value without a limit is not restricted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LimitsSpec {
    /// The maximum number of Clusters of the class in one namespace. Existing Clusters stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clusters_per_namespace: Option<u32>,
    /// The maximum number of etcd members of a Cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd_replicas: Option<u32>,
    /// The maximum number of replicas of each role of a Cluster's control plane.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane_replicas: Option<u32>,
    /// The maximum number of ingresses of a Cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ingress_replicas: Option<u32>,
    /// The maximum `limits.cpu` of a component.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Cpu>,
    /// The maximum `limits.memory` of a component.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
    /// The maximum `spec.etcd.quota` of a Cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd_quota: Option<Memory>,
    /// The minimum lifetimes of certificates.
    #[serde(default, rename = "minTTL", skip_serializing_if = "Option::is_none")]
    pub min_ttl: Option<LivesSpec>,
    /// The maximum lifetimes of certificates.
    #[serde(default, rename = "maxTTL", skip_serializing_if = "Option::is_none")]
    pub max_ttl: Option<LivesSpec>,
}

/// Lifetimes of certificates, as in `spec.certificates` of a Cluster.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LivesSpec {
    /// The lifetime of components' certificates.
    #[serde(default, rename = "componentTTL", skip_serializing_if = "Option::is_none")]
    pub component_ttl: Option<Span>,
    /// The lifetime of workers' certificates.
    #[serde(default, rename = "workerTTL", skip_serializing_if = "Option::is_none")]
    pub worker_ttl: Option<Span>,
    /// The lifetime of certificates in kubeconfigs of administrators.
    #[serde(default, rename = "adminTTL", skip_serializing_if = "Option::is_none")]
    pub admin_ttl: Option<Span>,
    /// The lifetime of certificate authorities.
    #[serde(default, rename = "authorityTTL", skip_serializing_if = "Option::is_none")]
    pub authority_ttl: Option<Span>,
    /// How long after the end of its certificate a worker can renew it.
    #[serde(default, rename = "workerGrace", skip_serializing_if = "Option::is_none")]
    pub worker_grace: Option<Span>,
}

/// The arguments that Clusters may set for their components, by name without dashes. If a role has no list, all arguments in
/// docs/arguments.md are allowed. If its list is empty, none are.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AllowedArgumentsSpec {
    /// The arguments of API servers.
    #[serde(default, rename = "kubeAPIServer", skip_serializing_if = "Option::is_none")]
    pub kube_api_server: Option<Vec<String>>,
    /// The arguments of controller managers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kube_controller_manager: Option<Vec<String>>,
    /// The arguments of schedulers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kube_scheduler: Option<Vec<String>>,
}

impl ClusterClass {
    /// Returns whether this is the class of Clusters that name none.
    #[must_use]
    pub fn is_default(&self) -> bool {
        let annotations = self.metadata.annotations.as_ref();
        annotations.and_then(|annotations| annotations.get(DEFAULT_CLASS)).is_some_and(|value| value == "true")
    }

    /// Returns whether Clusters of a namespace may use it.
    #[must_use]
    pub fn is_for(&self, namespace: &str) -> bool {
        self.spec.namespaces.is_empty() || self.spec.namespaces.iter().any(|name| name == namespace)
    }
}

impl ClassImagesSpec {
    /// Returns whether nothing is set, so that Clusters may set their own.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.registry.is_none() && self.overrides.is_empty() && self.pull_secrets.is_empty()
    }

    /// Returns the names of the Secrets.
    pub fn secrets(&self) -> impl Iterator<Item = SecretName> {
        self.pull_secrets
            .iter()
            .map(|SecretReference { namespace, name }| SecretName { namespace: namespace.clone(), name: name.clone() })
    }
}

impl AllowedArgumentsSpec {
    /// Returns the arguments that a role's components may have, or `None` if all are allowed.
    #[must_use]
    pub fn of(&self, role: Role) -> Option<&[String]> {
        match role {
            Role::KubeApiserver => self.kube_api_server.as_deref(),
            Role::KubeControllerManager => self.kube_controller_manager.as_deref(),
            Role::KubeScheduler => self.kube_scheduler.as_deref(),
            Role::Etcd | Role::ClusterController | Role::FleetController | Role::Ingress | Role::Gateway => None,
        }
    }
}

/// Returns whether a selector matches these labels, as in Kubernetes: all of its requirements must hold.
#[must_use]
pub fn selects(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    let mut wanted = selector.match_labels.iter().flatten();
    let mut asked = selector.match_expressions.iter().flatten();
    wanted.all(|(key, value)| labels.get(key) == Some(value)) && asked.all(|one| holds(one, labels))
}

fn holds(asked: &LabelSelectorRequirement, labels: &BTreeMap<String, String>) -> bool {
    let value = labels.get(&asked.key);
    let is_listed = value.is_some_and(|value| asked.values.iter().flatten().any(|one| one == value));
    match asked.operator.as_str() {
        "In" => is_listed,
        "NotIn" => !is_listed,
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_select_as_in_kubernetes() {
        let labels = |text: &str| -> BTreeMap<String, String> {
            text.split_terminator(',')
                .filter_map(|pair| pair.split_once('='))
                .map(|(k, v)| (k.into(), v.into()))
                .collect()
        };
        let selector = |json: &str| serde_json::from_str::<LabelSelector>(json).unwrap();
        for (asked, taken, left) in [
            ("{}", "", None),
            (r#"{"matchLabels":{"tier":"gold"}}"#, "tier=gold,zone=a", Some("tier=tin")),
            (r#"{"matchExpressions":[{"key":"tier","operator":"In","values":["gold","tin"]}]}"#, "tier=tin", Some("")),
            (r#"{"matchExpressions":[{"key":"tier","operator":"NotIn","values":["tin"]}]}"#, "", Some("tier=tin")),
            (r#"{"matchExpressions":[{"key":"tier","operator":"Exists"}]}"#, "tier=", Some("other=gold")),
            (r#"{"matchExpressions":[{"key":"tier","operator":"DoesNotExist"}]}"#, "zone=a", Some("tier=tin")),
            (
                r#"{"matchLabels":{"zone":"a"},"matchExpressions":[{"key":"tier","operator":"Exists"}]}"#,
                "zone=a,tier=tin",
                Some("zone=a"),
            ),
        ] {
            assert!(selects(&selector(asked), &labels(taken)), "{asked} takes {taken}");
            assert!(left.is_none_or(|left| !selects(&selector(asked), &labels(left))), "{asked} leaves {left:?}");
        }
    }
}
