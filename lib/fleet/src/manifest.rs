//! The manifest of an object for one cluster.

use core::fmt::{self, Write};

use serde_json::{Map, Value as Json, json};

use crate::{FieldOverride, FieldPath, FieldPathError, FleetObject, PlacedCluster, names::GROUP};

/// The fields of `metadata` that an agent applies. All others belong to the API server that has the object.
const METADATA: [&str; 4] = ["name", "namespace", "labels", "annotations"];
/// Annotations that programs of the fleet's API write for themselves.
const FOREIGN_ANNOTATIONS: [&str; 2] =
    ["kubectl.kubernetes.io/last-applied-configuration", "deployment.kubernetes.io/revision"];
/// Labels of a Job's pods that an API server generates, each with the prefix of later releases and without it.
const JOB_LABELS: [&str; 4] =
    ["controller-uid", "job-name", "batch.kubernetes.io/controller-uid", "batch.kubernetes.io/job-name"];

/// The largest object that a fleet distributes, in bytes of JSON. etcd refuses requests of more than 1.5 MiB, and a Work has metadata and a status, too. A
/// ConfigMap or a Secret with as much data as Kubernetes allows (1 MiB, in base64) fits.
pub const MAX_MANIFEST_BYTES: usize = 1_440 * 1024;

/// The order in which an agent applies objects, and the reverse of the order in which it deletes them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ApplyOrder {
    /// Namespaces.
    Namespaces,
    /// Definitions of custom resources.
    Definitions,
    /// All other objects.
    Rest,
}

/// An object cannot be prepared for a cluster.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ManifestError {
    /// An override does not fit the object.
    #[error("the override of {path} for the cluster {cluster} cannot be applied")]
    Override {
        /// The cluster.
        cluster: String,
        /// The path of the field.
        path: String,
        /// What does not fit.
        #[source]
        source: FieldPathError,
    },
    /// The object is larger in JSON than a Work can be.
    #[error(
        "the object has {size} bytes in JSON, and a fleet distributes at most {MAX_MANIFEST_BYTES}; split it, or store the data elsewhere"
    )]
    TooLarge {
        /// The cluster.
        cluster: String,
        /// The size of the object.
        size: usize,
    },
}

impl ManifestError {
    /// Returns the cluster for which the object cannot be prepared.
    #[must_use]
    pub fn cluster(&self) -> &str {
        match self {
            Self::Override { cluster, .. } | Self::TooLarge { cluster, .. } => cluster,
        }
    }
}

/// Returns the order of an object.
#[must_use]
pub fn apply_order(manifest: &Json) -> ApplyOrder {
    match (manifest["apiVersion"].as_str().unwrap_or_default(), manifest["kind"].as_str().unwrap_or_default()) {
        ("v1", "Namespace") => ApplyOrder::Namespaces,
        (version, "CustomResourceDefinition") if version.starts_with("apiextensions.k8s.io/") => {
            ApplyOrder::Definitions
        }
        _ => ApplyOrder::Rest,
    }
}

/// Returns the manifest of an object for a cluster: without what the fleet's API server wrote, with its replicas and overrides.
pub fn manifest_for(object: &FleetObject, cluster: &PlacedCluster, is_autoscaled: bool) -> Result<Json, ManifestError> {
    let mut manifest = bare(object);
    if let (Some(replicas), Some(spec)) = (cluster.replicas, manifest.get_mut("spec").and_then(Json::as_object_mut)) {
        spec.insert("replicas".to_owned(), json!(replicas));
    }
    for FieldOverride { field_path, value } in &cluster.overrides {
        let set = FieldPath::parse(field_path).and_then(|path| path.set(&mut manifest, value.static_value.clone()));
        set.map_err(|source| ManifestError::Override {
            cluster: cluster.name.clone(),
            path: field_path.clone(),
            source,
        })?;
    }
    // Last, so that no override claims the field of an autoscaler.
    if is_autoscaled {
        remove(&mut manifest, &["spec", "replicas"]);
    }
    let size = json_size(&manifest);
    if size > MAX_MANIFEST_BYTES {
        return Err(ManifestError::TooLarge { cluster: cluster.name.clone(), size });
    }
    Ok(manifest)
}

/// Counts the bytes that are written, as API servers store them: Go writes these characters of texts as six bytes.
#[derive(Default)]
struct ByteCount(usize);

impl Write for ByteCount {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let escaped = |character: &char| matches!(character, '<' | '>' | '&' | '\u{2028}' | '\u{2029}');
        let more: usize = text.chars().filter(escaped).map(|character| 6 - character.len_utf8()).sum();
        self.0 += text.len() + more;
        Ok(())
    }
}

/// Returns the number of bytes of a value in JSON, as API servers store it.
fn json_size(value: &Json) -> usize {
    let mut count = ByteCount::default();
    write!(count, "{value}").map_or(usize::MAX, |()| count.0)
}

/// Returns an object without the fields that its API server wrote.
fn bare(object: &FleetObject) -> Json {
    let fields = object.manifest.as_object().into_iter().flat_map(Map::iter);
    let fields = fields.filter(|(key, _)| key.as_str() != "status").map(|(key, value)| (key.clone(), value.clone()));
    let mut manifest = Json::Object(fields.collect());
    manifest["metadata"] = metadata(&object.manifest["metadata"]);
    remove(&mut manifest, &["spec", "template", "metadata", "creationTimestamp"]);
    remove(&mut manifest, &["spec", "jobTemplate", "metadata", "creationTimestamp"]);
    remove(&mut manifest, &["spec", "jobTemplate", "spec", "template", "metadata", "creationTimestamp"]);
    match (object.reference.group.as_str(), object.reference.kind.as_str()) {
        ("", "Service") => bare_service(&mut manifest),
        ("", "Namespace") => remove(&mut manifest, &["spec"]),
        ("batch", "Job") => bare_job(&mut manifest),
        _ => (),
    }
    manifest
}

fn metadata(all: &Json) -> Json {
    let mut kept: Map<String, Json> =
        METADATA.iter().filter_map(|field| Some(((*field).to_owned(), all.get(*field)?.clone()))).collect();
    let is_own = |key: &str| key.split_once('/').is_some_and(|(prefix, _)| prefix == GROUP);
    for field in ["labels", "annotations"] {
        let Some(Json::Object(entries)) = kept.get_mut(field) else { continue };
        entries.retain(|key, _| !is_own(key) && !FOREIGN_ANNOTATIONS.contains(&key.as_str()));
        if entries.is_empty() {
            kept.remove(field);
        }
    }
    Json::Object(kept)
}

/// The addresses and node ports of a Service were allocated by the fleet's API server. Each cluster allocates its own. An address of a headless
/// Service is not one.
fn bare_service(manifest: &mut Json) {
    if manifest["spec"]["clusterIP"] != "None" {
        remove(manifest, &["spec", "clusterIP"]);
        remove(manifest, &["spec", "clusterIPs"]);
    }
    for allocated in ["healthCheckNodePort", "ipFamilies", "ipFamilyPolicy"] {
        remove(manifest, &["spec", allocated]);
    }
    for port in manifest.pointer_mut("/spec/ports").and_then(Json::as_array_mut).into_iter().flatten() {
        remove(port, &["nodePort"]);
    }
}

/// Unless `spec.manualSelector` is set, an API server generates the selector of a Job from its unique id.
fn bare_job(manifest: &mut Json) {
    if manifest["spec"]["manualSelector"] == true {
        return;
    }
    remove(manifest, &["spec", "selector"]);
    for label in JOB_LABELS {
        remove(manifest, &["spec", "template", "metadata", "labels", label]);
        remove(manifest, &["metadata", "labels", label]);
    }
}

/// Removes a field, if it is there.
fn remove(object: &mut Json, path: &[&str]) {
    let Some((last, way)) = path.split_last() else { return };
    let parent = way.iter().try_fold(object, |place, key| place.get_mut(*key));
    if let Some(Json::Object(parent)) = parent {
        parent.shift_remove(*last);
    }
}
