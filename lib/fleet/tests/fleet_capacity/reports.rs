//! Reports are of bounded size, and never optimistic.

use std::collections::BTreeMap;

use keelway_fleet::ClusterRoom;
use keelway_fleet::{
    CapacityReport, InventoryNode, ObjectDemand, PodCount, PodDemand, ResourceAmounts, ResourceQuantities,
    WorkloadTaint, capacity_report,
};
use proptest::prelude::*;
use serde_json::json;

/// The largest Cluster.
const MOST: usize = 256 << 10;
/// The largest report of an agent.
const REPORT: usize = 192 << 10;

fn quantities<const N: usize>(amounts: [(&str, u64); N]) -> ResourceQuantities {
    amounts.map(|(name, amount)| (name.to_owned(), amount.to_string())).into()
}

fn amounts(cpu: u64, memory: u64) -> ResourceAmounts {
    ResourceAmounts::available(&quantities([("cpu", cpu), ("memory", memory), ("pods", 1)]))
}

fn node(cpu: u64, memory: u64, used: (u64, u64)) -> InventoryNode {
    let all = quantities([("cpu", cpu), ("memory", memory), ("pods", 110)]);
    InventoryNode { requested: amounts(used.0, used.1), ..InventoryNode::new(BTreeMap::new(), Vec::new(), &all) }
}

fn pods(number: u32, cpu: u64, memory: u64) -> PodDemand {
    let requests = json!({ "cpu": cpu.to_string(), "memory": memory.to_string() });
    PodDemand::read(&json!({ "containers": [{ "resources": { "requests": requests } }] }), PodCount::Number(number))
}

fn fits(report: &CapacityReport, pods: &PodDemand) -> bool {
    ClusterRoom::read(report).shortage(&ObjectDemand::new([pods.clone()]), &[]).is_none()
}

/// Whether pods fit in a report, and not on the nodes: their free CPUs, memory and pods.
fn is_optimistic(nodes: &[(u64, u64)], report: &CapacityReport, (number, cpu, memory): (u32, u64, u64)) -> bool {
    let on_one = |(free_cpu, free_memory): &(u64, u64)| (free_cpu / cpu).min(free_memory / memory).min(109);
    let places: u64 = nodes.iter().map(on_one).sum();
    fits(report, &pods(number, cpu, memory)) && places < u64::from(number)
}

fn free((cpu, memory, used_cpu, used_memory): (u64, u64, u64, u64)) -> (u64, u64) {
    (cpu.saturating_sub(used_cpu), memory.saturating_sub(used_memory))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn what_fits_in_a_report_fits_on_the_nodes(
        nodes in proptest::collection::vec((1..200_u64, 1..5000_u64, 0..250_u64, 0..6000_u64), 1..40),
        asked in (1..200_u32, 1..64_u64, 1..2000_u64),
        most in 200..4000_usize,
    ) {
        let inventory: Vec<InventoryNode> =
            nodes.iter().map(|(cpu, memory, a, b)| node(*cpu, *memory, (*a, *b))).collect();
        let report = capacity_report(&inventory, &[], None, most);
        let free: Vec<(u64, u64)> = nodes.iter().copied().map(free).collect();
        prop_assert!(!is_optimistic(&free, &report, asked), "{report:?}");
        prop_assert!(serde_json::to_vec(&report).unwrap().len() <= most.max(200));
        prop_assert_eq!(capacity_report(&inventory, &[], None, most), report);
    }
}

/// The check finds an optimistic report: one that does not count the pods of the nodes, and one that rounds up.
#[test]
fn an_optimistic_report_is_found() {
    let nodes = [node(4, 1000, (2, 0))];
    let free = [free((4, 1000, 2, 0))];
    let report = capacity_report(&nodes, &[], None, REPORT);
    assert!(!is_optimistic(&free, &report, (1, 3, 1)) && fits(&report, &pods(1, 2, 1)));
    let uncounted = capacity_report(&[node(4, 1000, (0, 0))], &[], None, REPORT);
    assert!(is_optimistic(&free, &uncounted, (1, 3, 1)));
    let mut rounded = report;
    rounded.node_groups[0].rooms[0].free.insert("cpu".to_owned(), "3".to_owned());
    assert!(is_optimistic(&free, &rounded, (1, 3, 1)));
}

/// 5,000 nodes of which no two have equal room, with as many labels as clouds set.
fn large(labels: usize, values: usize) -> Vec<InventoryNode> {
    let one = |index: usize| {
        let mut own: BTreeMap<String, String> = (0..labels)
            .map(|label| {
                (format!("node.example.com/label-{label}"), format!("value-{}", (index / (label + 1)) % values))
            })
            .collect();
        own.insert("kubernetes.io/hostname".to_owned(), format!("node-{index}.internal.example.com"));
        let pool = WorkloadTaint {
            key: "pool".to_owned(),
            value: Some(format!("p{}", index % 3)),
            effect: "NoSchedule".to_owned(),
        };
        let all = quantities([("cpu", 64), ("memory", 256 << 30), ("pods", 110), ("nvidia.com/gpu", 8)]);
        let used = quantities([
            ("cpu", index as u64 % 61),
            ("memory", (index as u64 * 7_919_333) % (250 << 30)),
            ("nvidia.com/gpu", index as u64 % 9),
        ]);
        InventoryNode { requested: ResourceAmounts::available(&used), ..InventoryNode::new(own, vec![pool], &all) }
    };
    (0..5000).map(one).collect()
}

fn size_of_cluster(report: &CapacityReport) -> usize {
    let cluster = json!({
        "apiVersion": "fleet.keelway.dev/v1alpha1", "kind": "Cluster", "metadata": { "name": "west" },
        "spec": {}, "status": { "capacity": report, "kubernetesVersion": "1.37.0" },
    });
    cluster.to_string().len()
}

#[test]
fn a_cluster_of_5000_nodes_is_small() {
    for (labels, values) in [(3, 3), (25, 7), (40, 5000)] {
        let report = capacity_report(&large(labels, values), &[], None, REPORT);
        let size = size_of_cluster(&report);
        assert!(size < MOST, "{labels} labels with {values} values: {size} bytes");
        assert_eq!(report.nodes, 5000);
        let reported: u32 = report.node_groups.iter().flat_map(|group| &group.rooms).map(|rooms| rooms.nodes).sum();
        assert_eq!(reported + report.omitted_nodes, 5000);
    }
}

/// With the labels of a usual cluster, most of the free room is in the report.
#[test]
fn a_report_of_5000_nodes_is_still_of_use() {
    let nodes = large(3, 3);
    let report = capacity_report(&nodes, &[], None, REPORT);
    let free: u64 = (0..5000_u64).map(|index| 64 - index % 61).sum();
    let reported: u64 = report.free["cpu"].trim_end_matches('m').parse().unwrap();
    let reported = if report.free["cpu"].ends_with('m') { reported / 1000 } else { reported };
    assert!(reported * 10 > free * 7, "{reported} of {free} CPUs are reported");
    assert_eq!(report.omitted_nodes, 0);
    assert_eq!(report.omitted_labels, ["kubernetes.io/hostname"]);
}

#[test]
fn pods_without_a_node_take_room() {
    let nodes = [node(4, 1000, (0, 0)), node(4, 1000, (0, 0))];
    let waiting = vec![pods(1, 1, 1), pods(1, 1, 1), pods(1, 9, 1)];
    let report = capacity_report(&nodes, &waiting, None, REPORT);
    assert_eq!((report.free["cpu"].as_str(), report.node_groups[0].rooms[0].nodes), ("6", 2));
}
