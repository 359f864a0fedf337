//! What clusters report to have room for, and the pods that were decided and that no report counts yet.

use alloc::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::MicroTime, jiff::Timestamp};

use crate::{
    CapacityReport, ClusterRoom, ObjectDemand, PlacementLink, RoomShortage,
    fit::MOST_KINDS,
    pod_demand::{PodDemand, joined},
};

/// The room of each cluster, and what is reserved of it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct CapacityLedger {
    clusters: BTreeMap<String, ClusterLedger>,
    /// The clusters in which each object has reserved room.
    reserving: BTreeMap<PlacementLink, BTreeSet<String>>,
}

#[derive(Debug, Clone, Default, PartialEq)]
struct ClusterLedger {
    /// The room as reported, or `None` if it is not known.
    room: Option<ClusterRoom>,
    observed: Option<Timestamp>,
    reserved: BTreeMap<PlacementLink, ObjectDemand>,
}

impl CapacityLedger {
    /// Notes a report, or that there is none. Returns whether something may fit now that did not fit before.
    pub fn report(&mut self, cluster: &str, report: Option<&CapacityReport>) -> bool {
        let ledger = self.clusters.entry(cluster.to_owned()).or_default();
        ledger.observed = report.and_then(|report| report.observed_time.as_ref()).map(|MicroTime(time)| *time);
        let room = report.map(ClusterRoom::read);
        // A pod that moved from one node to another can make room on the first one: less in sum says nothing.
        let has_grown = room.is_some() && room != ledger.room;
        ledger.room = room;
        has_grown
    }

    /// Forgets a cluster that is not in the fleet any more.
    pub fn remove(&mut self, cluster: &str) {
        let ledger = self.clusters.remove(cluster).unwrap_or_default();
        ledger.reserved.keys().for_each(|link| self.forget(link, cluster));
    }

    /// Returns the time until which the last report of a cluster counts pods.
    #[must_use]
    pub fn observed(&self, cluster: &str) -> Option<Timestamp> {
        self.clusters.get(cluster)?.observed
    }

    /// Returns the objects that have reserved room in a cluster.
    pub fn reserving(&self, cluster: &str) -> impl Iterator<Item = &PlacementLink> {
        self.clusters.get(cluster).into_iter().flat_map(|ledger| ledger.reserved.keys())
    }

    /// Replaces what an object has reserved. Returns whether that is less in any cluster.
    pub fn reserve(&mut self, link: &PlacementLink, demands: &BTreeMap<String, ObjectDemand>) -> bool {
        let before = self.reserving.remove(link).unwrap_or_default();
        let mut is_less = false;
        for cluster in before.iter().filter(|name| !demands.contains_key(*name)) {
            let ledger = self.clusters.get_mut(cluster);
            is_less |= ledger.is_some_and(|ledger| ledger.reserved.remove(link).is_some());
        }
        for (cluster, demand) in demands {
            let ledger = self.clusters.entry(cluster.clone()).or_default();
            let now = Some(demand).filter(|demand| !demand.is_empty());
            let before = match now {
                Some(demand) => ledger.reserved.insert(link.clone(), demand.clone()),
                None => ledger.reserved.remove(link),
            };
            is_less |= before.is_some_and(|before| before.number() > demand.number());
            if now.is_some() {
                self.reserving.entry(link.clone()).or_default().insert(cluster.clone());
            }
        }
        is_less
    }

    fn forget(&mut self, link: &PlacementLink, cluster: &str) {
        let Some(clusters) = self.reserving.get_mut(link) else { return };
        clusters.remove(cluster);
        if clusters.is_empty() {
            self.reserving.remove(link);
        }
    }

    /// Returns the room that a cluster reports, or `None` if it is not known.
    #[must_use]
    pub fn room(&self, cluster: &str) -> Option<&ClusterRoom> {
        self.clusters.get(cluster)?.room.as_ref()
    }

    /// Returns the pods that are on their way to a cluster, by kind. If there are many kinds, what pods request is rounded up, so that fewer differ.
    #[must_use]
    pub fn on_their_way(&self, cluster: &str) -> Vec<PodDemand> {
        let reserved = self.clusters.get(cluster).into_iter().flat_map(|ledger| ledger.reserved.values());
        let kinds = joined(reserved.flat_map(ObjectDemand::pods));
        if kinds.len() <= MOST_KINDS {
            return kinds;
        }
        let coarse = kinds.into_iter().map(|pods| PodDemand { requests: pods.requests.rounded_up(), ..pods });
        joined(&coarse.collect::<Vec<_>>())
    }

    /// Returns why an object does not fit in a cluster whose room is known, or `None`.
    #[must_use]
    pub fn shortage(&self, cluster: &str, demand: &ObjectDemand) -> Option<RoomShortage> {
        self.room(cluster)?.shortage(demand, &self.on_their_way(cluster))
    }
}
