//! The kinds of our documents.

/// The API group of our documents.
pub(crate) const GROUP: &str = "keelway.dev";
/// Group and version, as `apiVersion` has them.
pub(crate) const API_VERSION: &str = "keelway.dev/v1alpha1";

/// What our documents are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DocumentKind {
    /// What Clusters may be.
    ClusterClass,
    /// A machine.
    Hypervisor,
    /// A cluster.
    Cluster,
    /// A part of a cluster.
    Component,
    /// `v1/Secret` with our label.
    Secret,
    /// What was seen, which is no part of a world.
    Observation,
}

impl DocumentKind {
    /// The kinds of our group that a world is made of.
    pub(crate) const OF_GROUP: [Self; 4] = [Self::ClusterClass, Self::Hypervisor, Self::Cluster, Self::Component];

    /// As `kind` has it.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::ClusterClass => "ClusterClass",
            Self::Hypervisor => "Hypervisor",
            Self::Cluster => "Cluster",
            Self::Component => "Component",
            Self::Secret => "Secret",
            Self::Observation => "Observation",
        }
    }
}
