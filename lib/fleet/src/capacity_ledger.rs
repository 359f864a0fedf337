//! What clusters report to have room for, and the pods that were decided and that no report counts yet.

use alloc::collections::{BTreeMap, BTreeSet};

use k8s_openapi::{apimachinery::pkg::apis::meta::v1::MicroTime, jiff::Timestamp};

use crate::{
    CapacityReport, ClusterRoom, ObjectDemand, PlacementLink, RoomShortage,
    fit::MOST_KINDS,
    pod_demand::{PodCount, PodDemand, joined},
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
    /// The same pods, by kind.
    on_their_way: PodsByKind,
}

/// Numbers of pods by kind: a kind has the count 0, or one for each node. Pods for each node are counted once for each object.
#[derive(Debug, Clone, Default, PartialEq)]
struct PodsByKind(BTreeMap<PodDemand, u64>);

impl ClusterLedger {
    /// Replaces what an object has reserved. Returns what it had reserved.
    fn reserve(&mut self, link: &PlacementLink, demand: Option<&ObjectDemand>) -> Option<ObjectDemand> {
        let before = match demand {
            Some(demand) => self.reserved.insert(link.clone(), demand.clone()),
            None => self.reserved.remove(link),
        };
        self.on_their_way.add(demand);
        self.on_their_way.subtract(before.as_ref());
        before
    }
}

impl PodsByKind {
    fn add(&mut self, demand: Option<&ObjectDemand>) {
        for (kind, number) in demand.into_iter().flat_map(ObjectDemand::pods).map(kind_and_number) {
            *self.0.entry(kind).or_default() += number;
        }
    }

    fn subtract(&mut self, demand: Option<&ObjectDemand>) {
        for (kind, number) in demand.into_iter().flat_map(ObjectDemand::pods).map(kind_and_number) {
            let left = self.0.get(&kind).copied().unwrap_or(0).saturating_sub(number);
            match left {
                0 => drop(self.0.remove(&kind)),
                left => drop(self.0.insert(kind, left)),
            }
        }
    }

    fn pods(&self) -> Vec<PodDemand> {
        let of_kind = |(kind, &number): (&PodDemand, &u64)| match kind.count {
            PodCount::Number(_) => {
                vec![PodDemand { count: PodCount::Number(u32::try_from(number).unwrap_or(u32::MAX)), ..kind.clone() }]
            }
            PodCount::EachNode => (0..number).map(|_| kind.clone()).collect(),
        };
        self.0.iter().flat_map(of_kind).collect()
    }
}

fn kind_and_number(pods: &PodDemand) -> (PodDemand, u64) {
    match pods.count {
        PodCount::Number(number) => (PodDemand { count: PodCount::Number(0), ..pods.clone() }, number.into()),
        PodCount::EachNode => (pods.clone(), 1),
    }
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
            is_less |= ledger.is_some_and(|ledger| ledger.reserve(link, None).is_some());
        }
        for (cluster, demand) in demands {
            let ledger = self.clusters.entry(cluster.clone()).or_default();
            let now = Some(demand).filter(|demand| !demand.is_empty());
            let before = ledger.reserve(link, now);
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
        let kinds = self.clusters.get(cluster).map(|ledger| ledger.on_their_way.pods()).unwrap_or_default();
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
