//! The nodes and pods of this cluster, as far as its capacity depends on them.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Node, Pod};
use keelway_fleet::{
    CapacityReport, InventoryNode, PodCount, PodDemand, ResourceAmounts, ResourceQuantities, WorkloadTaint,
    capacity_report, pod_requests,
};
use kube::ResourceExt;
use serde_json::Value;

/// The largest report. A Cluster has at most 256 KiB, and contains little else.
const MOST_BYTES: usize = 192 << 10;
/// The taint of a node on which people do not want new pods. The API server sets it with a delay.
const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

/// The namespace and the name of a pod.
pub(crate) type PodKey = (String, String);

/// What is kept of a cluster.
#[derive(Debug, Default)]
pub(crate) struct NodeCache {
    pub(crate) nodes: BTreeMap<String, CachedNode>,
    pub(crate) pods: BTreeMap<PodKey, CachedPod>,
}

#[derive(Debug)]
pub(crate) struct CachedNode {
    allocatable: ResourceQuantities,
    node: InventoryNode,
}

/// What is kept of a pod that has not ended.
#[derive(Debug)]
pub(crate) enum CachedPod {
    /// It has a node, or will have.
    OnNode(String, ResourceAmounts),
    /// The scheduler has not chosen a node.
    Waiting(PodDemand),
}

impl NodeCache {
    /// Returns what pods can request on all nodes together.
    pub(crate) fn allocatable(&self) -> ResourceQuantities {
        keelway_fleet::total(self.nodes.values().map(|cached| &cached.allocatable))
    }

    /// Returns what the cluster has room for. The report has no time yet.
    pub(crate) fn capacity(&self) -> CapacityReport {
        let mut requested: BTreeMap<&str, ResourceAmounts> = BTreeMap::new();
        let mut waiting = Vec::new();
        for pod in self.pods.values() {
            match pod {
                CachedPod::OnNode(node, requests) => requested.entry(node).or_default().add(requests),
                CachedPod::Waiting(demand) => waiting.push(demand.clone()),
            }
        }
        let nodes = self.nodes.iter().map(|(name, cached)| InventoryNode {
            requested: requested.remove(name.as_str()).unwrap_or_default(),
            ..cached.node.clone()
        });
        capacity_report(&nodes.collect::<Vec<_>>(), &waiting, None, MOST_BYTES)
    }
}

impl CachedNode {
    pub(crate) fn read(node: &Node) -> Self {
        let spec = node.spec.as_ref();
        let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
        let allocatable: ResourceQuantities =
            allocatable.into_iter().flatten().map(|(name, quantity)| (name.clone(), quantity.0.clone())).collect();
        let mut taints: Vec<WorkloadTaint> = spec
            .and_then(|spec| spec.taints.as_ref())
            .into_iter()
            .flatten()
            .map(|taint| WorkloadTaint {
                key: taint.key.clone(),
                value: taint.value.clone(),
                effect: taint.effect.clone(),
            })
            .collect();
        let is_cordoned = spec.is_some_and(|spec| spec.unschedulable == Some(true));
        if is_cordoned && !taints.iter().any(|taint| taint.key == UNSCHEDULABLE) {
            let effect = "NoSchedule".to_owned();
            taints.push(WorkloadTaint { key: UNSCHEDULABLE.to_owned(), value: None, effect });
        }
        let node = InventoryNode::new(node.labels().clone(), taints, &allocatable);
        Self { allocatable, node }
    }
}

impl CachedPod {
    /// Reads a pod, or returns `None` if it has ended.
    pub(crate) fn read(pod: &Pod) -> Option<Self> {
        let status = pod.status.as_ref();
        let phase = status.and_then(|status| status.phase.as_deref()).unwrap_or_default();
        if ["Succeeded", "Failed"].contains(&phase) {
            return None;
        }
        let spec = pod.spec.as_ref()?;
        let json = serde_json::to_value(spec).ok()?;
        let nominated = status.and_then(|status| status.nominated_node_name.clone());
        let node = spec.node_name.clone().or(nominated).filter(|node| !node.is_empty()).or_else(|| own_node(&json));
        Some(match node {
            Some(node) => Self::OnNode(node, pod_requests(&json)),
            None => Self::Waiting(PodDemand::read(&json, PodCount::Number(1))),
        })
    }
}

/// Returns the node for which the DaemonSet controller created a pod.
fn own_node(spec: &Value) -> Option<String> {
    let field = spec.pointer(
        "/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms/0/matchFields/0",
    )?;
    (field["key"] == "metadata.name").then(|| field["values"][0].as_str().map(str::to_owned)).flatten()
}

pub(crate) fn pod_key(pod: &Pod) -> PodKey {
    (pod.namespace().unwrap_or_default(), pod.name_any())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn node(name: &str, unschedulable: bool) -> Node {
        serde_json::from_value(json!({
            "metadata": { "name": name },
            "spec": { "unschedulable": unschedulable },
            "status": { "allocatable": { "cpu": "4", "memory": "8Gi", "pods": "110" } },
        }))
        .unwrap()
    }

    fn pod(spec: &Value, status: &Value) -> Option<CachedPod> {
        let mut pod = json!({ "metadata": { "name": "p", "namespace": "shop" }, "spec": spec, "status": status });
        pod["spec"]["containers"] = json!([{ "name": "c", "resources": { "requests": { "cpu": "1" } } }]);
        CachedPod::read(&serde_json::from_value(pod).unwrap())
    }

    fn free(pods: [Option<CachedPod>; 2]) -> Vec<String> {
        let mut cache = NodeCache::default();
        for name in ["n1", "n2"] {
            cache.nodes.insert(name.to_owned(), CachedNode::read(&node(name, false)));
        }
        for (index, pod) in pods.into_iter().enumerate() {
            if let Some(pod) = pod {
                cache.pods.insert(("shop".to_owned(), index.to_string()), pod);
            }
        }
        let groups = cache.capacity().node_groups;
        groups
            .iter()
            .flat_map(|group| &group.rooms)
            .map(|rooms| format!("{}x{}", rooms.nodes, rooms.free["cpu"]))
            .collect()
    }

    #[test]
    fn pods_take_the_room_of_their_node_before_they_are_bound() {
        let on = |node: &str| pod(&json!({ "nodeName": node }), &json!({ "phase": "Running" }));
        assert_eq!(free([None, None]), ["2x4"]);
        assert_eq!(free([on("n1"), on("n1")]), ["1x2", "1x4"]);
        let nominated = pod(&json!({}), &json!({ "nominatedNodeName": "n1" }));
        assert_eq!(free([on("n1"), nominated]), ["1x2", "1x4"]);
        let waiting = || pod(&json!({}), &json!({ "phase": "Pending" }));
        assert_eq!(free([waiting(), waiting()]), ["2x3"]);
        assert_eq!(
            free([on("n1"), pod(&json!({ "nodeName": "n1" }), &json!({ "phase": "Succeeded" }))]),
            ["1x3", "1x4"]
        );
    }

    #[test]
    fn a_pod_of_a_daemon_has_its_node() {
        let terms = json!([{ "matchFields": [{ "key": "metadata.name", "operator": "In", "values": ["n2"] }] }]);
        let required = json!({ "requiredDuringSchedulingIgnoredDuringExecution": { "nodeSelectorTerms": terms } });
        let found = pod(&json!({ "affinity": { "nodeAffinity": required } }), &json!({}));
        assert!(matches!(found, Some(CachedPod::OnNode(node, _)) if node == "n2"));
    }

    #[test]
    fn a_cordoned_node_has_the_taint_at_once() {
        let cached = CachedNode::read(&node("n1", true));
        assert_eq!(cached.node.taints[0].key, UNSCHEDULABLE);
    }
}
