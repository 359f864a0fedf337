//! The label of an object that names the cluster in which another orchestrator has to submit it.

use crate::{FleetObject, PlacementSpec, PodKinds, names::TARGET_CLUSTER_LABEL};

/// A change of the label [`TARGET_CLUSTER_LABEL`] of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TargetLabel {
    /// The label names this cluster.
    Set(String),
    /// The object is not delegated any more.
    Remove,
}

impl TargetLabel {
    /// Returns the change that an object with this Placement needs, if it needs one.
    ///
    /// Only objects with pods have the label. Of all others, as Secrets and roles, the fleet changes nothing: an orchestrator reads the label of their
    /// Placement.
    #[must_use]
    pub fn needed(object: &FleetObject, placement: &PlacementSpec, kinds: &PodKinds) -> Option<Self> {
        if !kinds.has_pods(&object.manifest) {
            return None;
        }
        let found = object.labels.get(TARGET_CLUSTER_LABEL).map(String::as_str);
        match (placement.delegated_to(), found) {
            (wanted, found) if wanted == found => None,
            (Some(cluster), _) => Some(Self::Set(cluster.to_owned())),
            (None, _) => Some(Self::Remove),
        }
    }
}
