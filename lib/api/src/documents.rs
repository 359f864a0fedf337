//! All documents of an installation: typed, by name, and in the order of reading.

use core::{cmp::Ordering, fmt};
use std::collections::BTreeSet;

use k8s_openapi::ByteString;

pub use crate::secret_name::{ENCRYPTION_SECRET, SecretName};

use crate::{
    Cluster, ClusterClass, Component, Hypervisor,
    document::DocumentName,
    machine::{CLUSTER_LABEL, INSTALLATION_LABEL},
    name::{
        ClusterId, ClusterRef, HypervisorName, INSTALLATION_NAMESPACE_PREFIX, InstallationId, NAMESPACE_PREFIX, PodName,
    },
    registry::is_pull_secret,
    secret::Secret,
    shared::{Map, Shared},
};

/// Everything that one `keelway` command reads or writes.
///
/// Maps contain the documents of Keelway. Documents of others are kept unchanged, in their positions. Copies share their content: a copy costs
/// nothing until it is changed, and then only the changed part.
#[derive(Clone, Default)]
pub struct Documents {
    /// Defaults and limits for Clusters, by name.
    pub classes: Map<String, ClusterClass>,
    /// Machines.
    pub hypervisors: Map<HypervisorName, Hypervisor>,
    /// Clusters.
    pub clusters: Map<ClusterRef, Cluster>,
    /// Components of all clusters.
    pub components: Map<PodName, Component>,
    /// Secrets of Keelway: those with the label `keelway.dev/cluster-id` or `keelway.dev/installation-id`, and those for pulling images.
    pub secrets: Map<SecretName, Secret>,
    /// Secrets of the user, to which documents may refer. They are read only, and are written with their original text.
    pub user_secrets: Map<SecretName, Secret>,
    /// The order of reading. Documents that are not in it are written after it, by kind and name.
    pub(crate) reading_order: Shared<Vec<InputDocument>>,
}

/// The document at one position of the input.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum InputDocument {
    /// A document of Keelway.
    Ours(DocumentName),
    /// A document of another program, with its separator line if it had one.
    Foreign(Foreign),
}

/// The text of a document of another program.
///
/// Two texts are equal if they differ only at their ends: writing may add a line break or a marker `...` before a following document.
#[derive(Debug, Clone)]
pub(crate) struct Foreign(pub(crate) String);

impl Foreign {
    fn essence(&self) -> &str {
        let text = self.0.trim_end_matches(['\n', '\r']);
        match text.strip_suffix("...") {
            Some(rest) if rest.is_empty() || rest.ends_with(['\n', '\r']) => rest.trim_end_matches(['\n', '\r']),
            _ => text,
        }
    }
}

impl PartialEq for Foreign {
    fn eq(&self, other: &Self) -> bool {
        self.essence() == other.essence()
    }
}

impl Eq for Foreign {}

impl PartialOrd for Foreign {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Foreign {
    fn cmp(&self, other: &Self) -> Ordering {
        self.essence().cmp(other.essence())
    }
}

/// Prints names only, because Secrets contain keys, and documents of others may contain them too.
impl fmt::Debug for Documents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Documents")
            .field("classes", &self.classes.keys().collect::<Vec<_>>())
            .field("hypervisors", &self.hypervisors.keys().collect::<Vec<_>>())
            .field("clusters", &self.clusters.keys().collect::<Vec<_>>())
            .field("components", &self.components.keys().collect::<Vec<_>>())
            .field("secrets", &self.secrets.keys().collect::<Vec<_>>())
            .field("given", &self.user_secrets.keys().collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

/// Two sets are equal if they are written in the same way: the same documents in the same order.
impl PartialEq for Documents {
    fn eq(&self, other: &Self) -> bool {
        self.classes == other.classes
            && self.hypervisors == other.hypervisors
            && self.clusters == other.clusters
            && self.components == other.components
            && self.secrets == other.secrets
            && (self.reading_order == other.reading_order || self.in_order() == other.in_order())
    }
}

/// Returns whether a Secret belongs to Keelway or is for pulling images.
#[must_use]
pub fn is_ours(secret: &Secret) -> bool {
    let labels = secret.metadata.labels.as_ref();
    is_pull_secret(secret)
        || labels
            .is_some_and(|labels| [CLUSTER_LABEL, INSTALLATION_LABEL].iter().any(|label| labels.contains_key(label)))
}

impl Documents {
    /// Returns the components of one cluster, by name.
    pub fn components_of<'a>(&'a self, id: &'a ClusterId) -> impl Iterator<Item = (&'a PodName, &'a Component)> {
        self.shared_components_of(id).map(|(name, component)| (name, &**component))
    }

    fn shared_components_of<'a>(
        &'a self,
        id: &'a ClusterId,
    ) -> impl Iterator<Item = (&'a PodName, &'a Shared<Component>)> {
        self.components.range(PodName::before_all_of(id)..).take_while(move |(name, _)| name.cluster == *id)
    }

    /// Returns the components of one cluster for modification, by name.
    pub fn components_of_mut<'a>(
        &'a mut self,
        id: &'a ClusterId,
    ) -> impl Iterator<Item = (&'a PodName, &'a mut Shared<Component>)> {
        let from = PodName::before_all_of(id);
        self.components.range_mut(from..).take_while(move |(name, _)| name.cluster == *id)
    }

    /// Returns the Secrets of one cluster, each with its name in the namespace of the cluster.
    pub fn secrets_of(&self, id: &ClusterId) -> impl Iterator<Item = (&str, &Secret)> {
        let from = SecretName::of(id, "");
        let namespace = from.namespace.clone();
        let of_cluster = self.secrets.range(from..).take_while(move |(name, _)| name.namespace == namespace);
        of_cluster.map(|(name, secret)| (name.name.as_str(), &**secret))
    }

    /// Adds values to a Secret of Keelway. The Secret is created if it does not exist.
    pub fn put_secret_values(&mut self, name: &SecretName, values: impl IntoIterator<Item = (String, ByteString)>) {
        let secret = self.secrets.get_or_insert_with(name.clone(), || name.empty().into());
        secret.data.get_or_insert_default().extend(values);
    }

    /// Removes one cluster: its document, its components and its Secrets.
    pub fn remove_cluster(&mut self, reference: &ClusterRef, id: &ClusterId) {
        self.clusters.remove(reference);
        let components: Vec<PodName> = self.components_of(id).map(|(name, _)| name.clone()).collect();
        for name in components {
            self.components.remove(&name);
        }
        let secrets: Vec<SecretName> = self.secrets_of(id).map(|(name, _)| SecretName::of(id, name)).collect();
        for name in secrets {
            self.secrets.remove(&name);
        }
    }

    /// Returns the installation of the machines, or `None` if they have none yet.
    #[must_use]
    pub fn installation(&self) -> Option<&InstallationId> {
        self.hypervisors.values().find_map(|machine| machine.status.as_ref()?.installation.as_ref())
    }

    /// Returns the documents of one cluster, with all machines and classes, and all Secrets that do not belong to another cluster.
    #[must_use]
    pub fn of_cluster(&self, reference: &ClusterRef) -> Self {
        self.of_machines().with_cluster(self, reference)
    }

    /// Returns these documents, which are those of [`Self::of_machines`], together with the documents of one cluster in `world`.
    #[must_use]
    pub fn with_cluster(&self, world: &Self, reference: &ClusterRef) -> Self {
        let mut part = self.clone();
        let Some(cluster) = world.clusters.get(reference) else { return part };
        part.clusters.insert(reference.clone(), cluster.clone());
        if let Some(id) = cluster.id() {
            let components = world.shared_components_of(id).map(|(name, component)| (name.clone(), component.clone()));
            part.components = part.components.with(components);
            let namespace = id.namespace();
            let secrets = world.secrets.range(SecretName::of(id, "")..);
            let own = secrets.take_while(|(name, _)| name.namespace == namespace);
            part.secrets = part.secrets.with(own.map(|(name, secret)| (name.clone(), secret.clone())));
        }
        part
    }

    /// Returns all Secrets that do not belong to a cluster.
    pub fn shared_secrets(&self) -> impl Iterator<Item = (&SecretName, &Shared<Secret>)> {
        let first = |namespace: &str| SecretName { namespace: namespace.to_owned(), name: String::new() };
        let before = self.secrets.range(..first(NAMESPACE_PREFIX));
        // Secrets of clusters are between these two ranges, because ids start with a hexadecimal digit.
        let after = self.secrets.range(first(INSTALLATION_NAMESPACE_PREFIX)..);
        before.chain(after).filter(|(name, _)| !name.is_of_a_cluster())
    }

    /// Replaces documents that are equal to those of another set by references to the latter, so that each is in memory once.
    pub fn share_equal(&mut self, other: &Self) {
        self.classes.share_equal(&other.classes);
        self.hypervisors.share_equal(&other.hypervisors);
        self.clusters.share_equal(&other.clusters);
        self.components.share_equal(&other.components);
        self.secrets.share_equal(&other.secrets);
        self.user_secrets.share_equal(&other.user_secrets);
    }

    /// Returns all machines and classes, and all Secrets that do not belong to a cluster.
    #[must_use]
    pub fn of_machines(&self) -> Self {
        Self {
            classes: self.classes.clone(),
            hypervisors: self.hypervisors.clone(),
            secrets: self.shared_secrets().map(|(name, secret)| (name.clone(), secret.clone())).collect(),
            user_secrets: self.user_secrets.clone(),
            ..Self::default()
        }
    }

    /// Removes the Secrets of installations without machines.
    pub fn forget_installations(&mut self) {
        let left = self.installation().map(InstallationId::namespace);
        let is_gone = |name: &SecretName| name.namespace.starts_with(INSTALLATION_NAMESPACE_PREFIX);
        self.secrets.retain(|name, _| !is_gone(name) || left.as_ref() == Some(&name.namespace));
    }

    /// Returns whether there are no documents at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.in_order().is_empty()
    }

    /// Adds a Secret of a user. It is written after the documents that were read, as they are.
    pub fn add_user_secret(&mut self, name: SecretName, secret: Secret) {
        self.user_secrets.insert(name.clone(), secret);
        let text = self.text_of(&DocumentName::Secret(name)).unwrap_or_default();
        self.reading_order.push(InputDocument::Foreign(Foreign(format!("---\n{text}"))));
    }

    /// Returns all documents in the order of writing: in the order of reading, then new ones by kind and name.
    pub(crate) fn in_order(&self) -> Vec<InputDocument> {
        let known: BTreeSet<&DocumentName> = self.reading_order.iter().filter_map(InputDocument::name).collect();
        let new = self.names().filter(|name| !known.contains(name)).map(InputDocument::Ours);
        let held = self.reading_order.iter().filter(|place| place.name().is_none_or(|name| self.get(name).is_some()));
        held.cloned().chain(new).collect()
    }
}

impl InputDocument {
    fn name(&self) -> Option<&DocumentName> {
        match self {
            Self::Ours(name) => Some(name),
            Self::Foreign(_) => None,
        }
    }
}
