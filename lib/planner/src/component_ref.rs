//! Components as people name them.

use core::fmt;

use keelway_api::name::{ClusterRef, ComponentName, PodName};

/// A component of a cluster: `c1/etcd-0`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ComponentRef {
    /// The cluster.
    pub cluster: ClusterRef,
    /// The component.
    pub component: ComponentName,
}

impl ComponentRef {
    pub(crate) fn of(cluster: &ClusterRef, pod: &PodName) -> Self {
        Self { cluster: cluster.clone(), component: pod.component.clone() }
    }
}

impl fmt::Display for ComponentRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.cluster, self.component)
    }
}
