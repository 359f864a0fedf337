//! The kinds of our documents.

/// The API group of our documents.
pub(crate) const GROUP: &str = "keelway.dev";
/// The value of `apiVersion`.
pub(crate) const API_VERSION: &str = "keelway.dev/v1alpha1";

/// The kind of a document of Keelway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum DocumentKind {
    /// Defaults and limits for Clusters.
    ClusterClass,
    /// A machine.
    Hypervisor,
    /// A cluster.
    Cluster,
    /// A component of a cluster.
    Component,
    /// A `v1/Secret` with the label of Keelway.
    Secret,
    /// An observation, which is not part of an installation's documents.
    Observation,
}

impl DocumentKind {
    /// The kinds of documents of an installation, without Secrets.
    pub(crate) const OF_GROUP: [Self; 4] = [Self::ClusterClass, Self::Hypervisor, Self::Cluster, Self::Component];

    /// Returns the value of `kind`.
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
