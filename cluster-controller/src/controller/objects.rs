//! All objects that the controller keeps applied in its cluster. Pure.

mod access;
mod addons;
mod authority;
mod information;
mod network_policies;
mod policies;
mod service;
#[cfg(test)]
mod tests;

use keelway_api::crd::worker_crds;
use kube::core::DynamicObject;
use serde_json::{Value, json};

use super::{ControllerConfiguration, MANAGER};

/// The label of applied objects. The controller watches objects with it, and deletes those that it no longer needs.
pub(crate) use keelway_api::worker::MANAGED_BY as LABEL;

pub(crate) use authority::{PublishedAuthority, annotate_pods, has_pods};
pub(crate) use network_policies::NOT_ENFORCED;

/// The objects cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// A template is not valid YAML.
    #[error("the template of {name} is not valid YAML")]
    Template {
        /// The name of the add-on.
        name: &'static str,
        /// The error of the parser.
        #[source]
        source: Box<serde_saphyr::Error>,
    },
    /// An object has no kind or name.
    #[error("an object is not a valid Kubernetes object")]
    Form(#[source] serde_json::Error),
    /// The release is unknown.
    #[error("{0:?} is not a supported Kubernetes release")]
    Release(String),
}

/// Returns the definitions of Keelway's own kinds, which must be applied first.
pub(crate) fn definitions() -> Result<Vec<DynamicObject>, ObjectError> {
    worker_crds()
        .into_iter()
        .map(|crd| serde_json::to_value(crd).map_err(ObjectError::Form).and_then(labelled))
        .collect()
}

/// The content of the files that the controller publishes to workers.
#[derive(Default)]
pub(crate) struct PublishedFiles {
    /// The authorities, in PEM.
    pub(crate) authorities: String,
    /// Credentials for the images of workers.
    pub(crate) registries: Option<Vec<u8>>,
}

/// Returns all other objects.
pub(crate) fn wanted(
    configuration: &ControllerConfiguration,
    files: &PublishedFiles,
) -> Result<Vec<DynamicObject>, ObjectError> {
    let mut objects = access::objects();
    objects.extend(policies::objects());
    objects.extend(service::objects(&configuration.api_addresses()));
    objects.extend(information::objects(configuration, files)?);
    objects.extend(addons::objects(configuration)?);
    if configuration.addons.cni.enabled {
        objects.extend(network_policies::objects());
    }
    objects.into_iter().map(labelled).collect()
}

/// A resource, and the namespace of the controller's objects of that kind.
pub(crate) struct ObjectResource {
    pub(crate) api_version: &'static str,
    pub(crate) kind: &'static str,
    pub(crate) plural: &'static str,
    pub(crate) namespace: Option<&'static str>,
}

const RBAC: &str = "rbac.authorization.k8s.io/v1";
const ADMISSION: &str = "admissionregistration.k8s.io/v1";
const SYSTEM: Option<&str> = Some("kube-system");
const PUBLIC: Option<&str> = Some("kube-public");
const DEFAULT: Option<&str> = Some("default");

const fn place(
    api_version: &'static str,
    kind: &'static str,
    plural: &'static str,
    namespace: Option<&'static str>,
) -> ObjectResource {
    ObjectResource { api_version, kind, plural, namespace }
}

/// The resources of all applied objects. The controller watches these and no others.
pub(crate) const PLACES: [ObjectResource; 20] = [
    place("apiextensions.k8s.io/v1", "CustomResourceDefinition", "customresourcedefinitions", None),
    place(RBAC, "ClusterRole", "clusterroles", None),
    place(RBAC, "ClusterRoleBinding", "clusterrolebindings", None),
    place(ADMISSION, "ValidatingAdmissionPolicy", "validatingadmissionpolicies", None),
    place(ADMISSION, "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings", None),
    place("apiregistration.k8s.io/v1", "APIService", "apiservices", None),
    place("discovery.k8s.io/v1", "EndpointSlice", "endpointslices", DEFAULT),
    place("v1", "Endpoints", "endpoints", DEFAULT),
    place(RBAC, "Role", "roles", PUBLIC),
    place(RBAC, "RoleBinding", "rolebindings", PUBLIC),
    place("v1", "ConfigMap", "configmaps", PUBLIC),
    place("v1", "Secret", "secrets", PUBLIC),
    place(RBAC, "Role", "roles", SYSTEM),
    place(RBAC, "RoleBinding", "rolebindings", SYSTEM),
    place("v1", "ConfigMap", "configmaps", SYSTEM),
    place("v1", "ServiceAccount", "serviceaccounts", SYSTEM),
    place("v1", "Service", "services", SYSTEM),
    place("apps/v1", "Deployment", "deployments", SYSTEM),
    place("apps/v1", "DaemonSet", "daemonsets", SYSTEM),
    place("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets", SYSTEM),
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
