//! What a cluster took of its class.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::hypervisor::SecretReference;

/// The values that a Cluster last got from its class. It keeps them if the class is deleted.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClassStatus {
    /// The name of the class.
    pub name: String,
    /// The registry of images and its credentials.
    #[serde(default)]
    pub images: ClassImagesSpec,
}

/// The registry of a class's images and its credentials.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClassImagesSpec {
    /// A registry, with an optional path, that serves every image under its original name and tag, such as
    /// `registry.example.com/mirror`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub registry: Option<String>,
    /// Images to use in place of those with the same name and tag, each with its digest:
    /// `REGISTRY/NAME:TAG@sha256:DIGEST`. The first that has the name and tag of an image counts. A tag belongs to a
    /// release, so an override has no effect on other releases.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<String>,
    /// Secrets of the type `kubernetes.io/dockerconfigjson` with registry credentials. They belong to the operator: no other user needs
    /// access to them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pull_secrets: Vec<SecretReference>,
}
