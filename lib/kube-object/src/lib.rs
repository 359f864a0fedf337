//! Objects of Kubernetes whose kind is data: their API, and server-side apply.
//!
//! The plural of a kind is derived from its name. That is right for all built-in kinds and those of Keelway, and needs no discovery.

use kube::{
    Api, Client,
    api::{ApiResource, DynamicObject, Patch, PatchParams},
    core::GroupVersionKind,
};
use serde_json::Value;

/// The label of an object with its field manager, if that is not the one of the program that applies it.
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";

/// An object cannot be applied.
#[derive(Debug, thiserror::Error)]
pub enum KubeObjectError {
    /// The object does not state what it is, which is a bug of the program that made it.
    #[error("cannot apply an object without {0}")]
    Incomplete(&'static str),
    /// The API server refused the object, or could not be reached.
    #[error("cannot apply {object}")]
    Apply {
        /// The kind and the name of the object.
        object: String,
        /// The error of the client.
        #[source]
        source: Box<kube::Error>,
    },
}

/// An object that can be applied.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KubeObject<'a> {
    object: &'a Value,
    api_version: &'a str,
    kind: &'a str,
    name: &'a str,
}

impl<'a> KubeObject<'a> {
    /// Reads which object this is.
    pub fn read(object: &'a Value) -> Result<Self, KubeObjectError> {
        let text = |field: &'static str, value: &'a Value| {
            value.as_str().filter(|text| !text.is_empty()).ok_or(KubeObjectError::Incomplete(field))
        };
        Ok(Self {
            object,
            api_version: text("apiVersion", &object["apiVersion"])?,
            kind: text("kind", &object["kind"])?,
            name: text("metadata.name", &object["metadata"]["name"])?,
        })
    }

    /// Returns how API servers serve the kind.
    #[must_use]
    pub fn resource(&self) -> ApiResource {
        let (group, version) = self.api_version.split_once('/').unwrap_or(("", self.api_version));
        ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, self.kind))
    }

    /// Returns the field manager that the object names by its label, or `default`.
    #[must_use]
    pub fn manager(&self, default: &'a str) -> &'a str {
        self.object["metadata"]["labels"][MANAGED_BY].as_str().unwrap_or(default)
    }

    /// Applies the object on the server's side. Its fields are the manager's afterwards, even if another one set them before.
    pub async fn apply(&self, client: &Client, manager: &str) -> Result<DynamicObject, KubeObjectError> {
        let resource = self.resource();
        let api: Api<DynamicObject> = match self.object["metadata"]["namespace"].as_str() {
            Some(namespace) => Api::namespaced_with(client.clone(), namespace, &resource),
            None => Api::all_with(client.clone(), &resource),
        };
        let (parameters, patch) = (PatchParams::apply(manager).force(), Patch::Apply(self.object));
        api.patch(self.name, &parameters, &patch).await.map_err(|source| KubeObjectError::Apply {
            object: format!("{} {}", self.kind, self.name),
            source: Box::new(source),
        })
    }
}
