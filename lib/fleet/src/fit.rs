//! Whether an object fits in a cluster, beside pods that are on their way there.
//!
//! Nobody knows on which nodes those pods will be, nor in which order pods arrive. So an object fits only if every pod finds a node whatever happens:
//! for each kind of pods, the places on all nodes, less those that all other pods can destroy at most, are enough. A pod destroys at most as many places
//! as its largest share of a place, rounded up. Together, pods destroy at most as many as their requests pay for: the first place of a node costs what
//! is free beside its places, and each other one costs a whole place.

use crate::{
    ClusterRoom, ObjectDemand, ResourceAmounts,
    pod_demand::{PodCount, PodDemand, joined},
    room::{NodesFor, emptiness},
};

/// The most kinds of pods that may be on their way to a cluster. With more, nothing fits until some have arrived.
pub(crate) const MOST_KINDS: usize = 32;

/// Why pods do not fit in a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RoomShortage {
    /// The number of equal pods of which not all fit.
    pub pods: u64,
    /// How many of them fit for certain.
    pub fit: u64,
    /// The number of nodes.
    pub nodes: u64,
    /// The number of nodes with a taint that the pods do not tolerate.
    pub tainted: u64,
    /// The number of other nodes whose labels do not match.
    pub unlabelled: u64,
    /// What is free of the requested resources on the node with the most room. It is empty if no node is left.
    pub best: String,
    /// The number of pods of other objects that are on their way to the cluster.
    pub on_their_way: u64,
}

/// The places of a cluster for one kind of pods.
struct PodPlaces {
    /// Numbers of nodes, the places on each, and what is free beside these places.
    nodes: Vec<(u64, u64, ResourceAmounts)>,
    request: ResourceAmounts,
    number: u64,
}

impl ClusterRoom {
    /// Returns why an object does not fit beside pods that are on their way, or `None`.
    #[must_use]
    pub fn shortage(&self, demand: &ObjectDemand, on_their_way: &[PodDemand]) -> Option<RoomShortage> {
        let new = joined(demand.pods());
        if on_their_way.len() > MOST_KINDS {
            return Some(self.crowded(&new, on_their_way));
        }
        let missing = new.iter().find_map(|pods| {
            let others = new.iter().chain(on_their_way).filter(|other| !pods.is_equal_to(other));
            let equal =
                on_their_way.iter().filter(|other| pods.is_equal_to(other)).map(|other| self.count(other)).sum();
            self.missing(pods, equal, others)
        });
        missing
            .map(|shortage| RoomShortage { on_their_way: self.count_all(on_their_way), ..shortage })
            .or_else(|| self.displaced(&new, on_their_way))
    }

    /// Returns why pods do not fit beside others. `equal` of the places are taken by pods of the same kind.
    fn missing<'a>(
        &self,
        pods: &PodDemand,
        equal: u64,
        others: impl Iterator<Item = &'a PodDemand>,
    ) -> Option<RoomShortage> {
        let nodes = self.nodes_for(pods);
        let places = PodPlaces::new(pods, &nodes);
        let fit = places.number.saturating_sub(self.destroyed(&places, pods, others)).saturating_sub(equal);
        let needed = self.count(pods);
        let best = nodes.allowed.iter().map(|(_, free)| *free).max_by_key(|free| emptiness(free));
        (fit < needed).then(|| RoomShortage {
            pods: needed,
            fit,
            nodes: nodes.all,
            tainted: nodes.tainted,
            unlabelled: nodes.unlabelled,
            best: best.map(|free| free.only(&pods.requests).readable()).unwrap_or_default(),
            on_their_way: 0,
        })
    }

    /// Returns that new pods could take the room of pods that are on their way.
    fn displaced(&self, new: &[PodDemand], on_their_way: &[PodDemand]) -> Option<RoomShortage> {
        let is_displaced = on_their_way.iter().any(|pods| {
            let places = PodPlaces::new(pods, &self.nodes_for(pods));
            let others = || on_their_way.iter().filter(|other| !pods.is_equal_to(other));
            let added = new.iter().filter(|other| !pods.is_equal_to(other));
            let needed = self.count(pods);
            let left = |destroyed: u64| places.number.saturating_sub(destroyed);
            let before = left(self.destroyed(&places, pods, others()));
            let after = left(self.destroyed(&places, pods, others().chain(added)));
            after < needed && after < before
        });
        is_displaced.then(|| self.crowded(new, on_their_way))
    }

    /// Returns that new pods have to wait for pods that are on their way.
    fn crowded(&self, new: &[PodDemand], on_their_way: &[PodDemand]) -> RoomShortage {
        let nodes = new.first().map(|pods| self.nodes_for(pods)).unwrap_or_default();
        RoomShortage {
            pods: self.count_all(new),
            nodes: nodes.all,
            tainted: nodes.tainted,
            unlabelled: nodes.unlabelled,
            on_their_way: self.count_all(on_their_way),
            ..RoomShortage::default()
        }
    }

    /// Returns how many of these places other pods destroy at most.
    fn destroyed<'a>(&self, places: &PodPlaces, pods: &PodDemand, others: impl Iterator<Item = &'a PodDemand>) -> u64 {
        let (mut one_by_one, mut together) = (0_u64, ResourceAmounts::default());
        for other in others.filter(|other| self.share_nodes(pods, other)) {
            let count = self.count(other);
            one_by_one = one_by_one.saturating_add(count.saturating_mul(other.requests.shares_of(&places.request)));
            together.add(&other.requests.times(u32::try_from(count).unwrap_or(u32::MAX)));
        }
        one_by_one.min(places.destroyed_by(&together))
    }

    /// Returns the number of pods.
    fn count(&self, pods: &PodDemand) -> u64 {
        match pods.count {
            PodCount::Number(number) => number.into(),
            // A DaemonSet without any node is not meant for this cluster.
            PodCount::EachNode => self.nodes_for(pods).allowed.iter().map(|(nodes, _)| nodes).sum::<u64>().max(1),
        }
    }

    fn count_all(&self, all: &[PodDemand]) -> u64 {
        all.iter().map(|pods| self.count(pods)).sum()
    }
}

impl PodPlaces {
    fn new(pods: &PodDemand, nodes: &NodesFor<'_>) -> Self {
        let places = nodes.allowed.iter().map(|(nodes, free)| {
            let number = pods.number_in(free);
            (*nodes, number, free.minus(&pods.requests.times(u32::try_from(number).unwrap_or(u32::MAX))))
        });
        let nodes: Vec<_> = places.filter(|(_, number, _)| *number > 0).collect();
        let number = nodes.iter().map(|(nodes, number, _)| nodes.saturating_mul(*number)).sum();
        Self { nodes, request: pods.requests.clone(), number }
    }

    /// Returns how many places such requests destroy at most, if each resource is spent where a place costs least.
    fn destroyed_by(&self, requests: &ResourceAmounts) -> u64 {
        let needed = self.request.iter().filter(|(_, amount)| *amount > 0);
        needed.map(|(name, place)| self.destroyed_by_one(name, place, requests.get(name))).sum()
    }

    fn destroyed_by_one(&self, name: &str, place: i128, budget: i128) -> u64 {
        let firsts = || self.nodes.iter().map(|(nodes, _, beside)| (beside.get(name) + 1, *nodes));
        // The other places of a node are for sale once its first one is bought.
        let Some(cheapest) = firsts().map(|(price, _)| price).min() else { return 0 };
        let opened = u64::try_from(budget / cheapest).unwrap_or(u64::MAX);
        let most = self.nodes.iter().map(|(_, number, _)| number - 1).max().unwrap_or(0);
        let rest: u64 = self.nodes.iter().map(|(nodes, number, _)| nodes.saturating_mul(number - 1)).sum();
        let rest = rest.min(opened.saturating_mul(most));
        let mut prices: Vec<(i128, u64)> = firsts().chain([(place, rest)]).collect();
        prices.sort_unstable();
        let (mut left, mut destroyed) = (budget, 0_u64);
        for (price, number) in prices {
            let bought = number.min(u64::try_from(left / price).unwrap_or(0));
            destroyed = destroyed.saturating_add(bought);
            left -= price * i128::from(bought);
        }
        destroyed
    }
}
