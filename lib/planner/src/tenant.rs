//! One cluster with the documents that are looked up often. They are found once, because in the documents they stand side by side.

use alloc::{string::String, vec::Vec};

use keelway_api::{
    Cluster, Component, Documents, Secret,
    name::{ClusterId, PodName},
    registry::PullSecret,
    role::Role,
    validated::ValidatedCluster,
};

use crate::{
    minted::{UnusableSecrets, fingerprint},
    world::ValidatedDocuments,
};

pub(crate) struct Tenant<'a> {
    pub(crate) id: &'a ClusterId,
    pub(crate) document: &'a Cluster,
    pub(crate) cluster: &'a ValidatedCluster,
    /// Sorted by name.
    pub(crate) components: Vec<(&'a PodName, &'a Component)>,
    /// The usable ones of the Secrets that hold registry credentials for its images.
    pub(crate) pull_secrets: Vec<PullSecret>,
    /// Its authorities and keys that cannot be used. None: all are usable.
    pub(crate) unusable_secrets: Option<&'a UnusableSecrets>,
    /// Sorted by name.
    secrets: Vec<(&'a str, &'a Secret)>,
}

impl<'a> Tenant<'a> {
    /// Returns every cluster that has an id, by name.
    pub(crate) fn all(documents: &'a Documents, world: &'a ValidatedDocuments) -> impl Iterator<Item = Self> {
        world.clusters.iter().filter_map(|(name, (id, cluster))| {
            let document = documents.clusters.get(name)?;
            let components = documents.components_of(id).collect();
            let pull_secrets = cluster.pull_secrets.iter().filter_map(|name| documents.secrets.get(name));
            let pull_secrets = pull_secrets.filter_map(|secret| PullSecret::of(secret).ok()).collect();
            let secrets = documents.secrets_of(id).collect();
            let unusable_secrets = world.unusable(name);
            Some(Self { id, document, cluster, components, pull_secrets, unusable_secrets, secrets })
        })
    }

    /// Whether the registry credentials are those of the cluster's own spec, not those of its class.
    pub(crate) fn has_own_pull_secrets(&self) -> bool {
        let namespace = self.document.reference().namespace;
        let own =
            self.document.spec.images.pull_secrets.iter().map(|secret| (namespace.as_str(), secret.name.as_str()));
        let used = self.cluster.pull_secrets.iter().map(|secret| (secret.namespace.as_str(), secret.name.as_str()));
        !self.cluster.pull_secrets.is_empty() && own.eq(used)
    }

    /// Whether the cluster is unchanged because a machine holds a later config than the documents record. Its spec does not pause it.
    pub(crate) fn is_frozen(&self) -> bool {
        self.cluster.paused && !self.document.spec.paused
    }

    /// By name.
    pub(crate) fn of_role(&self, role: Role) -> impl Iterator<Item = (&'a PodName, &'a Component)> {
        self.components.iter().copied().filter(move |(_, component)| component.spec.role == role)
    }

    /// Whether a Secret lacks the cluster's authority or key, or holds another one.
    pub(crate) fn cannot_use(&self, secret: &str) -> bool {
        self.unusable_secrets.is_some_and(|unusable| unusable.contains_key(secret))
    }

    pub(crate) fn has_secret(&self, name: &str) -> bool {
        self.secret(name).is_some()
    }

    /// A value of a Secret, decoded.
    pub(crate) fn value(&self, secret: &str, key: &str) -> Option<&'a [u8]> {
        let data = self.secret(secret)?.data.as_ref()?;
        data.get(key).map(|value| value.0.as_slice())
    }

    /// The digest that identifies the authority or key of a Secret.
    pub(crate) fn fingerprint(&self, secret: &str) -> Option<String> {
        fingerprint(secret, self.secret(secret)?)
    }

    /// Whether a Secret has the key of this certificate.
    pub(crate) fn has_key_of(&self, secret: &str, certificate: &str) -> bool {
        let mut keys = self.secret(secret).into_iter().flat_map(|secret| secret.data.iter().flatten());
        keys.any(|(name, _)| name.strip_suffix(".key") == Some(certificate))
    }

    /// Whether a Secret has both halves of this key pair.
    pub(crate) fn has_pair_of(&self, secret: &str, pair: &str) -> bool {
        let data = self.secret(secret).and_then(|secret| secret.data.as_ref());
        let has = |half: &str| data.is_some_and(|data| data.keys().any(|name| name.strip_suffix(half) == Some(pair)));
        has(".key") && has(".pub")
    }

    /// Secrets that hold another authority or key than the cluster's own are left out: the cluster cannot use what is built from them.
    fn secret(&self, name: &str) -> Option<&'a Secret> {
        if self.cannot_use(name) {
            return None;
        }
        let found = self.secrets.binary_search_by_key(&name, |(name, _)| *name).ok()?;
        self.secrets.get(found).map(|(_, secret)| *secret)
    }
}
