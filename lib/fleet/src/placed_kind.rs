//! The kinds that a fleet places.

use kube_core::ApiResource;
use serde_json::Value;

use crate::{FleetObject, is_placeable};

/// A kind that a fleet places.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct PlacedKind {
    /// The API group. The core group is the empty text.
    pub group: String,
    /// The version.
    pub version: String,
    /// The kind.
    pub kind: String,
    /// The name of the resource.
    pub plural: String,
}

/// A built-in kind: group, version, kind and plural.
type BuiltInKind = (&'static str, &'static str, &'static str, &'static str);

/// The built-in kinds.
const BUILT_IN: [BuiltInKind; 27] = [
    ("", "v1", "ConfigMap", "configmaps"),
    ("", "v1", "Namespace", "namespaces"),
    ("", "v1", "PersistentVolumeClaim", "persistentvolumeclaims"),
    ("", "v1", "Pod", "pods"),
    ("", "v1", "Secret", "secrets"),
    ("", "v1", "Service", "services"),
    ("", "v1", "ServiceAccount", "serviceaccounts"),
    ("admissionregistration.k8s.io", "v1", "MutatingWebhookConfiguration", "mutatingwebhookconfigurations"),
    ("admissionregistration.k8s.io", "v1", "ValidatingWebhookConfiguration", "validatingwebhookconfigurations"),
    ("apiextensions.k8s.io", "v1", "CustomResourceDefinition", "customresourcedefinitions"),
    ("apps", "v1", "DaemonSet", "daemonsets"),
    ("apps", "v1", "Deployment", "deployments"),
    ("apps", "v1", "ReplicaSet", "replicasets"),
    ("apps", "v1", "StatefulSet", "statefulsets"),
    ("autoscaling", "v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers"),
    ("batch", "v1", "CronJob", "cronjobs"),
    ("batch", "v1", "Job", "jobs"),
    ("networking.k8s.io", "v1", "Ingress", "ingresses"),
    ("networking.k8s.io", "v1", "IngressClass", "ingressclasses"),
    ("networking.k8s.io", "v1", "NetworkPolicy", "networkpolicies"),
    ("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles"),
    ("rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "clusterrolebindings"),
    ("rbac.authorization.k8s.io", "v1", "Role", "roles"),
    ("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings"),
    ("resource.k8s.io", "v1", "ResourceClaim", "resourceclaims"),
    ("resource.k8s.io", "v1", "ResourceClaimTemplate", "resourceclaimtemplates"),
    ("scheduling.k8s.io", "v1", "PriorityClass", "priorityclasses"),
];

impl From<&BuiltInKind> for PlacedKind {
    fn from((group, version, kind, plural): &BuiltInKind) -> Self {
        let [group, version, kind, plural] = [group, version, kind, plural].map(|text| (*text).to_owned());
        Self { group, version, kind, plural }
    }
}

impl PlacedKind {
    /// Returns the built-in kinds. Resources of other kinds are placed once their CustomResourceDefinition has a Placement.
    pub fn built_in() -> impl Iterator<Item = Self> {
        BUILT_IN.iter().map(Self::from)
    }

    /// Returns the kind that a CustomResourceDefinition defines, in the version that is stored.
    #[must_use]
    pub fn defined_by(definition: &Value) -> Option<Self> {
        let text = |pointer: &str| definition.pointer(pointer).and_then(Value::as_str).map(str::to_owned);
        let versions = definition.pointer("/spec/versions").and_then(Value::as_array)?;
        let stored = versions.iter().find(|version| version["storage"] == true && version["served"] == true)?;
        Some(Self {
            group: text("/spec/group")?,
            version: stored["name"].as_str()?.to_owned(),
            kind: text("/spec/names/kind")?,
            plural: text("/spec/names/plural")?,
        })
    }

    /// Reads an object of the kind that a policy may place. Namespaces are read with all others, because policies select them by label. Lists lack
    /// the fields `apiVersion` and `kind`.
    #[must_use]
    pub fn read(&self, mut manifest: Value) -> Option<FleetObject> {
        manifest["apiVersion"] = Value::from(self.api_version());
        manifest["kind"] = Value::from(self.kind.clone());
        let object = FleetObject::parse(manifest).ok()?;
        (is_placeable(&object) || object.reference.kind == "Namespace").then_some(object)
    }

    /// Returns the `apiVersion` of its objects.
    #[must_use]
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }

    /// Returns how API servers serve it.
    #[must_use]
    pub fn resource(&self) -> ApiResource {
        ApiResource {
            group: self.group.clone(),
            version: self.version.clone(),
            api_version: self.api_version(),
            kind: self.kind.clone(),
            plural: self.plural.clone(),
        }
    }
}
