//! `ClusterClass`: what an operator gives to those who make Clusters, and what it allows them.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};
use kube_derive::CustomResource;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    Cluster, Documents, Newer,
    documents::SecretName,
    duration::Span,
    hypervisor::SecretReference,
    quantity::{Cpu, Memory},
    role::Role,
};

/// The annotation of the class of Clusters that name none, as a StorageClass has one.
pub const DEFAULT_CLASS: &str = "keelway.dev/is-default-class";

/// What an operator gives to Clusters, and what it allows those who make them.
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
    /// Namespaces whose Clusters may be of it; empty: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub namespaces: Vec<String>,
    /// The machines that hold components of these Clusters, by their labels; empty: all. What is placed already stays where it is.
    #[serde(default)]
    pub hypervisor_selector: LabelSelector,
    /// Where images come from. Where anything is given here, Clusters may not say their own.
    #[serde(default)]
    pub images: ClassImagesSpec,
    /// The most that may be asked for.
    #[serde(default)]
    pub limits: LimitsSpec,
    /// Arguments that Clusters may give to their components.
    #[serde(default)]
    pub allowed_arguments: AllowedArgumentsSpec,
    /// Kubernetes releases that Clusters may run; empty: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub versions: Vec<String>,
    /// Fields of a newer release.
    #[serde(skip)]
    pub newer: Newer,
}

/// Where images of a class come from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClassImagesSpec {
    /// A registry, with an optional path, that holds every image under its own name and tag: `registry.example.com/mirror`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registry: Option<String>,
    /// Secrets of the type `kubernetes.io/dockerconfigjson` with the credentials of registries. They are the operator's: nobody else
    /// needs to be able to read them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pull_secrets: Vec<SecretReference>,
}

/// The most that Clusters may ask for. What is not given is not limited.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LimitsSpec {
    /// Clusters of the class in one namespace. Those that run stay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub clusters_per_namespace: Option<u32>,
    /// Members of the store of a Cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd_replicas: Option<u32>,
    /// Replicas of each role of the control plane of a Cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control_plane_replicas: Option<u32>,
    /// Ingresses of a Cluster.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ingress_replicas: Option<u32>,
    /// `limits.cpu` of a component.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Cpu>,
    /// `limits.memory` of a component.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
    /// How large the database of an etcd member may grow.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub etcd_quota: Option<Memory>,
    /// The shortest lives of certificates.
    #[serde(default, rename = "minTTL", skip_serializing_if = "Option::is_none")]
    pub min_ttl: Option<LivesSpec>,
    /// The longest lives of certificates.
    #[serde(default, rename = "maxTTL", skip_serializing_if = "Option::is_none")]
    pub max_ttl: Option<LivesSpec>,
}

/// Lives of certificates, as `spec.certificates` of a Cluster has them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LivesSpec {
    /// Of components.
    #[serde(default, rename = "componentTTL", skip_serializing_if = "Option::is_none")]
    pub component_ttl: Option<Span>,
    /// Of workers.
    #[serde(default, rename = "workerTTL", skip_serializing_if = "Option::is_none")]
    pub worker_ttl: Option<Span>,
    /// In kubeconfigs of administrators.
    #[serde(default, rename = "adminTTL", skip_serializing_if = "Option::is_none")]
    pub admin_ttl: Option<Span>,
    /// Of certificate authorities.
    #[serde(default, rename = "authorityTTL", skip_serializing_if = "Option::is_none")]
    pub authority_ttl: Option<Span>,
}

/// Arguments that Clusters may give to their components, by their names without dashes. Of a role that is not given all of
/// docs/arguments.md are allowed; with an empty list none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct AllowedArgumentsSpec {
    /// Of API servers.
    #[serde(default, rename = "kubeAPIServer", skip_serializing_if = "Option::is_none")]
    pub kube_api_server: Option<Vec<String>>,
    /// Of controller managers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kube_controller_manager: Option<Vec<String>>,
    /// Of schedulers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kube_scheduler: Option<Vec<String>>,
}

/// What a Cluster was given by its class last. It keeps that where its class is taken away.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClassStatus {
    /// The name of the class.
    pub name: String,
    /// Where its images come from.
    #[serde(default)]
    pub images: ClassImagesSpec,
}

impl ClusterClass {
    /// Whether Clusters that name no class are of this one.
    #[must_use]
    pub fn is_default(&self) -> bool {
        let annotations = self.metadata.annotations.as_ref();
        annotations.and_then(|annotations| annotations.get(DEFAULT_CLASS)).is_some_and(|value| value == "true")
    }

    /// Whether Clusters of a namespace may be of it.
    #[must_use]
    pub fn is_for(&self, namespace: &str) -> bool {
        self.spec.namespaces.is_empty() || self.spec.namespaces.iter().any(|name| name == namespace)
    }
}

impl ClassImagesSpec {
    /// Whether images come from where Clusters say.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.registry.is_none() && self.pull_secrets.is_empty()
    }

    /// The names of the Secrets.
    pub fn secrets(&self) -> impl Iterator<Item = SecretName> {
        self.pull_secrets
            .iter()
            .map(|SecretReference { namespace, name }| SecretName { namespace: namespace.clone(), name: name.clone() })
    }
}

impl AllowedArgumentsSpec {
    /// What a role's components may be given, where not all is allowed.
    #[must_use]
    pub fn of(&self, role: Role) -> Option<&[String]> {
        match role {
            Role::KubeApiserver => self.kube_api_server.as_deref(),
            Role::KubeControllerManager => self.kube_controller_manager.as_deref(),
            Role::KubeScheduler => self.kube_scheduler.as_deref(),
            Role::Etcd | Role::ClusterController | Role::Ingress | Role::Gateway => None,
        }
    }
}

impl Documents {
    /// The class of Clusters that name none and were of none.
    #[must_use]
    pub fn default_class(&self) -> Option<&ClusterClass> {
        self.classes.values().map(|class| &**class).find(|class| class.is_default())
    }

    /// The name of a Cluster's class: the one that it names, else the one that it was of last, else the default, where that is for its
    /// namespace.
    #[must_use]
    pub fn class_name<'a>(&'a self, cluster: &'a Cluster) -> Option<&'a str> {
        let named = cluster.spec.class_name.as_deref();
        let last = || Some(cluster.status.as_ref()?.class.as_ref()?.name.as_str());
        let default = || self.default_class().filter(|class| class.is_for(&cluster.reference().namespace));
        named.or_else(last).or_else(|| default()?.metadata.name.as_deref())
    }

    /// A Cluster's class; none where there are no classes, and where its own is not there.
    #[must_use]
    pub fn class_of(&self, cluster: &Cluster) -> Option<&ClusterClass> {
        self.classes.get(self.class_name(cluster)?).map(|class| &**class)
    }
}

/// Whether a selector selects what has these labels, as Kubernetes has it: all of what it asks for must hold.
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
