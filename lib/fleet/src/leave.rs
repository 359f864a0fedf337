//! Objects leave a cluster that is being drained or was lost, or return from one, if another cluster can run them. They also leave a cluster that
//! nothing selects for them any more. What would lose data or begin again stays.

use alloc::collections::BTreeMap;
use core::fmt;

use k8s_openapi::jiff::Timestamp;
use serde_json::Value as Json;

use crate::{
    ClusterDrain, ContentRole, DecisionRequest, FleetObject, FleetState, ObjectDemand, PlacedCluster, Rejection,
    placement_link,
};

/// Why an object has to leave a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaveCause {
    /// The cluster is being drained.
    Drain(ClusterDrain),
    /// The cluster has not been ready for as long as the policy waits.
    Lost {
        /// Since when it has not been ready. It is `None` if the cluster is ready again, and the object is still leaving it.
        since: Option<Timestamp>,
        /// How many objects with pods may leave it at a time.
        max_moves: u32,
    },
    /// The cluster that the object left before is ready again.
    Return {
        /// How many objects with pods may return at a time.
        max_moves: u32,
    },
    /// The policy or the annotation that decides does not select the cluster any more: it was changed, or another one decides, or the labels of the
    /// cluster or the flags of its agent changed.
    Deselected,
}

impl LeaveCause {
    /// Returns how many objects with pods may leave the cluster at a time.
    #[must_use]
    pub fn max_moves(&self) -> u32 {
        match self {
            Self::Drain(drain) => drain.max_moves,
            Self::Lost { max_moves, .. } | Self::Return { max_moves } => *max_moves,
            Self::Deselected => u32::MAX,
        }
    }
}

impl fmt::Display for LeaveCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Drain(_) => f.write_str("the cluster is being drained"),
            Self::Lost { since: Some(since), .. } => write!(f, "the cluster has not been ready since {since}"),
            Self::Lost { since: None, .. } => f.write_str("the cluster was not ready"),
            Self::Return { .. } => f.write_str("the cluster that the object left is ready again"),
            Self::Deselected => f.write_str("the policy or annotation does not select the cluster any more"),
        }
    }
}

/// Why an object stays in a cluster that it has to leave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MoveObstacle {
    /// No other cluster can run it.
    NoOtherCluster,
    /// A cluster that runs a part of it has no room for more.
    NoRoomIn(String),
    /// It has data in the cluster, which would not move with it.
    HasVolumes,
    /// It runs to completion, and would begin again.
    RunsOnce,
    /// Nothing selects it, or it is not known what does.
    NotSelected,
}

impl fmt::Display for MoveObstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoOtherCluster => f.write_str("no other cluster can run the object"),
            Self::NoRoomIn(cluster) => write!(f, "{cluster} has no room for the replicas"),
            Self::HasVolumes => f.write_str(
                "the object has volumes, whose data would not move with it; copy the data, delete the object, and create it again once its Placement \
                 is gone",
            ),
            Self::RunsOnce => {
                f.write_str(
                    "the object would begin again elsewhere; wait until it is finished, or delete it, and create it again once its Placement is gone",
                )
            }
            Self::NotSelected => f.write_str("no policy or annotation names another cluster for the object"),
        }
    }
}

impl MoveObstacle {
    /// Returns why an object never moves by itself, or `None`.
    pub(crate) fn of(object: &FleetObject) -> Option<Self> {
        let (of, spec) = (&object.reference, &object.manifest["spec"]);
        match (of.group.as_str(), of.kind.as_str()) {
            ("batch", "Job") => Some(Self::RunsOnce),
            ("", "Pod") if spec["restartPolicy"].as_str().is_some_and(|policy| policy != "Always") => {
                Some(Self::RunsOnce)
            }
            ("", "PersistentVolumeClaim") => Some(Self::HasVolumes),
            _ if has_claims(spec) => Some(Self::HasVolumes),
            _ => None,
        }
    }
}

/// Whether a specification mentions claims of volumes, of itself or of its pods.
fn has_claims(value: &Json) -> bool {
    match value {
        Json::Object(fields) => fields.iter().any(|(name, value)| match name.as_str() {
            "persistentVolumeClaim" => value.is_object(),
            "volumeClaimTemplates" => value.as_array().is_some_and(|claims| !claims.is_empty()),
            _ => has_claims(value),
        }),
        Json::Array(items) => items.iter().any(has_claims),
        Json::Null | Json::Bool(_) | Json::Number(_) | Json::String(_) => false,
    }
}

impl FleetState {
    /// Returns how a cluster is being drained, if it is.
    pub(crate) fn drain_of(&self, cluster: &str) -> Option<ClusterDrain> {
        self.clusters.get(cluster)?.drain
    }

    /// Whether something in a cluster may need an object of that cluster.
    pub(crate) fn needs(&self, cluster: &str, object: &FleetObject) -> bool {
        let role = ContentRole::of(&object.manifest, &self.pod_kinds);
        let namespace = object.reference.namespace.as_deref();
        self.activity.get(cluster).is_some_and(|activity| activity.needs(role, namespace))
    }

    /// Returns the clusters that an object cannot leave yet, because as many others as allowed are leaving them.
    pub(crate) fn without_turn(
        &self,
        object: &FleetObject,
        causes: &BTreeMap<&str, LeaveCause>,
    ) -> BTreeMap<String, LeaveCause> {
        if !self.pod_kinds.has_pods(&object.manifest) {
            return BTreeMap::new();
        }
        let link = placement_link(&object.reference);
        let is_full = |cluster: &str, cause| self.activity.get(cluster).is_some_and(|it| it.is_full(&link, cause));
        let waits = causes.iter().filter(|(cluster, cause)| is_full(cluster, cause));
        waits.map(|(cluster, cause)| ((*cluster).to_owned(), *cause)).collect()
    }

    /// Returns the first of these clusters that has no room for the replicas which it gets in addition.
    pub(crate) fn overfilled<'a>(
        &self,
        request: &DecisionRequest<'_>,
        clusters: &'a [PlacedCluster],
    ) -> Option<&'a PlacedCluster> {
        let before = |name: &str| {
            let current = request.current.into_iter().flat_map(|placement| &placement.clusters);
            current.filter(|placed| placed.name == name).find_map(|placed| placed.replicas).unwrap_or(0)
        };
        clusters.iter().find(|placed| {
            let added = placed.replicas.unwrap_or(0).saturating_sub(before(&placed.name));
            let mut manifest = request.object.manifest.clone();
            manifest["spec"]["replicas"] = Json::from(added);
            added > 0 && self.has_no_room(&placed.name, &self.pod_kinds.demand(&manifest)).is_some()
        })
    }

    /// Returns why a cluster has no room, or `None`.
    pub(crate) fn has_no_room(&self, cluster: &str, demand: &ObjectDemand) -> Option<Rejection> {
        match self.capacity.room(cluster) {
            None => Some(Rejection::UnknownRoom),
            Some(_) => self.capacity.shortage(cluster, demand).map(Rejection::NoRoom),
        }
    }
}
