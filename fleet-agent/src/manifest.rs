//! The object of a Work, as the agent applies it.

use std::fmt;

use keelway_fleet::names::AGENT_FIELD_MANAGER;
use kube::core::GroupVersionKind;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// The label of every object that the agent applies. The agent watches objects by it.
pub const MANAGED_LABEL: &str = "fleet.keelway.dev/managed-by";
/// The annotation of a container of other objects that the agent created. Without it, the agent does not delete the container.
pub const CREATED_ANNOTATION: &str = "fleet.keelway.dev/created-by";

/// Fields of `metadata` that belong to the API server of the fleet.
const SERVER_FIELDS: [&str; 7] = [
    "uid",
    "resourceVersion",
    "generation",
    "creationTimestamp",
    "deletionTimestamp",
    "managedFields",
    "ownerReferences",
];

/// The name of an object in the cluster.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AppliedName {
    /// The API group. The core group is the empty text.
    pub group: String,
    /// The version.
    pub version: String,
    /// The kind.
    pub kind: String,
    /// The namespace, if the object has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// The name.
    pub name: String,
}

/// The order in which objects are applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ApplyRank {
    /// Namespaces are first.
    Namespace,
    /// `CustomResourceDefinition`s are before the objects that they define.
    Definition,
    /// All others.
    Other,
}

/// A manifest cannot be applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReceivedManifestError {
    /// A field is missing.
    #[error("the manifest has no {0}")]
    Missing(&'static str),
    /// The object is one of the agent itself.
    #[error("the namespace {0} belongs to the agent; choose another namespace")]
    OwnNamespace(String),
}

impl AppliedName {
    /// Reads the name of an object.
    pub fn of(manifest: &Value) -> Result<Self, ReceivedManifestError> {
        let text = |pointer: &str, what| {
            let found = manifest.pointer(pointer).and_then(Value::as_str).filter(|text| !text.is_empty());
            found.map(str::to_owned).ok_or(ReceivedManifestError::Missing(what))
        };
        let api_version = text("/apiVersion", "apiVersion")?;
        let (group, version) = api_version.rsplit_once('/').unwrap_or(("", &api_version));
        Ok(Self {
            group: group.to_owned(),
            version: version.to_owned(),
            kind: text("/kind", "kind")?,
            namespace: text("/metadata/namespace", "namespace").ok(),
            name: text("/metadata/name", "name")?,
        })
    }

    /// Returns the kind with its group and version.
    #[must_use]
    pub fn kind(&self) -> GroupVersionKind {
        GroupVersionKind::gvk(&self.group, &self.version, &self.kind)
    }

    /// Returns when the object is applied.
    #[must_use]
    pub fn rank(&self) -> ApplyRank {
        match (self.group.as_str(), self.kind.as_str()) {
            ("", "Namespace") => ApplyRank::Namespace,
            ("apiextensions.k8s.io", "CustomResourceDefinition") => ApplyRank::Definition,
            _ => ApplyRank::Other,
        }
    }

    /// Whether deleting the object deletes objects of others.
    #[must_use]
    pub fn is_container(&self) -> bool {
        self.rank() != ApplyRank::Other
    }

    /// Whether the object may be stored in a file. Values of Secrets are kept in memory only.
    #[must_use]
    pub fn is_secret(&self) -> bool {
        self.group.is_empty() && self.kind == "Secret"
    }

    /// Refuses the namespace of the agent, and everything in it.
    pub fn refuse_namespace(&self, own: &str) -> Result<(), ReceivedManifestError> {
        let is_own =
            self.namespace.as_deref() == Some(own) || (self.rank() == ApplyRank::Namespace && self.name == own);
        if is_own { Err(ReceivedManifestError::OwnNamespace(own.to_owned())) } else { Ok(()) }
    }
}

impl fmt::Display for AppliedName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.namespace {
            Some(namespace) => write!(f, "{} {namespace}/{}", self.kind, self.name),
            None => write!(f, "{} {}", self.kind, self.name),
        }
    }
}

/// What the agent adds to a manifest or leaves out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AppliedForm {
    /// The agent created the container, so that it may delete it.
    pub is_created: bool,
    /// An autoscaler decides on `spec.replicas`.
    pub is_autoscaled: bool,
}

/// Returns the manifest as it is applied: without fields of the fleet's API server and without status, and with the label of the agent.
#[must_use]
pub fn applied_form(manifest: &Value, form: AppliedForm) -> Value {
    let mut applied = manifest.clone();
    let Some(object) = applied.as_object_mut() else { return applied };
    object.remove("status");
    let metadata = member(object, "metadata");
    for field in SERVER_FIELDS {
        metadata.remove(field);
    }
    member(metadata, "labels").insert(MANAGED_LABEL.to_owned(), json!(AGENT_FIELD_MANAGER));
    if form.is_created {
        member(metadata, "annotations").insert(CREATED_ANNOTATION.to_owned(), json!(AGENT_FIELD_MANAGER));
    }
    if form.is_autoscaled
        && let Some(spec) = object.get_mut("spec").and_then(Value::as_object_mut)
    {
        spec.remove("replicas");
    }
    applied
}

/// Returns a member of an object that is an object itself. Creates it if it is missing.
#[expect(clippy::expect_used, reason = "the member was just made an object")]
fn member<'a>(object: &'a mut Map<String, Value>, name: &str) -> &'a mut Map<String, Value> {
    let member = object.entry(name.to_owned()).or_insert_with(|| json!({}));
    if !member.is_object() {
        *member = json!({});
    }
    member.as_object_mut().expect("an object")
}
