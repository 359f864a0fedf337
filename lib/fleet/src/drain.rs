//! Objects leave a cluster that is being drained, if another one can run them.

use alloc::collections::BTreeSet;
use core::fmt;

use serde_json::Value as Json;

use crate::{
    ClusterDrain, ContentRole, DecisionRequest, FleetObject, FleetState, ObjectDemand, PlacedCluster, Rejection,
    placement_link,
};

/// Why an object stays in a cluster that is being drained.
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
        f.write_str("the cluster is being drained, and ")?;
        match self {
            Self::NoOtherCluster => f.write_str("no other cluster can run the object"),
            Self::NoRoomIn(cluster) => write!(f, "{cluster} has no room for the replicas"),
            Self::HasVolumes => f.write_str("the object has volumes, whose data would stay; move them, and delete it"),
            Self::RunsOnce => {
                f.write_str("the object would begin again elsewhere; wait until it is finished, and delete it")
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
    pub(crate) fn without_turn<'a>(&self, object: &FleetObject, drained: &[&'a str]) -> BTreeSet<&'a str> {
        if !self.pod_kinds.has_pods(&object.manifest) {
            return BTreeSet::new();
        }
        let link = placement_link(&object.reference);
        let is_full = |cluster: &&&str| {
            let leaving = self.activity.get(**cluster).map(|activity| &activity.leaving);
            let others = leaving.into_iter().flatten().filter(|other| **other != link).count();
            self.drain_of(cluster).is_some_and(|drain| others >= drain.max_moves as usize)
        };
        drained.iter().filter(is_full).copied().collect()
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
