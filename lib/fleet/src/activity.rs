//! What goes on in a cluster while objects move away from it.

use alloc::collections::{BTreeMap, BTreeSet};

use serde_json::Value as Json;

use crate::{LeaveCause, PlacementLink, PodKinds};

/// The role of an object for other objects in its cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ContentRole {
    /// Its deletion deletes others: a Namespace or a CustomResourceDefinition.
    Container,
    /// It has pods or data, which may need others in its namespace.
    Holder,
    /// All others.
    Other,
}

/// The objects of the fleet in a cluster, and those that move away.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterActivity {
    /// The number of objects with pods or data, by namespace.
    holders: BTreeMap<String, usize>,
    /// The number of objects that are not containers.
    contents: usize,
    /// The objects with pods that move to other clusters, and are still here.
    pub leaving: BTreeSet<PlacementLink>,
    /// Those of them that are ready in their new clusters: only the agent of this cluster has something left to do.
    pub taken_over: BTreeSet<PlacementLink>,
}

impl ContentRole {
    /// Returns the role of an object.
    #[must_use]
    pub fn of(manifest: &Json, kinds: &PodKinds) -> Self {
        match manifest["kind"].as_str().unwrap_or_default() {
            "CustomResourceDefinition" | "Namespace" => Self::Container,
            "PersistentVolumeClaim" => Self::Holder,
            _ if kinds.has_pods(manifest) => Self::Holder,
            _ => Self::Other,
        }
    }
}

impl ClusterActivity {
    /// Counts an object that is new in the cluster.
    pub fn add(&mut self, role: ContentRole, namespace: &str) {
        self.contents += usize::from(role != ContentRole::Container);
        if role == ContentRole::Holder {
            *self.holders.entry(namespace.to_owned()).or_default() += 1;
        }
    }

    /// Counts an object that is gone. Returns whether others may leave now that were needed before.
    pub fn remove(&mut self, role: ContentRole, namespace: &str) -> bool {
        if role == ContentRole::Container {
            return false;
        }
        self.contents = self.contents.saturating_sub(1);
        let mut is_freed = self.contents == 0;
        if role == ContentRole::Holder
            && let Some(number) = self.holders.get_mut(namespace)
        {
            *number -= 1;
            if *number == 0 {
                self.holders.remove(namespace);
                is_freed = true;
            }
        }
        is_freed
    }

    /// Returns the number of objects that count as moving away for a cause. The agent of a lost cluster deletes nothing, so there an object counts until
    /// its new clusters have taken over.
    #[must_use]
    pub fn moves(&self, cause: &LeaveCause) -> usize {
        match cause {
            LeaveCause::Drain(_) | LeaveCause::Return { .. } | LeaveCause::Deselected => self.leaving.len(),
            LeaveCause::Lost { .. } => self.leaving.difference(&self.taken_over).count(),
        }
    }

    /// Whether as many other objects as allowed are moving away.
    pub(crate) fn is_full(&self, link: &PlacementLink, cause: &LeaveCause) -> bool {
        let is_counted = self.leaving.contains(link)
            && !(matches!(cause, LeaveCause::Lost { .. }) && self.taken_over.contains(link));
        self.moves(cause) - usize::from(is_counted) >= cause.max_moves() as usize
    }

    /// Whether something in the cluster may need an object: pods or data in its namespace, or in any if it has none. A container is needed by
    /// everything.
    #[must_use]
    pub fn needs(&self, role: ContentRole, namespace: Option<&str>) -> bool {
        match (role, namespace) {
            (ContentRole::Container, _) => self.contents > 0,
            (ContentRole::Holder, _) => false,
            (ContentRole::Other, Some(namespace)) => self.holders.contains_key(namespace),
            (ContentRole::Other, None) => !self.holders.is_empty(),
        }
    }
}
