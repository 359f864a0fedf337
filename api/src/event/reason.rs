//! What happens beside the turns of conditions: all reasons of Events that no condition has.

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventReason {
    /// A component was given a machine.
    ComponentPlaced,
    /// A component was ready for the first time.
    ComponentJoined,
    /// A component is no longer wanted.
    ComponentLeaving,
    /// A component that was about to leave is wanted again.
    ComponentKept,
    /// A component was taken away.
    ComponentRemoved,
    /// The first members of a store were written down.
    StoreBorn,
    /// An API server was ready for the first time.
    ControlPlaneInitialized,
    /// Certificates were made anew.
    CertificatesRenewed,
    /// Nothing of a deleted cluster is left.
    ClusterDeleted,
    /// A cluster that was paused is looked after again.
    Resumed,
    /// A full disk has room again.
    DiskHasRoom,
}

/// All of them, with the kind that they are told of and what they mean.
pub const ALL: &[(EventReason, &str, &str)] = &[
    (EventReason::ComponentPlaced, "Cluster", "a component was given a machine; the note says why that one"),
    (EventReason::ComponentJoined, "Cluster", "a component was ready for the first time, and is relied on from now on"),
    (EventReason::ComponentLeaving, "Cluster", "a component is no longer wanted, and stays until nobody relies on it"),
    (EventReason::ComponentKept, "Cluster", "a component that was about to leave is wanted again"),
    (EventReason::ComponentRemoved, "Cluster", "a component is taken away from its machine"),
    (EventReason::StoreBorn, "Cluster", "the first members of the store were decided, once in a cluster's life"),
    (EventReason::ControlPlaneInitialized, "Cluster", "an API server was ready for the first time"),
    (EventReason::CertificatesRenewed, "Cluster", "certificates were made anew; the note names them"),
    (EventReason::ClusterDeleted, "Cluster", "nothing of the deleted cluster is left on any machine"),
    (EventReason::Resumed, "Cluster", "the cluster was paused, and is looked after again"),
    (EventReason::DiskHasRoom, "Hypervisor", "the disk below /var/lib/keelway was full, and has room again"),
];

impl EventReason {
    /// As it stands in Events.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ComponentPlaced => "ComponentPlaced",
            Self::ComponentJoined => "ComponentJoined",
            Self::ComponentLeaving => "ComponentLeaving",
            Self::ComponentKept => "ComponentKept",
            Self::ComponentRemoved => "ComponentRemoved",
            Self::StoreBorn => "StoreBorn",
            Self::ControlPlaneInitialized => "ControlPlaneInitialized",
            Self::CertificatesRenewed => "CertificatesRenewed",
            Self::ClusterDeleted => "ClusterDeleted",
            Self::Resumed => "Resumed",
            Self::DiskHasRoom => "DiskHasRoom",
        }
    }
}
