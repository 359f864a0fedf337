//! From the nodes and pods of a cluster to a report of bounded size.
//!
//! A report states no more room than nodes have. What is free on a node is rounded down to a fraction of what the node has, so that nodes become equal
//! and are counted together. If the report is too large, the fractions become larger, then fewer labels are reported, and nodes are left out last.
//!
//! Pods that wait for a node are an exception: each one is counted on the node with the most room. If the scheduler binds it to another node, a pod for
//! which the report states room may find none until the next report.

use alloc::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

use crate::{
    CapacityReport, ClusterRoom, NodeGroup, NodeRooms, ObjectDemand, ResourceAmounts, ResourceQuantities,
    WorkloadTaint,
    node_needs::MORE_LABELS,
    pod_demand::{PodDemand, joined},
};

/// A label that every node has with a value of its own.
const HOST: &str = "kubernetes.io/hostname";
/// The most keys of omitted labels that a report names.
const MOST_KEYS: usize = 64;
/// The steps in which a report becomes smaller: the fraction of a node to which room is rounded, and the most values of a label that is reported.
const STEPS: [(i128, usize); 8] = [(64, 32), (32, 32), (16, 32), (8, 16), (4, 16), (4, 4), (2, 2), (1, 1)];

/// A node, as far as scheduling reads it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InventoryNode {
    /// The labels.
    pub labels: BTreeMap<String, String>,
    /// The taints.
    pub taints: Vec<WorkloadTaint>,
    /// What all pods of the node can request together.
    pub allocatable: ResourceAmounts,
    /// What the pods of the node request.
    pub requested: ResourceAmounts,
}

impl InventoryNode {
    /// Reads what pods can request.
    #[must_use]
    pub fn new(labels: BTreeMap<String, String>, taints: Vec<WorkloadTaint>, allocatable: &ResourceQuantities) -> Self {
        let allocatable = ResourceAmounts::available(allocatable);
        Self { labels, taints, allocatable, requested: ResourceAmounts::default() }
    }

    /// Returns what is free, rounded down to a multiple of `1 / parts` of what the node has. Less than one unit is never reported as a part of it,
    /// except for CPUs.
    fn free(&self, parts: i128) -> ResourceAmounts {
        let mut free = self.allocatable.minus(&self.requested);
        let all: Vec<(String, i128)> = free.iter().map(|(name, amount)| (name.to_owned(), amount)).collect();
        for (name, amount) in all {
            let has = self.allocatable.get(&name);
            let step = amount * parts / has.max(1);
            let rounded = if amount == has { has } else { has * step / parts };
            let unit = if name == "cpu" { 1 } else { 1000 };
            free.set(&name, rounded - rounded % unit);
        }
        free.minus(&ResourceAmounts::default())
    }
}

/// Returns the report of a cluster. `waiting` are pods that have no node yet. They take the room that they will have. The text of the report in JSON has at
/// most `most_bytes`.
#[must_use]
pub fn capacity_report(
    nodes: &[InventoryNode],
    waiting: &[PodDemand],
    observed: Option<&MicroTime>,
    most_bytes: usize,
) -> CapacityReport {
    let mut report = CapacityReport::default();
    for (parts, values) in STEPS {
        report = at_step(nodes, waiting, parts, values);
        report.observed_time = observed.cloned();
        if size(&report) <= most_bytes {
            return report;
        }
    }
    while size(&report) > most_bytes && !report.node_groups.is_empty() {
        omit_a_half(&mut report);
    }
    report
}

fn at_step(nodes: &[InventoryNode], waiting: &[PodDemand], parts: i128, values: usize) -> CapacityReport {
    let (reported, omitted_labels) = label_keys(nodes, values);
    let mut groups: BTreeMap<GroupKey<'_>, BTreeMap<ResourceAmounts, u32>> = BTreeMap::new();
    for node in nodes {
        let labels = node.labels.iter().filter(|(key, _)| reported.contains(key.as_str()));
        let mut taints: Vec<&WorkloadTaint> =
            node.taints.iter().filter(|taint| taint.effect != "PreferNoSchedule").collect();
        taints.sort();
        let rooms = groups.entry((labels.collect(), taints)).or_default();
        *rooms.entry(node.free(parts)).or_default() += 1;
    }
    let node_groups = groups.into_iter().map(|((labels, taints), rooms)| NodeGroup {
        labels: labels.into_iter().map(|(key, value)| (key.clone(), value.clone())).collect(),
        taints: taints.into_iter().cloned().collect(),
        rooms: rooms.into_iter().map(|(free, nodes)| NodeRooms { nodes, free: free.quantities() }).collect(),
    });
    let number = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
    let mut report = CapacityReport {
        nodes: number,
        node_groups: node_groups.collect(),
        omitted_labels,
        ..CapacityReport::default()
    };
    let mut room = ClusterRoom::read(&report);
    room.take(&ObjectDemand::new(joined(waiting)));
    report.node_groups = room.node_groups();
    report.free = room.total().quantities();
    report
}

/// What nodes of a group have in common: labels and taints.
type GroupKey<'a> = (Vec<(&'a String, &'a String)>, Vec<&'a WorkloadTaint>);

/// Returns the keys of labels with at most so many values, and all others.
fn label_keys(nodes: &[InventoryNode], values: usize) -> (BTreeSet<&str>, Vec<String>) {
    let mut all: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (key, value) in nodes.iter().flat_map(|node| &node.labels) {
        let known = all.entry(key).or_default();
        if known.len() <= values {
            known.insert(value);
        }
    }
    let is_reported = |key: &str, known: &BTreeSet<&str>| key != HOST && known.len() <= values;
    let (reported, omitted): (Vec<_>, Vec<_>) = all.iter().partition(|(key, known)| is_reported(key, known));
    let mut names: Vec<String> = omitted.iter().take(MOST_KEYS).map(|(key, _)| (**key).to_owned()).collect();
    if omitted.len() > MOST_KEYS {
        names.push(MORE_LABELS.to_owned());
    }
    (reported.into_iter().map(|(key, _)| *key).collect(), names)
}

fn size(report: &CapacityReport) -> usize {
    // A report has no keys that are not text, so this cannot fail.
    serde_json::to_vec(report).map_or(usize::MAX, |text| text.len())
}

/// Leaves out every second room.
fn omit_a_half(report: &mut CapacityReport) {
    let mut keeps = true;
    for group in &mut report.node_groups {
        group.rooms.retain(|rooms| {
            keeps = !keeps;
            report.omitted_nodes += if keeps { 0 } else { rooms.nodes };
            keeps
        });
    }
    report.node_groups.retain(|group| !group.rooms.is_empty());
    report.free = ClusterRoom::read(report).total().quantities();
}
