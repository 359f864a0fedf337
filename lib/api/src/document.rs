//! Single documents and their names.

use core::fmt;

use crate::{
    Cluster, ClusterClass, Component, Hypervisor,
    name::{ClusterRef, HypervisorName, PodName},
    secret::Secret,
    secret_name::SecretName,
    shared::Shared,
};

/// The name of a document, unique among all documents.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum DocumentName {
    /// Defaults and limits for Clusters.
    ClusterClass(String),
    /// A machine.
    Hypervisor(HypervisorName),
    /// A cluster.
    Cluster(ClusterRef),
    /// A component.
    Component(PodName),
    /// A Secret of Keelway or of the user.
    Secret(SecretName),
}

/// A document.
#[derive(Clone, PartialEq)]
pub enum Document {
    /// Defaults and limits for Clusters.
    ClusterClass(Shared<ClusterClass>),
    /// A machine.
    Hypervisor(Shared<Hypervisor>),
    /// A cluster.
    Cluster(Shared<Cluster>),
    /// A component.
    Component(Shared<Component>),
    /// A Secret of Keelway or of the user.
    Secret(Shared<Secret>),
}

/// A reference to a document.
#[derive(Clone, Copy, PartialEq)]
pub enum DocumentRef<'a> {
    /// Defaults and limits for Clusters.
    ClusterClass(&'a Shared<ClusterClass>),
    /// A machine.
    Hypervisor(&'a Shared<Hypervisor>),
    /// A cluster.
    Cluster(&'a Shared<Cluster>),
    /// A component.
    Component(&'a Shared<Component>),
    /// A Secret of Keelway or of the user.
    Secret(&'a Shared<Secret>),
}

/// A change that a store makes to get from one set of documents to another.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum DocumentChange {
    /// Saves of a cluster's status only the parts on which its components depend, such as the id and the port. The rest, which may refer to
    /// documents that are saved later, stays as it is.
    Introduce(DocumentName),
    /// Saves a document that is new or changed.
    Put(DocumentName),
    /// Removes a document.
    Remove(DocumentName),
}

impl DocumentName {
    pub(crate) fn of_secret(secret: &Secret) -> Self {
        let namespace = secret.metadata.namespace.clone().unwrap_or_else(|| "default".to_owned());
        let name = secret.metadata.name.clone().unwrap_or_default();
        Self::Secret(SecretName { namespace, name })
    }

    /// Returns the kind, as the field `kind` contains it.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::ClusterClass(_) => "ClusterClass",
            Self::Hypervisor(_) => "Hypervisor",
            Self::Cluster(_) => "Cluster",
            Self::Component(_) => "Component",
            Self::Secret(_) => "Secret",
        }
    }

    /// Returns `metadata.namespace`, or `None` for kinds without a namespace.
    #[must_use]
    pub fn namespace(&self) -> Option<String> {
        match self {
            Self::ClusterClass(_) | Self::Hypervisor(_) => None,
            Self::Cluster(name) => Some(name.namespace.clone()),
            Self::Component(name) => Some(name.cluster.namespace()),
            Self::Secret(name) => Some(name.namespace.clone()),
        }
    }

    /// Returns `metadata.name`.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::ClusterClass(name) => name,
            Self::Hypervisor(name) => name.as_str(),
            Self::Cluster(name) => &name.name,
            Self::Component(name) => name.component.as_str(),
            Self::Secret(name) => &name.name,
        }
    }
}

/// Formats the name for errors: `Cluster default/c1`.
impl fmt::Display for DocumentName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace() {
            Some(namespace) => write!(f, "{} {namespace}/{}", self.kind(), self.name()),
            None => write!(f, "{} {}", self.kind(), self.name()),
        }
    }
}
