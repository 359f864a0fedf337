//! All reasons of Events that are not reasons of conditions.

/// The reason of an Event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventReason {
    /// A component was placed on a machine.
    ComponentPlaced,
    /// A component was ready for the first time.
    ComponentJoined,
    /// A component is to be removed.
    ComponentLeaving,
    /// A component that was to be removed is kept.
    ComponentKept,
    /// A component was removed.
    ComponentRemoved,
    /// The first etcd members of a cluster were recorded.
    StoreBorn,
    /// The store was rebuilt from one member.
    StoreRebuilt,
    /// An API server was ready for the first time.
    ControlPlaneInitialized,
    /// Certificates were renewed.
    CertificatesRenewed,
    /// The deletion of a cluster is complete.
    ClusterDeleted,
    /// A paused cluster was resumed.
    Resumed,
    /// A disk that was full has free space again.
    DiskHasRoom,
}

/// All reasons, each with the kind of its document and its meaning.
pub const ALL: &[(EventReason, &str, &str)] = &[
    (
        EventReason::ComponentPlaced,
        "Cluster",
        "a component was placed on a machine; the note gives the reason for the choice",
    ),
    (
        EventReason::ComponentJoined,
        "Cluster",
        "a component was ready for the first time; other components now depend on it",
    ),
    (
        EventReason::ComponentLeaving,
        "Cluster",
        "a component is no longer needed; it runs until no other component depends on it",
    ),
    (EventReason::ComponentKept, "Cluster", "a component that was to be removed is needed again"),
    (EventReason::ComponentRemoved, "Cluster", "a component was removed from its machine"),
    (EventReason::StoreBorn, "Cluster", "the first etcd members were recorded; this happens once per cluster"),
    (
        EventReason::StoreRebuilt,
        "Cluster",
        "the store was rebuilt from one member and serves again; the note says what can be missing",
    ),
    (EventReason::ControlPlaneInitialized, "Cluster", "an API server was ready for the first time"),
    (EventReason::CertificatesRenewed, "Cluster", "certificates were renewed; the note names them"),
    (EventReason::ClusterDeleted, "Cluster", "the deletion of the cluster is complete: no machine holds parts of it"),
    (EventReason::Resumed, "Cluster", "the cluster is no longer paused, and its reconciliation has resumed"),
    (EventReason::DiskHasRoom, "Hypervisor", "the disk below /var/lib/keelway was full and has free space again"),
];

impl EventReason {
    /// Returns the reason, as written in Events.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::ComponentPlaced => "ComponentPlaced",
            Self::ComponentJoined => "ComponentJoined",
            Self::ComponentLeaving => "ComponentLeaving",
            Self::ComponentKept => "ComponentKept",
            Self::ComponentRemoved => "ComponentRemoved",
            Self::StoreBorn => "StoreBorn",
            Self::StoreRebuilt => "StoreRebuilt",
            Self::ControlPlaneInitialized => "ControlPlaneInitialized",
            Self::CertificatesRenewed => "CertificatesRenewed",
            Self::ClusterDeleted => "ClusterDeleted",
            Self::Resumed => "Resumed",
            Self::DiskHasRoom => "DiskHasRoom",
        }
    }
}
