//! `Observation`: what was seen, as a document. It holds no key, so that it can be given to others.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{
    fault::{Fault, Faults},
    kind::{API_VERSION, DocumentKind},
    machine::{MachineState, ObservedValue},
    name::{ClusterId, ComponentName, HypervisorName},
    read::decode,
    schema, split, tree,
    write::canonical,
};

/// What a pass saw of machines, components and clusters at one moment. `keelway observe` writes it, and
/// `keelway plan --offline` plans from it without asking anybody. Contents of files are in it as digests only.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Observation {
    /// The group and version of the document's form.
    pub api_version: String,
    /// What the document is.
    pub kind: String,
    /// When it was seen. A plan from it is made as of then.
    pub timestamp: Time,
    /// Each Hypervisor of the documents.
    #[serde(default)]
    pub hypervisors: BTreeMap<HypervisorName, ObservedValue<MachineState>>,
    /// The answer of each component's health check, by cluster id and component.
    #[serde(default)]
    pub health: BTreeMap<ClusterId, BTreeMap<ComponentName, ComponentHealth>>,
    /// The digest of the bindings that stand in each managed cluster, by cluster id; empty where there are none.
    #[serde(default)]
    pub bindings: BTreeMap<ClusterId, ObservedValue<String>>,
}

/// The answer of a health check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ComponentHealth {
    /// It responds that it is healthy.
    Healthy,
    /// It responds that it is not healthy. The text is for people.
    Unhealthy(String),
    /// No response came, and the text says why: a deadline, a connection that failed, a certificate that has expired. The component may
    /// work all the same. One that hangs is stopped by its agent's liveness check.
    NoAnswer(String),
}

impl Observation {
    /// Nothing was seen yet.
    #[must_use]
    pub fn at(timestamp: Time) -> Self {
        Self {
            api_version: API_VERSION.to_owned(),
            kind: DocumentKind::Observation.name().to_owned(),
            timestamp,
            hypervisors: BTreeMap::new(),
            health: BTreeMap::new(),
            bindings: BTreeMap::new(),
        }
    }

    /// Reads one document, in YAML or JSON.
    ///
    /// # Errors
    /// Every fault of it.
    pub fn read(bytes: &[u8]) -> Result<Self, Faults> {
        let text = split::text(bytes).map_err(|fault| Faults(vec![fault]))?;
        let mut trees = Vec::new();
        for chunk in split::split(text) {
            let tree = tree::parse(chunk.text, chunk.line).map_err(|fault| Faults(vec![fault]))?;
            trees.extend(tree.filter(|tree| !tree.root.is_null()));
        }
        let [tree] = trees.as_slice() else {
            let problem = format!("the input has {} documents", trees.len());
            return Err(Faults(vec![Fault::of("", problem, "give one Observation, as `keelway observe` writes it")]));
        };
        let is = |key, wanted| tree.root.get(key).and_then(tree::YamlNode::text) == Some(wanted);
        if !is("apiVersion", API_VERSION) || !is("kind", DocumentKind::Observation.name()) {
            let help = format!("give a document of apiVersion {API_VERSION} and kind Observation");
            return Err(Faults(vec![Fault::of("kind", "this is no Observation", help)]));
        }
        let (json, structural) = schema::check(DocumentKind::Observation, &tree.root);
        let faults: Vec<Fault> = tree.faults.iter().cloned().chain(tree.excess.clone()).chain(structural).collect();
        if faults.is_empty() { decode(json).map_err(Faults) } else { Err(Faults(faults)) }
    }

    /// The document in canonical YAML.
    #[must_use]
    pub fn write(&self) -> String {
        // Types of plain data with text for keys have no way to fail here.
        canonical(DocumentKind::Observation, serde_json::to_value(self).unwrap_or_default())
    }
}
