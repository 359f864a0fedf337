//! The room of a cluster.

use alloc::collections::BinaryHeap;
use core::cmp::Reverse;

use crate::{
    CapacityReport, NodeGroup, NodeRooms, ObjectDemand, ResourceAmounts,
    node_needs::NodeMismatch,
    pod_demand::{PodCount, PodDemand},
};

/// The room of a cluster.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ClusterRoom {
    omitted_labels: Vec<String>,
    groups: Vec<RoomGroup>,
}

/// Nodes with equal labels and taints.
#[derive(Debug, Clone, PartialEq)]
struct RoomGroup {
    /// The nodes as reported, without their rooms.
    nodes: NodeGroup,
    rooms: Vec<EqualRooms>,
}

/// Nodes with equal room.
#[derive(Debug, Clone, PartialEq, Eq)]
struct EqualRooms {
    nodes: u32,
    free: ResourceAmounts,
}

/// The nodes of a cluster as one kind of pods sees them.
#[derive(Debug, Default)]
pub(crate) struct NodesFor<'a> {
    /// The number of all nodes.
    pub(crate) all: u64,
    /// The number of nodes with a taint that the pods do not tolerate.
    pub(crate) tainted: u64,
    /// The number of other nodes whose labels do not match.
    pub(crate) unlabelled: u64,
    /// The numbers of nodes on which the pods may run, and what is free on each.
    pub(crate) allowed: Vec<(u64, &'a ResourceAmounts)>,
}

impl ClusterRoom {
    /// Reads a report.
    #[must_use]
    pub fn read(report: &CapacityReport) -> Self {
        let groups = report.node_groups.iter().map(|group| RoomGroup {
            nodes: NodeGroup { rooms: Vec::new(), ..group.clone() },
            rooms: group
                .rooms
                .iter()
                .map(|rooms| EqualRooms { nodes: rooms.nodes, free: ResourceAmounts::available(&rooms.free) })
                .collect(),
        });
        Self { omitted_labels: report.omitted_labels.clone(), groups: groups.collect() }
    }

    /// Returns the groups as a report has them.
    #[must_use]
    pub fn node_groups(&self) -> Vec<NodeGroup> {
        let groups = self.groups.iter().map(|group| NodeGroup {
            rooms: group
                .rooms
                .iter()
                .map(|rooms| NodeRooms { nodes: rooms.nodes, free: rooms.free.quantities() })
                .collect(),
            ..group.nodes.clone()
        });
        groups.collect()
    }

    /// Returns what is free on all nodes together.
    #[must_use]
    pub fn total(&self) -> ResourceAmounts {
        let mut total = ResourceAmounts::default();
        for rooms in self.groups.iter().flat_map(|group| &group.rooms) {
            total.add(&rooms.free.times(rooms.nodes));
        }
        total
    }

    /// Returns the nodes as one kind of pods sees them.
    pub(crate) fn nodes_for<'a>(&'a self, pods: &PodDemand) -> NodesFor<'a> {
        let mut nodes = NodesFor::default();
        for group in &self.groups {
            let mismatch = pods.nodes.mismatch(&group.nodes, &self.omitted_labels);
            for rooms in &group.rooms {
                let number = u64::from(rooms.nodes);
                nodes.all += number;
                match mismatch {
                    Some(NodeMismatch::Taint) => nodes.tainted += number,
                    Some(NodeMismatch::Labels) => nodes.unlabelled += number,
                    None => nodes.allowed.push((number, &rooms.free)),
                }
            }
        }
        nodes
    }

    /// Whether both kinds of pods may run on the same nodes.
    pub(crate) fn share_nodes(&self, one: &PodDemand, other: &PodDemand) -> bool {
        let allows =
            |pods: &PodDemand, group: &RoomGroup| pods.nodes.mismatch(&group.nodes, &self.omitted_labels).is_none();
        self.groups.iter().any(|group| allows(one, group) && allows(other, group))
    }

    /// Takes the room of pods, as far as there is any. Pods for which there is none do not run. Each pod gets the node with the most room, as the
    /// scheduler of Kubernetes chooses it by default.
    pub fn take(&mut self, demand: &ObjectDemand) {
        demand.pods().for_each(|pods| self.put(pods));
    }

    fn put(&mut self, pods: &PodDemand) {
        let mut left = match pods.count {
            PodCount::Number(number) => number,
            PodCount::EachNode => u32::MAX,
        };
        let mut emptiest = self.take_out(pods);
        let mut done = Vec::new();
        while left > 0 {
            let Some(mut open) = emptiest.pop() else { break };
            let used = left.min(open.nodes);
            left -= used;
            let free = open.free.minus(&pods.requests);
            open.nodes -= used;
            let (group, order) = (open.group, open.order);
            if open.nodes > 0 {
                emptiest.push(open);
            }
            let taken = OpenRooms { key: emptiness(&free), order, group, nodes: used, free };
            if pods.number_in(&taken.free) > 0 && !pods.is_one_per_node {
                emptiest.push(taken);
            } else {
                done.push(taken);
            }
        }
        for OpenRooms { group, nodes, free, .. } in emptiest.into_vec().into_iter().chain(done) {
            self.groups[group].rooms.push(EqualRooms { nodes, free });
        }
        self.groups.iter_mut().for_each(RoomGroup::merge);
    }

    /// Takes out the rooms in which one of these pods fits.
    fn take_out(&mut self, pods: &PodDemand) -> BinaryHeap<OpenRooms> {
        let mut open = BinaryHeap::new();
        for (index, group) in self.groups.iter_mut().enumerate() {
            if pods.nodes.mismatch(&group.nodes, &self.omitted_labels).is_some() {
                continue;
            }
            for rooms in core::mem::take(&mut group.rooms) {
                if pods.number_in(&rooms.free) == 0 {
                    group.rooms.push(rooms);
                    continue;
                }
                let EqualRooms { nodes, free } = rooms;
                let order = Reverse(open.len());
                open.push(OpenRooms { key: emptiness(&free), order, group: index, nodes, free });
            }
        }
        open
    }
}

impl PodDemand {
    /// Returns how many of the pods fit on one node with this room.
    pub(crate) fn number_in(&self, free: &ResourceAmounts) -> u64 {
        let number = free.holds(&self.requests);
        if self.is_one_per_node { number.min(1) } else { number }
    }
}

impl RoomGroup {
    /// Joins nodes with equal room, so that the result does not depend on the order of what was taken.
    fn merge(&mut self) {
        self.rooms.sort_by(|a, b| a.free.cmp(&b.free));
        self.rooms.dedup_by(|next, kept| {
            let is_equal = next.free == kept.free;
            if is_equal {
                kept.nodes += next.nodes;
            }
            is_equal
        });
    }
}

/// Nodes with equal room in which another pod fits, in the order in which they are used.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct OpenRooms {
    key: (i128, i128),
    order: Reverse<usize>,
    group: usize,
    nodes: u32,
    free: ResourceAmounts,
}

/// Returns what is compared between nodes: the free CPU, and then the free memory.
pub(crate) fn emptiness(free: &ResourceAmounts) -> (i128, i128) {
    (free.get("cpu"), free.get("memory"))
}
