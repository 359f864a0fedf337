//! What happens beside the turns of conditions: all reasons of Events that no condition has.

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Happening {
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
pub const ALL: &[(Happening, &str, &str)] = &[
    (Happening::ComponentPlaced, "Cluster", "a component was given a machine; the note says why that one"),
    (Happening::ComponentJoined, "Cluster", "a component was ready for the first time, and is relied on from now on"),
    (Happening::ComponentLeaving, "Cluster", "a component is no longer wanted, and stays until nobody relies on it"),
    (Happening::ComponentKept, "Cluster", "a component that was about to leave is wanted again"),
    (Happening::ComponentRemoved, "Cluster", "a component is taken away from its machine"),
    (Happening::StoreBorn, "Cluster", "the first members of the store were decided, once in a cluster's life"),
    (Happening::ControlPlaneInitialized, "Cluster", "an API server was ready for the first time"),
    (Happening::CertificatesRenewed, "Cluster", "certificates were made anew; the note names them"),
    (Happening::ClusterDeleted, "Cluster", "nothing of the deleted cluster is left on any machine"),
    (Happening::Resumed, "Cluster", "the cluster was paused, and is looked after again"),
    (Happening::DiskHasRoom, "Hypervisor", "the disk below /var/lib/keelway was full, and has room again"),
];

impl Happening {
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
