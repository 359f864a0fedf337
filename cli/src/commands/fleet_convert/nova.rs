//! Documents of Nova, a scheduler over clusters with similar policies. Its documentation describes these fields.

use std::iter;

use keelway_fleet::{
    SchedulePolicy,
    names::{
        CLUSTER_ANNOTATION, GROUP, PROVIDER_LABEL, REGION_LABEL, SCHEDULE_LABEL, SPREAD_ONTO_ANNOTATION,
        TARGET_CLUSTER_LABEL, VERSION_LABEL, ZONE_LABEL,
    },
};
use serde_json::{Map, Value, json};

const POLICIES: &str = "policy.elotl.co/";
const CLUSTERS: &str = "cluster.elotl.co/";
/// The prefix of labels and annotations.
const NAMES: &str = "nova.elotl.co/";

/// The label of an object with the cluster that Nova has chosen for it.
const TARGET: &str = "nova.elotl.co/target-cluster";
/// The name of the Deployment of Nova's agent, and its flags for another orchestrator, with those of the command that makes our manifests.
const AGENT: &str = "nova-agent";
const AGENT_FLAGS: [&str; 2] = ["--orchestration-enabled", "--rescheduling-enabled"];

/// Labels of clusters, and labels and annotations of objects.
const RENAMED: [(&str, &str); 7] = [
    ("nova.elotl.co/cluster.provider", PROVIDER_LABEL),
    ("nova.elotl.co/cluster.region", REGION_LABEL),
    ("nova.elotl.co/cluster.zone", ZONE_LABEL),
    ("nova.elotl.co/cluster.version", VERSION_LABEL),
    ("nova.elotl.co/cluster", CLUSTER_ANNOTATION),
    ("nova.elotl.co/spread-onto", SPREAD_ONTO_ANNOTATION),
    ("nova.elotl.co/schedule", SCHEDULE_LABEL),
];

/// The fields of a policy that have the same meaning in a fleet.
const SPEC: [&str; 5] =
    ["namespaceSelector", "resourceSelectors", "clusterSelector", "orderedClusterSelector", "spreadConstraints"];

/// A document of a fleet.
#[derive(Debug, Default)]
pub(super) struct ConvertedDocument {
    /// None: a fleet has no such document.
    pub(super) document: Option<Value>,
    /// What is different from now on.
    pub(super) notes: Vec<String>,
    /// What cannot be converted.
    pub(super) faults: Vec<String>,
}

/// Converts a document. An object that is not Nova's has other annotations afterwards, and is the same otherwise.
pub(super) fn convert(document: &Value) -> ConvertedDocument {
    let api = document["apiVersion"].as_str().unwrap_or_default();
    let mut converted = ConvertedDocument::default();
    match document["kind"].as_str() {
        None => converted.faults.push("kind: is missing".to_owned()),
        Some("SchedulePolicy") if api.starts_with(POLICIES) => converted.policy(document),
        Some(_) if api.starts_with(CLUSTERS) => {
            converted.notes.push("left out: a cluster registers itself (keelway fleet token create)".to_owned());
        }
        Some(_) if api.starts_with(POLICIES) => converted.notes.push("left out: a fleet has no such kind".to_owned()),
        Some("Deployment") if document["metadata"]["name"] == AGENT => converted.agent(document),
        Some(_) => converted.object(document),
    }
    converted
}

impl ConvertedDocument {
    /// Nova's agent is replaced by that of a fleet. What its flags leave to another orchestrator is a flag of the command that makes the manifests.
    fn agent(&mut self, document: &Value) {
        let containers = document.pointer("/spec/template/spec/containers").and_then(Value::as_array);
        let lists = containers.into_iter().flatten().flat_map(|container| [&container["args"], &container["command"]]);
        let given: Vec<&str> = lists.filter_map(Value::as_array).flatten().filter_map(Value::as_str).collect();
        let is_off = |flag: &&&str| given.iter().any(|one| one.strip_prefix(**flag) == Some("=false"));
        let flags = AGENT_FLAGS.iter().filter(is_off).map(|flag| format!("{flag}=false"));
        let command: Vec<String> = iter::once("keelway fleet agent-manifests".to_owned()).chain(flags).collect();
        self.notes.push(format!("left out: a fleet has an agent of its own ({})", command.join(" ")));
    }

    fn object(&mut self, document: &Value) {
        let mut document = document.clone();
        for field in ["/metadata/annotations", "/metadata/labels"] {
            if let Some(names) = document.pointer_mut(field).and_then(Value::as_object_mut) {
                *names = names.iter().map(|(name, value)| (renamed(name).to_owned(), value.clone())).collect();
            }
        }
        let labels = document.pointer_mut("/metadata/labels").and_then(Value::as_object_mut);
        if labels.is_some_and(|labels| labels.shift_remove(TARGET).is_some()) {
            let note =
                format!("metadata.labels[{TARGET}]: left out, the fleet-controller writes {TARGET_CLUSTER_LABEL}");
            self.notes.push(note);
        }
        for kind in ["annotations", "labels"] {
            let names = document["metadata"][kind].as_object().into_iter().flat_map(Map::keys);
            let unknown = names.filter(|name| name.starts_with(NAMES));
            self.notes.extend(unknown.map(|name| format!("metadata.{kind}[{name}]: a fleet does not use it")));
        }
        self.document = Some(document);
    }

    fn policy(&mut self, document: &Value) {
        let mut spec = document["spec"].as_object().cloned().unwrap_or_default();
        // Older pages have a capital letter here.
        if let Some(ordered) = spec.shift_remove("OrderedClusterSelector") {
            spec.insert("orderedClusterSelector".to_owned(), ordered);
        }
        let is_grouped = spec.shift_remove("groupBy").is_some_and(|group| group["labelKey"].as_str().is_some());
        if is_grouped && !spec.contains_key("spreadConstraints") {
            let note = "spec.groupBy: a fleet places each object on its own; objects that must be in one cluster need a clusterSelector that selects one";
            self.notes.push(note.to_owned());
        }
        let selectors = &document["spec"]["resourceSelectors"];
        if !selectors["labelSelectors"].is_array() && !selectors["kinds"].is_array() {
            let fault = "spec.resourceSelectors: without labelSelectors, it selects nothing in Nova, and every object in a fleet: write selectors, or remove the policy";
            self.faults.push(fault.to_owned());
        }
        for (field, value) in &mut spec {
            match field.as_str() {
                "clusterSelector" | "orderedClusterSelector" => rename_labels(value),
                "spreadConstraints" => spread(value),
                _ => {}
            }
        }
        let unknown: Vec<String> = spec.keys().filter(|field| !SPEC.contains(&field.as_str())).cloned().collect();
        for field in unknown {
            spec.shift_remove(&field);
            self.notes.push(format!("spec.{field}: left out, a fleet has no such field"));
        }
        self.notes.extend(labels_left(&Value::Object(spec.clone())));
        let metadata = &document["metadata"];
        let policy = json!({
            "apiVersion": format!("{GROUP}/v1alpha1"),
            "kind": "SchedulePolicy",
            "metadata": kept(metadata),
            "spec": spec,
        });
        match serde_json::from_value::<SchedulePolicy>(policy.clone()) {
            Ok(_) => self.document = Some(policy),
            Err(error) => self.faults.push(error.to_string()),
        }
    }
}

fn renamed(name: &str) -> &str {
    RENAMED.iter().find(|(before, _)| *before == name).map_or(name, |(_, after)| after)
}

/// Renames the labels of a selector.
fn rename_labels(selector: &mut Value) {
    if let Some(labels) = selector.get_mut("matchLabels").and_then(Value::as_object_mut) {
        *labels = labels.iter().map(|(name, value)| (renamed(name).to_owned(), value.clone())).collect();
    }
    for expression in selector.get_mut("matchExpressions").and_then(Value::as_array_mut).into_iter().flatten() {
        rename(expression, "key");
    }
}

/// Renames the label that a field contains.
fn rename(object: &mut Value, field: &str) {
    if let Some(name) = object[field].as_str() {
        object[field] = renamed(name).into();
    }
}

/// Converts how objects are spread.
fn spread(constraints: &mut Value) {
    rename(constraints, "topologyKey");
    // Some pages have a map instead of a list.
    if let Some(shares) = constraints["percentageSplit"].as_object() {
        let share =
            |(value, percentage): (&String, &Value)| json!({ "topologyValue": value, "percentage": percentage });
        constraints["percentageSplit"] = shares.iter().map(share).collect();
    }
    let overrides = constraints.get_mut("overrides").and_then(Value::as_array_mut).into_iter().flatten();
    let resources = overrides.filter_map(|domain| domain.get_mut("resources")?.as_array_mut()).flatten();
    for resource in resources.filter_map(Value::as_object_mut) {
        // A fleet overrides every version of a kind.
        if let Some(api) = resource.shift_remove("apiVersion") {
            let group = api.as_str().and_then(|api| api.split_once('/')).map_or("core", |(group, _)| group);
            resource.insert("group".to_owned(), group.into());
        }
    }
}

/// Returns a note for each label of clusters that a fleet does not have.
fn labels_left(value: &Value) -> Vec<String> {
    match value {
        Value::String(text) if text.starts_with(NAMES) => {
            vec![format!("{text}: clusters of a fleet have no such label")]
        }
        Value::Array(items) => items.iter().flat_map(labels_left).collect(),
        Value::Object(fields) => {
            let names = fields.keys().map(|name| labels_left(&Value::String(name.clone())));
            names.chain(fields.values().map(labels_left)).flatten().collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => Vec::new(),
    }
}

/// Returns the metadata that people write.
fn kept(metadata: &Value) -> Value {
    let mut kept = Map::new();
    for field in ["name", "labels", "annotations"] {
        if let Some(value) = metadata.get(field) {
            kept.insert(field.to_owned(), value.clone());
        }
    }
    if let Some(annotations) = kept.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.shift_remove("kubectl.kubernetes.io/last-applied-configuration");
    }
    Value::Object(kept)
}
