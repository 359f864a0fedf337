//! Where the objects of each kind have their pods: the kinds of Kubernetes, and a table for others.

mod built_in;

use alloc::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value as Json;

use crate::{
    ObjectDemand,
    object::APPS,
    pod_demand::{PodCount, PodDemand},
};

/// Pods of an object of a kind.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PodSource {
    /// The path of a list. The other paths begin at each of its items, and not at the object.
    #[serde(default)]
    pub each: Option<String>,
    /// The paths of a pod template. The first that is there counts.
    #[serde(default)]
    pub template: Vec<String>,
    /// The path of a pod's specification, if it is not in a template.
    #[serde(default)]
    pub spec: Option<String>,
    /// A field of the specification that is one more container.
    #[serde(default)]
    pub container: Option<String>,
    /// The paths of numbers. Their product is the number of pods. A number that is absent is 1.
    #[serde(default)]
    pub count: Vec<String>,
    /// What is subtracted from the last of these numbers.
    #[serde(default)]
    pub less: u32,
}

/// Where the objects of each kind have their pods. The key is the kind and its group: `RayCluster.ray.io`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodKinds {
    rows: BTreeMap<String, Vec<PodSource>>,
}

/// A row of the table of kinds cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key}: {problem}; write a list of template or spec, and count")]
pub struct PodKindError {
    /// The key of the row.
    pub key: String,
    /// The problem.
    pub problem: String,
}

impl Default for PodKinds {
    fn default() -> Self {
        Self { rows: built_in::rows() }
    }
}

impl PodKinds {
    /// Adds rows, each a list of [`PodSource`] in YAML. A row replaces the built-in one of its kind. Rows that cannot be read are returned.
    #[must_use]
    pub fn with_rows<'a>(rows: impl IntoIterator<Item = (&'a String, &'a String)>) -> (Self, Vec<PodKindError>) {
        let (mut all, mut errors) = (Self::default(), Vec::new());
        for (key, text) in rows {
            match row(key, text) {
                Ok(sources) => drop(all.rows.insert(key.clone(), sources)),
                Err(problem) => errors.push(PodKindError { key: key.clone(), problem }),
            }
        }
        (all, errors)
    }

    /// Whether objects of a kind run pods.
    #[must_use]
    pub fn runs_pods(&self, group: &str, kind: &str) -> bool {
        let is_built_in = match group {
            "" => ["Pod", "ReplicationController"].contains(&kind),
            APPS => ["DaemonSet", "Deployment", "ReplicaSet", "StatefulSet"].contains(&kind),
            "batch" => ["CronJob", "Job"].contains(&kind),
            _ => false,
        };
        is_built_in || self.rows.contains_key(&key(group, kind))
    }

    /// Whether an object is of a kind that runs pods.
    #[must_use]
    pub fn has_pods(&self, manifest: &Json) -> bool {
        let (group, kind) = group_and_kind(manifest);
        self.runs_pods(group, kind)
    }

    /// Returns the pods that an object asks for.
    #[must_use]
    pub fn demand(&self, manifest: &Json) -> ObjectDemand {
        let (group, kind) = group_and_kind(manifest);
        let spec = &manifest["spec"];
        let template = &spec["template"]["spec"];
        let one = |spec: &Json, count| ObjectDemand::new([PodDemand::read(spec, count)]);
        match (group, kind) {
            ("", "Pod") if is_finished_pod(manifest) => ObjectDemand::default(),
            ("", "Pod") => one(spec, PodCount::Number(1)),
            (APPS, "DaemonSet") => one(template, PodCount::EachNode),
            (APPS, "Deployment" | "ReplicaSet" | "StatefulSet") | ("", "ReplicationController") => {
                one(template, PodCount::Number(number(&spec["replicas"]).unwrap_or(1)))
            }
            ("batch", "Job") if is_finished_job(&manifest["status"]) => ObjectDemand::default(),
            ("batch", "Job") => one(template, PodCount::Number(at_once(spec))),
            ("batch", "CronJob") => {
                let job = &spec["jobTemplate"]["spec"];
                one(&job["template"]["spec"], PodCount::Number(at_once(job)))
            }
            (group, kind) => {
                let rows = self.rows.get(&key(group, kind)).into_iter().flatten();
                ObjectDemand::new(rows.flat_map(|source| source.pods(manifest)))
            }
        }
    }
}

impl PodSource {
    fn pods(&self, manifest: &Json) -> Vec<PodDemand> {
        let places: Vec<&Json> = match &self.each {
            Some(path) => at(manifest, path).as_array().into_iter().flatten().collect(),
            None => vec![manifest],
        };
        places.into_iter().filter_map(|place| self.pods_at(place)).collect()
    }

    fn pods_at(&self, place: &Json) -> Option<PodDemand> {
        let templates = self.template.iter().map(|path| &at(place, path)["spec"]);
        let specs = self.spec.iter().map(|path| at(place, path));
        let mut spec = templates.chain(specs).find(|spec| spec.is_object())?.clone();
        let more = self.container.as_ref().map(|field| spec[field.as_str()].clone()).filter(Json::is_object);
        if let Some(container) = more {
            match spec.get_mut("containers").and_then(Json::as_array_mut) {
                Some(containers) => containers.push(container),
                None => spec["containers"] = Json::Array(vec![container]),
            }
        }
        Some(PodDemand::read(&spec, PodCount::Number(self.number(place))))
    }

    fn number(&self, place: &Json) -> u32 {
        let last = self.count.len().saturating_sub(1);
        let numbers = self.count.iter().enumerate().map(|(index, path)| {
            let number = number(at(place, path)).unwrap_or(1);
            if index == last { number.saturating_sub(self.less) } else { number }
        });
        numbers.fold(1, u32::saturating_mul)
    }
}

fn row(key: &str, text: &str) -> Result<Vec<PodSource>, String> {
    if key.split_once('.').is_none_or(|(kind, group)| kind.is_empty() || group.is_empty()) {
        return Err("the key is not KIND.GROUP".to_owned());
    }
    let sources: Vec<PodSource> = serde_saphyr::from_str(text).map_err(|error| error.to_string())?;
    let has_pods = |source: &PodSource| !source.template.is_empty() || source.spec.is_some();
    if sources.is_empty() || !sources.iter().all(has_pods) {
        return Err("there are no pods".to_owned());
    }
    Ok(sources)
}

fn group_and_kind(manifest: &Json) -> (&str, &str) {
    let version = manifest["apiVersion"].as_str().unwrap_or_default();
    let (group, _) = version.split_once('/').unwrap_or_default();
    (group, manifest["kind"].as_str().unwrap_or_default())
}

fn key(group: &str, kind: &str) -> String {
    format!("{kind}.{group}")
}

/// Returns a field by the names on the way to it. An empty path is the value itself.
fn at<'a>(value: &'a Json, path: &str) -> &'a Json {
    path.split('.').filter(|name| !name.is_empty()).fold(value, |value, name| &value[name])
}

fn number(value: &Json) -> Option<u32> {
    value.as_u64().map(|number| u32::try_from(number).unwrap_or(u32::MAX))
}

/// Returns how many pods of a Job run at once.
fn at_once(spec: &Json) -> u32 {
    let parallel = number(&spec["parallelism"]).unwrap_or(1);
    number(&spec["completions"]).map_or(parallel, |completions| parallel.min(completions))
}

fn is_finished_pod(manifest: &Json) -> bool {
    ["Succeeded", "Failed"].iter().any(|phase| manifest["status"]["phase"] == *phase)
}

/// Whether a Job with this status runs no more pods.
pub(crate) fn is_finished_job(status: &Json) -> bool {
    let mut conditions = status["conditions"].as_array().into_iter().flatten();
    conditions.any(|one| ["Complete", "Failed"].iter().any(|kind| one["type"] == *kind) && one["status"] == "True")
}
