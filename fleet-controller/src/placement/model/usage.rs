//! In which clusters the fleet runs pods, counted as Works come and go.

use std::collections::{BTreeMap, BTreeSet};

/// How many Works with pods each cluster has.
#[derive(Debug, Default)]
pub(super) struct ClusterUsage {
    works: BTreeMap<String, usize>,
    /// Whether a cluster became busy or idle, came or went since [`Self::take_change`].
    is_changed: bool,
}

impl ClusterUsage {
    /// Notes that a cluster came or went.
    pub(super) fn note_clusters(&mut self) {
        self.is_changed = true;
    }

    /// Counts a Work with pods.
    pub(super) fn add(&mut self, cluster: &str) {
        let number = self.works.entry(cluster.to_owned()).or_default();
        *number += 1;
        self.is_changed |= *number == 1;
    }

    /// Counts a Work with pods that is gone.
    pub(super) fn remove(&mut self, cluster: &str) {
        let Some(number) = self.works.get_mut(cluster) else { return };
        *number -= 1;
        if *number == 0 {
            self.works.remove(cluster);
            self.is_changed = true;
        }
    }

    /// Returns the clusters with pods, if one became busy or idle, came or went since the last call.
    pub(super) fn take_change(&mut self) -> Option<BTreeSet<String>> {
        std::mem::take(&mut self.is_changed).then(|| self.works.keys().cloned().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_first_and_the_last_work_of_a_cluster_change_its_usage() {
        let mut usage = ClusterUsage::default();
        let busy = |names: &[&str]| Some(names.iter().map(|&name| name.to_owned()).collect::<BTreeSet<_>>());
        assert_eq!(usage.take_change(), None);
        usage.add("east");
        assert_eq!(usage.take_change(), busy(&["east"]));
        usage.add("east");
        usage.remove("east");
        assert_eq!(usage.take_change(), None);
        usage.note_clusters();
        assert_eq!(usage.take_change(), busy(&["east"]));
        usage.remove("east");
        assert_eq!(usage.take_change(), busy(&[]));
        usage.remove("east");
        assert_eq!(usage.take_change(), None);
    }
}
