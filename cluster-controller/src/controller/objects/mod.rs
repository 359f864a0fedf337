//! All that the controller applies in its cluster and keeps as it is there. Pure.

mod access;
mod addons;
mod information;
mod policies;
mod service;
#[cfg(test)]
mod tests;

use keelway_api::crd::worker_crds;
use kube::core::DynamicObject;
use serde_json::{Value, json};

use super::{Configuration, MANAGER};

/// The label of what the controller applies: it watches what has it, and takes away what has it and is no longer wanted.
pub(crate) const LABEL: &str = "app.kubernetes.io/managed-by";

/// The objects cannot be put together.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// A template is no YAML.
    #[error("the template of {name} is no YAML")]
    Template {
        /// Which.
        name: &'static str,
        /// Why.
        #[source]
        source: Box<serde_saphyr::Error>,
    },
    /// An object has no kind or name.
    #[error("an object is none of Kubernetes'")]
    Form(#[source] serde_json::Error),
    /// The release is unknown.
    #[error("{0:?} is no release of Keelway's")]
    Release(String),
}

/// The definitions of our own kinds, which come before all else.
pub(crate) fn definitions() -> Result<Vec<DynamicObject>, ObjectError> {
    worker_crds()
        .into_iter()
        .map(|crd| serde_json::to_value(crd).map_err(ObjectError::Form).and_then(labelled))
        .collect()
}

/// All else.
pub(crate) fn wanted(configuration: &Configuration, authorities: &str) -> Result<Vec<DynamicObject>, ObjectError> {
    let mut objects = access::objects();
    objects.extend(policies::objects());
    objects.extend(service::objects(&configuration.api_addresses()));
    objects.extend(information::objects(configuration, authorities)?);
    objects.extend(addons::objects(configuration)?);
    objects.into_iter().map(labelled).collect()
}

/// Where such objects are: `apiVersion`, `kind`, plural, namespace. All of these are watched, and nothing else is.
pub(crate) const PLACES: [(&str, &str, &str, Option<&str>); 19] = [
    ("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", None),
    ("rbac.authorization.k8s.io/v1", "ClusterRole", "clusterroles", None),
    ("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", "clusterrolebindings", None),
    ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy", "validatingadmissionpolicies", None),
    ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings", None),
    ("apiregistration.k8s.io/v1", "APIService", "apiservices", None),
    ("discovery.k8s.io/v1", "EndpointSlice", "endpointslices", Some("default")),
    ("v1", "Endpoints", "endpoints", Some("default")),
    ("rbac.authorization.k8s.io/v1", "Role", "roles", Some("kube-public")),
    ("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings", Some("kube-public")),
    ("v1", "ConfigMap", "configmaps", Some("kube-public")),
    ("rbac.authorization.k8s.io/v1", "Role", "roles", Some("kube-system")),
    ("rbac.authorization.k8s.io/v1", "RoleBinding", "rolebindings", Some("kube-system")),
    ("v1", "ConfigMap", "configmaps", Some("kube-system")),
    ("v1", "ServiceAccount", "serviceaccounts", Some("kube-system")),
    ("v1", "Service", "services", Some("kube-system")),
    ("apps/v1", "Deployment", "deployments", Some("kube-system")),
    ("apps/v1", "DaemonSet", "daemonsets", Some("kube-system")),
    ("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets", Some("kube-system")),
];

fn labelled(mut object: Value) -> Result<DynamicObject, ObjectError> {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        let labels = metadata.entry("labels").or_insert_with(|| json!({}));
        if let Some(labels) = labels.as_object_mut() {
            labels.insert(LABEL.to_owned(), json!(MANAGER));
        }
    }
    serde_json::from_value(object).map_err(ObjectError::Form)
}
