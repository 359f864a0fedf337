//! What a worker remembers of its Node, so that it can create the Node again.

use std::collections::BTreeMap;

use k8s_openapi::{
    api::core::v1::{Node, Taint},
    apimachinery::pkg::api::resource::Quantity,
};
use keelway_api::worker::{CERTIFICATE_ISSUERS, DRAIN_TIMEOUT, KUBELET_RELEASE, TRUSTED_AUTHORITIES};
use serde::{Deserialize, Serialize};

use crate::node_labels::is_kubelet_label;

/// The prefix of taints that the control plane sets by the Node's conditions.
const OF_CONDITIONS: &str = "node.kubernetes.io/";

/// What users and kubelet set on a Node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct NodeRecord {
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
    taints: Vec<Taint>,
    unschedulable: bool,
    /// A restarted kubelet admits its pods by these. It rejects pods if the Node has none.
    capacity: BTreeMap<String, Quantity>,
    allocatable: BTreeMap<String, Quantity>,
}

impl NodeRecord {
    /// Returns the record of a Node, or `None` before the kubelet has reported its capacity.
    pub(crate) fn of(node: &Node) -> Option<Self> {
        let (spec, status) = (node.spec.clone().unwrap_or_default(), node.status.clone()?);
        let is_kept = |taint: &Taint| !taint.key.starts_with(OF_CONDITIONS);
        let mut annotations = node.metadata.annotations.clone().unwrap_or_default();
        annotations.retain(|key, _| !is_of_kubernetes(key) && !is_reported(key));
        Some(Self {
            labels: node.metadata.labels.clone().unwrap_or_default(),
            annotations,
            taints: spec.taints.into_iter().flatten().filter(is_kept).collect(),
            unschedulable: spec.unschedulable.unwrap_or_default(),
            capacity: status.capacity.filter(|capacity| !capacity.is_empty())?,
            allocatable: status.allocatable.unwrap_or_default(),
        })
    }

    /// Adds the record to a new Node. Returns the keys of labels that a kubelet may not set.
    pub(crate) fn restore(self, node: &mut Node) -> Vec<String> {
        let labels = node.metadata.labels.get_or_insert_default();
        let mut lost = Vec::new();
        for (key, value) in self.labels {
            if is_kubelet_label(&key) {
                labels.insert(key, value);
            } else {
                lost.push(key);
            }
        }
        node.metadata.annotations.get_or_insert_default().extend(self.annotations);
        let spec = node.spec.get_or_insert_default();
        spec.taints.get_or_insert_default().extend(self.taints);
        spec.unschedulable = self.unschedulable.then_some(true);
        let status = node.status.get_or_insert_default();
        status.capacity = Some(self.capacity);
        status.allocatable = Some(self.allocatable);
        lost
    }
}

/// Whether the daemon or the cluster-controller sets the annotation itself. A restored one would be out of date.
fn is_reported(key: &str) -> bool {
    [TRUSTED_AUTHORITIES, CERTIFICATE_ISSUERS, KUBELET_RELEASE, DRAIN_TIMEOUT].contains(&key)
}

/// Whether Kubernetes' own components set annotations with this key.
fn is_of_kubernetes(key: &str) -> bool {
    let prefix = key.split_once('/').map_or("", |(prefix, _)| prefix);
    ["kubernetes.io", "k8s.io"]
        .iter()
        .any(|domain| prefix == *domain || prefix.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.')))
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use serde_json::json;

    use super::*;
    use crate::{registration, samples::options};

    #[test]
    fn a_node_gets_back_what_users_set_except_for_what_a_kubelet_may_not_set() {
        let before: Node = serde_json::from_value(json!({
            "metadata": {
                "labels": { "rack": "r1", "node-role.kubernetes.io/worker": "", "kubernetes.io/os": "linux" },
                "annotations": { "example.com/owner": "a", "volumes.kubernetes.io/x": "b", "csi.volume.kubernetes.io/nodeid": "c" },
            },
            "spec": {
                "unschedulable": true,
                "podCIDR": "10.244.3.0/24",
                "taints": [
                    { "key": "dedicated", "value": "gpu", "effect": "NoSchedule" },
                    { "key": "node.kubernetes.io/unreachable", "effect": "NoExecute" },
                ],
            },
            "status": { "capacity": { "pods": "110", "cpu": "2" }, "allocatable": { "pods": "110", "cpu": "1" } },
        }))
        .unwrap();
        let record = NodeRecord::of(&before).unwrap();
        let text = serde_json::to_string(&record).unwrap();
        assert_eq!(serde_json::from_str::<NodeRecord>(&text).unwrap(), record);

        let mut node = registration::node(&options(), Timestamp::UNIX_EPOCH);
        assert_eq!(record.restore(&mut node), ["node-role.kubernetes.io/worker"]);
        let node = serde_json::to_value(&node).unwrap();
        assert_eq!(node["metadata"]["labels"]["rack"], "r1");
        assert_eq!(node["metadata"]["labels"]["kubernetes.io/hostname"], "w1");
        assert!(node["metadata"]["labels"].get("node-role.kubernetes.io/worker").is_none());
        let annotations = node["metadata"]["annotations"].as_object().unwrap();
        assert!(annotations.contains_key("example.com/owner") && annotations.len() == 2, "{annotations:?}");
        let taints: Vec<&str> =
            node["spec"]["taints"].as_array().unwrap().iter().filter_map(|taint| taint["key"].as_str()).collect();
        assert_eq!(taints, ["node.kubernetes.io/not-ready", "dedicated"]);
        assert_eq!(node["spec"]["unschedulable"], true);
        assert!(node["spec"].get("podCIDR").is_none(), "the control plane assigns ranges");
        assert_eq!(node["status"]["allocatable"], json!({ "pods": "110", "cpu": "1" }));
    }

    #[test]
    fn reports_of_trust_are_not_restored() {
        let node: Node = serde_json::from_value(json!({
            "metadata": { "annotations": { TRUSTED_AUTHORITIES: "a", CERTIFICATE_ISSUERS: "b", "example.com/owner": "c" } },
            "status": { "capacity": { "pods": "110" } },
        }))
        .unwrap();
        let record = NodeRecord::of(&node).unwrap();
        assert_eq!(record.annotations.into_keys().collect::<Vec<_>>(), ["example.com/owner"]);
    }

    #[test]
    fn a_node_whose_kubelet_has_not_reported_is_not_recorded() {
        assert_eq!(NodeRecord::of(&registration::node(&options(), Timestamp::UNIX_EPOCH)), None);
        assert_eq!(NodeRecord::of(&Node::default()), None);
    }
}
