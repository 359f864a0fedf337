//! Converts an object of an API to a document, and reads from it what else a store needs.

use std::{collections::BTreeSet, path::PathBuf, sync::Arc};

use keelway_api::{
    Documents, cluster,
    documents::SecretName,
    hypervisor::{self, CriEndpoint, HypervisorEndpoint, SecretReference},
    machine::{CLUSTER_LABEL, INSTALLATION_LABEL},
    name::is_own_namespace,
};
use kube::core::{ApiResource, DynamicObject};
use serde_json::{Value as Json, json};

use super::refusal_condition::ACCEPTED;
use crate::document_paths::path_of_object;

/// The annotation of `kubectl apply`. It contains the whole document, including the values of a Secret.
const LAST_APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Identifies an object, and its version, among all objects that had its name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ObjectRevision {
    /// Increases with each write (KEP-5504). 0 if the API server returned no number.
    pub(super) number: u64,
    pub(super) uid: Option<Arc<str>>,
    /// The message of the object's condition `Accepted`, which explains why the object is refused.
    pub(super) refused: Option<String>,
    /// Whether the object has a finalizer of Keelway.
    pub(super) has_finalizer: bool,
}

impl ObjectRevision {
    pub(super) fn of(object: &DynamicObject) -> Self {
        let number = object.metadata.resource_version.as_deref().and_then(|text| text.parse().ok());
        let conditions = object.data.pointer("/status/conditions").and_then(Json::as_array);
        let refused = conditions.into_iter().flatten().find(|condition| condition["type"] == ACCEPTED);
        let finalizers = object.metadata.finalizers.as_deref().unwrap_or_default();
        Self {
            number: number.unwrap_or_default(),
            uid: object.metadata.uid.as_deref().map(Arc::from),
            refused: refused.and_then(|condition| Some(condition["message"].as_str()?.to_owned())),
            has_finalizer: finalizers
                .iter()
                .any(|name| [cluster::FINALIZER, hypervisor::FINALIZER].contains(&name.as_str())),
        }
    }
}

/// Returns the path that the document would have in a directory.
pub(super) fn path(resource: &ApiResource, object: &DynamicObject) -> Option<PathBuf> {
    path_of_object(&resource.kind, object.metadata.namespace.as_deref(), object.metadata.name.as_deref()?)
}

/// Returns whether a deleted object only waits for the finalizers of other programs.
pub(super) fn is_released(resource: &ApiResource, object: &DynamicObject) -> bool {
    matches!(resource.kind.as_str(), "Cluster" | "Hypervisor")
        && object.metadata.deletion_timestamp.is_some()
        && !ObjectRevision::of(object).has_finalizer
}

/// Returns the document without the fields that an API server or a client adds for its own use.
pub(super) fn text(resource: &ApiResource, object: &DynamicObject) -> Vec<u8> {
    let mut json = serde_json::to_value(object).unwrap_or_default();
    json["apiVersion"] = json!(resource.api_version);
    json["kind"] = json!(resource.kind);
    let own = matches!(resource.kind.as_str(), "Component" | "Secret");
    let is_users = resource.kind == "Secret" && !is_in_keelway_namespace(object);
    if let Some(metadata) = json.get_mut("metadata").and_then(Json::as_object_mut) {
        metadata.retain(|field, _| !is_noted(field, own));
        // This store adds this finalizer itself.
        if let Some(Json::Array(finalizers)) = metadata.get_mut("finalizers") {
            finalizers.retain(|name| name != hypervisor::FINALIZER);
        }
        if metadata.get("finalizers").is_some_and(|left| *left == json!([])) {
            metadata.remove("finalizers");
        }
        if let Some(Json::Object(annotations)) = metadata.get_mut("annotations") {
            annotations.remove(LAST_APPLIED);
        }
        if let Some(Json::Object(labels)) = metadata.get_mut("labels").filter(|_| is_users) {
            labels.retain(|label, _| label != CLUSTER_LABEL && label != INSTALLATION_LABEL);
        }
    }
    if let Some(Json::Array(conditions)) = json.pointer_mut("/status/conditions") {
        conditions.retain(|condition| condition["type"] != ACCEPTED);
    }
    serde_json::to_vec(&json).unwrap_or_default()
}

/// Returns whether the document omits a field of metadata: fields that change without a user's action and, for Keelway's `own` objects, all fields
/// that Keelway does not write.
fn is_noted(field: &str, own: bool) -> bool {
    let of_all = matches!(
        field,
        "managedFields" | "resourceVersion" | "selfLink" | "generateName" | "deletionGracePeriodSeconds"
    );
    of_all || own && matches!(field, "uid" | "creationTimestamp" | "generation" | "deletionTimestamp")
}

/// Returns the users' Secrets that an object refers to.
pub(super) fn references(resource: &ApiResource, object: &DynamicObject) -> BTreeSet<SecretName> {
    let text = |value: &Json| value.as_str().map(str::to_owned);
    match resource.kind.as_str() {
        "Hypervisor" => {
            let reference = object.data.pointer("/spec/endpoint/cri/secretRef");
            let found = reference.and_then(|reference| {
                Some(SecretName { namespace: text(&reference["namespace"])?, name: text(&reference["name"])? })
            });
            found.into_iter().collect()
        }
        "ClusterClass" => pull_secrets(object, "/spec/images/pullSecrets", "default").collect(),
        "Cluster" => {
            let namespace = object.metadata.namespace.as_deref().unwrap_or_default();
            // If the class is deleted, the cluster keeps using the pull secrets of the class.
            let of_class = pull_secrets(object, "/status/class/images/pullSecrets", "default");
            let own = pull_secrets(object, "/spec/images/pullSecrets", namespace).chain(of_class);
            let of_etcd = [SNAPSHOT_CREDENTIALS, SOURCE_KEYS].into_iter();
            own.chain(of_etcd.filter_map(|path| secret_at(object, path, namespace))).collect()
        }
        _ => BTreeSet::new(),
    }
}

/// Returns the users' Secrets that the documents in effect refer to.
pub(super) fn referred_to(world: &Documents) -> BTreeSet<SecretName> {
    let of_machines = world.hypervisors.values().filter_map(|machine| match &machine.spec.endpoint {
        HypervisorEndpoint::Cri(CriEndpoint { secret_ref: SecretReference { namespace, name }, .. }) => {
            Some(SecretName { namespace: namespace.clone(), name: name.clone() })
        }
        HypervisorEndpoint::Unix { .. } | HypervisorEndpoint::Agent(_) => None,
    });
    let of_classes = world.classes.values().flat_map(|class| class.spec.images.secrets());
    let of_clusters = world.clusters.iter().flat_map(|(cluster, document)| {
        let class = document.status.as_ref().and_then(|status| status.class.as_ref());
        let own = document.spec.images.pull_secrets.iter();
        let own = own.map(|own| SecretName { namespace: cluster.namespace.clone(), name: own.name.clone() });
        let of_etcd = document.snapshot_credentials().into_iter().chain(document.source_keys());
        own.chain(class.into_iter().flat_map(|class| class.images.secrets())).chain(of_etcd)
    });
    of_machines.chain(of_classes).chain(of_clusters).collect()
}

/// Returns the Secrets in a list of references. `namespace` applies to references without one.
fn pull_secrets<'a>(
    object: &'a DynamicObject,
    list: &str,
    namespace: &'a str,
) -> impl Iterator<Item = SecretName> + use<'a> {
    let references = object.data.pointer(list).and_then(Json::as_array);
    references.into_iter().flatten().filter_map(move |reference| {
        let namespace = reference["namespace"].as_str().unwrap_or(namespace).to_owned();
        Some(SecretName { namespace, name: reference["name"].as_str()?.to_owned() })
    })
}

/// The name of the Secret with the credentials of the store of a cluster's snapshots.
const SNAPSHOT_CREDENTIALS: &str = "/spec/etcd/snapshots/sink/s3/credentialsSecret/name";
/// The name of the Secret with the keys of the cluster whose snapshot a cluster begins with.
const SOURCE_KEYS: &str = "/spec/etcd/restore/cluster/keysSecret/name";

/// Returns the Secret that a field of a Cluster names.
fn secret_at(object: &DynamicObject, path: &str, namespace: &str) -> Option<SecretName> {
    let name = object.data.pointer(path).and_then(Json::as_str)?;
    Some(SecretName { namespace: namespace.to_owned(), name: name.to_owned() })
}

/// Returns whether the object is in a namespace of Keelway. Labels do not show this, because any user can write them.
pub(super) fn is_in_keelway_namespace(object: &DynamicObject) -> bool {
    object.metadata.namespace.as_deref().is_some_and(is_keelway_namespace)
}

/// Returns whether a namespace is one of Keelway's own.
pub(super) fn is_keelway_namespace(namespace: &str) -> bool {
    is_own_namespace(namespace)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pull_secrets_of_a_class_are_references_of_the_cluster() {
        let resource = ApiResource::erase::<keelway_api::Cluster>(&());
        let given = json!({ "pullSecrets": [{ "namespace": "registries", "name": "mirror" }] });
        let object: DynamicObject = serde_json::from_value(json!({
            "metadata": { "name": "c1", "namespace": "team-a" },
            "spec": { "images": { "pullSecrets": [{ "name": "own" }] } },
            "status": { "class": { "name": "small", "images": given } },
        }))
        .unwrap();
        let secret =
            |namespace: &str, name: &str| SecretName { namespace: namespace.to_owned(), name: name.to_owned() };
        let expected = [secret("registries", "mirror"), secret("team-a", "own")];
        assert_eq!(references(&resource, &object), expected.into());
    }
}
