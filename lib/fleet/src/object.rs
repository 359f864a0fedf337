//! An object of a user in the fleet.

use alloc::collections::BTreeMap;

use serde_json::{Map, Value as Json};

use crate::{
    WorkloadRef,
    names::{CLUSTER_ANNOTATION, GROUP, SPREAD_ONTO_ANNOTATION},
};

/// The group of workloads.
pub(crate) const APPS: &str = "apps";
/// The kinds whose replicas can be divided: group and kind. An object of such a kind without `spec.replicas` has one.
const DIVISIBLE: [(&str, &str); 4] =
    [(APPS, "Deployment"), (APPS, "ReplicaSet"), (APPS, "StatefulSet"), ("", "ReplicationController")];
/// Kinds that describe a cluster itself, so that a copy in another cluster would be wrong: group and kind.
const OF_ONE_CLUSTER: [(&str, &str); 7] = [
    ("", "Node"),
    ("", "Event"),
    ("events.k8s.io", "Event"),
    ("coordination.k8s.io", "Lease"),
    ("", "Endpoints"),
    ("discovery.k8s.io", "EndpointSlice"),
    ("certificates.k8s.io", "CertificateSigningRequest"),
];

/// An object of a user, parsed.
#[derive(Debug, Clone, PartialEq)]
pub struct FleetObject {
    /// Its identity.
    pub reference: WorkloadRef,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// Its annotations.
    pub annotations: BTreeMap<String, String>,
    /// Its generation. Kinds without one have none.
    pub generation: Option<i64>,
    /// Whether it is being deleted.
    pub is_deleting: bool,
    /// The whole object.
    pub manifest: Json,
}

/// What is known of the object of a Placement.
#[derive(Debug, Clone, PartialEq)]
#[expect(clippy::large_enum_variant, reason = "there is one at a time, and most are present")]
pub enum ObjectState {
    /// The object was read.
    Present(FleetObject),
    /// The API server reported that the object is deleted: an event of a watch, or `NotFound` for its name. That a list lacks it is no evidence.
    Deleted,
    /// The object could not be read. The text is the reason.
    Unreadable(String),
}

/// An object cannot be placed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FleetObjectError {
    /// A field that every object has is missing.
    #[error("the object has no {0}: the API server must have answered with another kind of document")]
    Missing(&'static str),
    /// The kind is never placed.
    #[error(
        "objects of the kind {0} describe one cluster and are never placed in another: remove the kind from the policy"
    )]
    NeverPlaced(String),
}

impl FleetObject {
    /// Reads an object as the API server returned it.
    pub fn parse(manifest: Json) -> Result<Self, FleetObjectError> {
        let reference = reference(&manifest)?;
        let is = |(group, kind): &(&str, &str)| reference.group == *group && reference.kind == *kind;
        if reference.group == GROUP || OF_ONE_CLUSTER.iter().any(is) {
            return Err(FleetObjectError::NeverPlaced(reference.kind));
        }
        let metadata = &manifest["metadata"];
        Ok(Self {
            reference,
            labels: texts(&metadata["labels"]),
            annotations: texts(&metadata["annotations"]),
            generation: metadata["generation"].as_i64(),
            is_deleting: !metadata["deletionTimestamp"].is_null(),
            manifest,
        })
    }

    /// Returns the replicas to divide, or `None` for kinds without replicas.
    #[must_use]
    pub fn replicas(&self) -> Option<u32> {
        let is = |(group, kind): &(&str, &str)| self.reference.group == *group && self.reference.kind == *kind;
        let replicas = self.manifest["spec"]["replicas"]
            .as_u64()
            .map_or(1, |replicas| u32::try_from(replicas).unwrap_or(u32::MAX));
        DIVISIBLE.iter().any(is).then_some(replicas)
    }

    /// Returns the cluster that an annotation names.
    #[must_use]
    pub fn named_cluster(&self) -> Option<&str> {
        self.annotations.get(CLUSTER_ANNOTATION).map(|name| name.trim()).filter(|name| !name.is_empty())
    }

    /// Returns the clusters onto which an annotation spreads the object. It is empty without such an annotation.
    #[must_use]
    pub fn spread_onto(&self) -> Vec<&str> {
        let names = self.annotations.get(SPREAD_ONTO_ANNOTATION).map(String::as_str).unwrap_or_default();
        names.split(',').map(str::trim).filter(|name| !name.is_empty()).collect()
    }

    /// Returns whether a HorizontalPodAutoscaler among these objects scales the object.
    #[must_use]
    pub fn is_autoscaled_by<'a>(&self, autoscalers: impl IntoIterator<Item = &'a Json>) -> bool {
        autoscalers.into_iter().any(|autoscaler| {
            let target = &autoscaler["spec"]["scaleTargetRef"];
            let group = target["apiVersion"]
                .as_str()
                .and_then(|version| version.split_once('/'))
                .map_or("", |(group, _)| group);
            autoscaler["metadata"]["namespace"].as_str() == self.reference.namespace.as_deref()
                && group == self.reference.group
                && target["kind"] == self.reference.kind.as_str()
                && target["name"] == self.reference.name.as_str()
        })
    }
}

fn reference(manifest: &Json) -> Result<WorkloadRef, FleetObjectError> {
    let text = |value: &Json, field| value.as_str().map(str::to_owned).ok_or(FleetObjectError::Missing(field));
    let metadata = &manifest["metadata"];
    let api_version = text(&manifest["apiVersion"], "apiVersion")?;
    let (group, version) = api_version.split_once('/').unwrap_or(("", &api_version));
    Ok(WorkloadRef {
        group: group.to_owned(),
        version: version.to_owned(),
        kind: text(&manifest["kind"], "kind")?,
        namespace: metadata["namespace"].as_str().filter(|namespace| !namespace.is_empty()).map(str::to_owned),
        name: text(&metadata["name"], "metadata.name")?,
        uid: metadata["uid"].as_str().map(str::to_owned),
    })
}

fn texts(map: &Json) -> BTreeMap<String, String> {
    let entries = map.as_object().into_iter().flat_map(Map::iter);
    entries.filter_map(|(key, value)| Some((key.clone(), value.as_str()?.to_owned()))).collect()
}
