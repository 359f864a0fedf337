//! Names and labels of the objects.

use serde_json::{Value, json};

/// What all objects are part of.
pub(crate) const NAME: &str = "keelway-fleet";
/// The label with the id of the fleet.
const FLEET_ID: &str = "fleet.keelway.dev/id";

/// The labels of an object.
pub(crate) fn labels_of(name: &str) -> Value {
    json!({ "app.kubernetes.io/name": name, "app.kubernetes.io/part-of": NAME })
}

/// The labels of the pods of a workload, by which the workload selects them.
///
/// A selector never changes. So an API server refuses the workloads of a second fleet in the namespace, whose authorities differ.
pub(crate) fn selected_labels(name: &str, id: &str) -> Value {
    let mut labels = labels_of(name);
    labels[FLEET_ID] = json!(id);
    labels
}

/// The metadata of an object.
pub(crate) fn metadata(namespace: &str, name: &str) -> Value {
    json!({ "name": name, "namespace": namespace, "labels": labels_of(name) })
}
