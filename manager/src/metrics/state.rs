//! Summarizes the state of a cluster in one label.

use keelway_api::{Cluster, condition};

/// The state of a cluster, derived from its conditions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ClusterState {
    /// The API is available, and nothing is degraded.
    Available,
    /// The cluster is being created or changed.
    Progressing,
    /// A part of the cluster is degraded.
    Degraded,
    /// The cluster sleeps.
    Asleep,
    /// The cluster is being deleted.
    Deleting,
}

impl ClusterState {
    pub(super) const ALL: [Self; 5] =
        [Self::Available, Self::Progressing, Self::Degraded, Self::Asleep, Self::Deleting];

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Available => "Available",
            Self::Progressing => "Progressing",
            Self::Degraded => "Degraded",
            Self::Asleep => "Asleep",
            Self::Deleting => "Deleting",
        }
    }

    /// Returns the state of a cluster. A new cluster counts as progressing: its components are not ready yet, and that is no fault.
    pub(super) fn of(cluster: &Cluster) -> Self {
        let conditions = cluster.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
        let is = |kind| condition::is_true(conditions, kind);
        if cluster.deleted() {
            Self::Deleting
        } else if !cluster.is_initialized() {
            Self::Progressing
        } else if is("Asleep") {
            Self::Asleep
        } else if is("Degraded") || !(is("Available") || is("Progressing")) {
            Self::Degraded
        } else if is("Progressing") {
            Self::Progressing
        } else {
            Self::Available
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::clusters::tests::cluster;

    #[test]
    fn a_cluster_has_one_state() {
        for (conditions, initialized, state) in [
            (&[][..], false, ClusterState::Progressing),
            (&["Degraded"], false, ClusterState::Progressing),
            (&["Available"], true, ClusterState::Available),
            (&["Available", "Progressing"], true, ClusterState::Progressing),
            (&["Available", "Degraded"], true, ClusterState::Degraded),
            (&["Progressing", "Degraded"], true, ClusterState::Degraded),
            (&[], true, ClusterState::Degraded),
            (&["Asleep"], true, ClusterState::Asleep),
        ] {
            assert_eq!(
                ClusterState::of(&cluster("c1", conditions, initialized)),
                state,
                "{conditions:?} {initialized}"
            );
        }
        let mut going = cluster("c1", &["Available"], true);
        going.metadata.deletion_timestamp = Some(keelway_api::Time("2026-01-01T00:00:00Z".parse().unwrap()));
        assert_eq!(ClusterState::of(&going), ClusterState::Deleting);
    }
}
