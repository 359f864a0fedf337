//! Kubernetes objects, parsed as types that have every field.

use std::collections::BTreeSet;

use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        core::v1::{ConfigMap, Namespace, Secret, Service, ServiceAccount},
        networking::v1::NetworkPolicy,
        policy::v1::PodDisruptionBudget,
        rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use serde_json::Value;

/// The objects that the chart renders.
pub(crate) struct Rendered(Vec<Value>);

pub(crate) fn parse(text: &str) -> Rendered {
    let objects: Vec<Value> = serde_saphyr::from_multiple(text).unwrap();
    Rendered(objects.into_iter().filter(|object| !object.is_null()).collect())
}

impl Rendered {
    /// Fails unless each field of each object is known and has the right type. Two objects of one kind must not have the same name.
    pub(crate) fn check(&self) {
        let mut names = BTreeSet::new();
        for object in &self.0 {
            let name = format!("{} {}", object["kind"], object["metadata"]["name"]);
            assert!(names.insert(name.clone()), "{name} is there twice");
            known(object);
        }
    }

    /// Returns the only object of its kind.
    pub(crate) fn object(&self, kind: &str) -> &Value {
        let found: Vec<_> = self.0.iter().filter(|object| object["kind"] == kind).collect();
        let [object] = found[..] else { panic!("{} of kind {kind}", found.len()) };
        object
    }

    pub(crate) fn one<T: serde::de::DeserializeOwned>(&self, kind: &str) -> T {
        serde_json::from_value(self.object(kind).clone()).unwrap()
    }

    pub(crate) fn all<T: serde::de::DeserializeOwned>(&self, kind: &str) -> Vec<T> {
        let found = self.0.iter().filter(|object| object["kind"] == kind);
        found.map(|object| serde_json::from_value(object.clone()).unwrap()).collect()
    }

    pub(crate) fn has(&self, kind: &str) -> bool {
        self.0.iter().any(|object| object["kind"] == kind)
    }
}

fn known(object: &Value) {
    match object["kind"].as_str().unwrap() {
        "ClusterRole" => strictly::<ClusterRole>(object),
        "ClusterRoleBinding" => strictly::<ClusterRoleBinding>(object),
        "ConfigMap" => strictly::<ConfigMap>(object),
        "CustomResourceDefinition" => strictly::<CustomResourceDefinition>(object),
        "Deployment" => strictly::<Deployment>(object),
        "Namespace" => strictly::<Namespace>(object),
        "NetworkPolicy" => strictly::<NetworkPolicy>(object),
        "PodDisruptionBudget" => strictly::<PodDisruptionBudget>(object),
        "Role" => strictly::<Role>(object),
        "RoleBinding" => strictly::<RoleBinding>(object),
        "Secret" => strictly::<Secret>(object),
        "Service" => strictly::<Service>(object),
        "ServiceAccount" => strictly::<ServiceAccount>(object),
        // These kinds belong to the Prometheus operator, so that there are no types for them here.
        "PodMonitor" | "PrometheusRule" | "ServiceMonitor" => {
            assert_eq!(object["apiVersion"], "monitoring.coreos.com/v1");
        }
        kind => panic!("nobody knows what {kind} is"),
    }
}

/// Fails if the object has a field that the type does not have. An API server would drop that field.
fn strictly<T: serde::de::DeserializeOwned + serde::Serialize>(object: &Value) {
    let typed: T = serde_json::from_value(object.clone()).unwrap_or_else(|error| panic!("{error}: {object:#}"));
    assert_eq!(amounts(serde_json::to_value(typed).unwrap()), amounts(object.clone()));
}

/// Returns the value with all numbers as floats. In schemas, the types have floats for bounds that the manifest writes as integers.
fn amounts(value: Value) -> Value {
    match value {
        Value::Number(number) => number.as_f64().into(),
        Value::Array(items) => items.into_iter().map(amounts).collect(),
        Value::Object(fields) => fields.into_iter().map(|(name, value)| (name, amounts(value))).collect(),
        Value::Null | Value::Bool(_) | Value::String(_) => value,
    }
}
