//! The class of a Cluster among documents.

use crate::{Cluster, ClusterClass, Documents};

impl Documents {
    /// Returns the class of Clusters that name none and had none before.
    #[must_use]
    pub fn default_class(&self) -> Option<&ClusterClass> {
        self.classes.values().map(|class| &**class).find(|class| class.is_default())
    }

    /// Returns the name of a Cluster's class: the one that it names, else the one that it had last, else the default, if that allows
    /// the Cluster's namespace.
    #[must_use]
    pub fn class_name<'a>(&'a self, cluster: &'a Cluster) -> Option<&'a str> {
        let named = cluster.spec.class_name.as_deref();
        let last = || Some(cluster.status.as_ref()?.class.as_ref()?.name.as_str());
        let default = || self.default_class().filter(|class| class.is_for(&cluster.reference().namespace));
        named.or_else(last).or_else(|| default()?.metadata.name.as_deref())
    }

    /// Returns a Cluster's class, or `None` if there are no classes or its own does not exist.
    #[must_use]
    pub fn class_of(&self, cluster: &Cluster) -> Option<&ClusterClass> {
        self.classes.get(self.class_name(cluster)?).map(|class| &**class)
    }
}
