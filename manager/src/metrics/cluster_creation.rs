//! Measures how long clusters take from their creation until they are available.

use std::collections::BTreeMap;

use keelway_api::{
    Cluster, Documents, condition,
    jiff::{SignedDuration, Timestamp},
    name::ClusterId,
};

/// Clusters that have never been available, with the time of their creation.
#[derive(Debug, Default)]
pub(super) struct Births(BTreeMap<ClusterId, Timestamp>);

impl Births {
    /// Returns how long the clusters took that became available since the last call.
    ///
    /// A cluster whose API was ready before the first call is not measured: it may have been available long ago.
    pub(super) fn newly_available(&mut self, documents: &Documents, now: Timestamp) -> Vec<SignedDuration> {
        let mut born = Vec::new();
        for cluster in documents.clusters.values() {
            let Some(id) = cluster.id() else { continue };
            let available = available_since(cluster);
            if cluster.deleted() {
                self.0.remove(id);
            } else if let Some(at) = available
                && let Some(created) = self.0.remove(id)
            {
                born.push(at.duration_since(created));
            } else if available.is_none() && !cluster.is_initialized() {
                self.0.entry(id.clone()).or_insert_with(|| created(cluster).unwrap_or(now));
            }
        }
        born
    }
}

/// Returns the creation time of a cluster. Documents in a directory need not have one.
fn created(cluster: &Cluster) -> Option<Timestamp> {
    cluster.metadata.creation_timestamp.as_ref().map(|at| at.0)
}

fn available_since(cluster: &Cluster) -> Option<Timestamp> {
    let conditions = &cluster.status.as_ref()?.conditions;
    let found = conditions.iter().find(|condition| condition.type_ == "Available")?;
    (found.status == condition::ConditionStatus::True.as_str()).then_some(found.last_transition_time.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::clusters::tests::{cluster, documents};

    fn now() -> Timestamp {
        "2026-01-01T00:00:30Z".parse().unwrap()
    }

    fn world(truths: &[&str], initialized: bool) -> Documents {
        let mut c1 = cluster("c1", truths, initialized);
        c1.status.as_mut().unwrap().id = Some("0123456789abcdef".parse().unwrap());
        documents([c1])
    }

    #[test]
    fn a_creation_is_counted_once() {
        let mut births = Births::default();
        assert_eq!(births.newly_available(&world(&[], false), now()), []);
        assert_eq!(births.newly_available(&world(&[], true), now()), []);
        assert_eq!(births.newly_available(&world(&["Available"], true), now()), [SignedDuration::from_secs(60)]);
        assert_eq!(births.newly_available(&world(&[], true), now()), []);
        assert_eq!(births.newly_available(&world(&["Available"], true), now()), [], "it was available before");
    }

    #[test]
    fn without_a_creation_time_it_counts_from_the_first_observation() {
        let mut births = Births::default();
        let mut unknown = world(&[], false);
        unknown.clusters.values_mut().for_each(|cluster| cluster.metadata.creation_timestamp = None);
        assert_eq!(births.newly_available(&unknown, now()), []);
        assert_eq!(births.newly_available(&world(&["Available"], true), now()), [SignedDuration::from_secs(30)]);
    }

    #[test]
    fn a_cluster_that_was_available_before_is_not_counted() {
        let mut births = Births::default();
        assert_eq!(births.newly_available(&world(&[], true), now()), []);
        assert_eq!(births.newly_available(&world(&["Available"], true), now()), []);
    }

    #[test]
    fn a_cluster_deleted_before_it_was_available_is_forgotten() {
        let mut births = Births::default();
        assert_eq!(births.newly_available(&world(&[], false), now()), []);
        let mut going = world(&[], false);
        let deleted = Some(keelway_api::Time(now()));
        going.clusters.values_mut().for_each(|cluster| cluster.metadata.deletion_timestamp.clone_from(&deleted));
        assert_eq!(births.newly_available(&going, now()), []);
        assert!(births.0.is_empty());
    }
}
