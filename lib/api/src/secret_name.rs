//! The namespace and name of a Secret.

use crate::{
    machine::{CLUSTER_LABEL, INSTALLATION_LABEL},
    name::{ClusterId, INSTALLATION_NAMESPACE_PREFIX, InstallationId, NAMESPACE_PREFIX, NameError, is_subdomain},
    secret::{Metadata, Secret},
};

/// The namespace and name of a Secret.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct SecretName {
    /// `metadata.namespace`.
    pub namespace: String,
    /// `metadata.name`.
    pub name: String,
}

/// The Secret with the key that encrypts a cluster's Secrets at rest. They cannot be read with another key.
pub const ENCRYPTION_SECRET: &str = "encryption";

impl SecretName {
    /// Returns the name of a Secret of this cluster.
    #[must_use]
    pub fn of(cluster: &ClusterId, name: &str) -> Self {
        Self { namespace: cluster.namespace(), name: name.to_owned() }
    }

    /// Returns the name of a Secret of this installation.
    #[must_use]
    pub fn of_installation(installation: &InstallationId, name: &str) -> Self {
        Self { namespace: installation.namespace(), name: name.to_owned() }
    }

    /// Returns whether the Secret is in the namespace of a cluster.
    #[must_use]
    pub fn is_of_a_cluster(&self) -> bool {
        self.namespace.starts_with(NAMESPACE_PREFIX) && !self.namespace.starts_with(INSTALLATION_NAMESPACE_PREFIX)
    }

    /// Returns a Secret of Keelway with this name and without values.
    pub(crate) fn empty(&self) -> Secret {
        let (label, id) = match self.namespace.strip_prefix(INSTALLATION_NAMESPACE_PREFIX) {
            Some(id) => (INSTALLATION_LABEL, id),
            None => (CLUSTER_LABEL, self.namespace.strip_prefix(NAMESPACE_PREFIX).unwrap_or_default()),
        };
        Secret {
            metadata: Metadata {
                name: Some(self.name.clone()),
                namespace: Some(self.namespace.clone()),
                labels: Some([(label.to_owned(), id.to_owned())].into()),
                ..Metadata::default()
            },
            type_: Some("Opaque".to_owned()),
            ..Secret::default()
        }
    }
}

impl SecretName {
    /// Reads the namespace and the name of a Secret.
    ///
    /// # Errors
    /// One of them can be none of a Secret.
    pub fn parse(namespace: &str, name: &str) -> Result<Self, NameError> {
        if !is_subdomain(name) {
            return Err(NameError { value: name.to_owned(), expected: "an RFC 1123 subdomain" });
        }
        Ok(Self { namespace: crate::name::namespace(namespace)?, name: name.to_owned() })
    }
}
