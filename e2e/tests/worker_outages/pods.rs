//! The pods of a worker.

use std::collections::{BTreeMap, BTreeSet};

use keelway_e2e::worker_fleet::TestCluster;
use serde_json::Value;

/// The ready containers of each pod. The key is the namespace, name and uid of the pod.
pub(crate) type Pods = BTreeMap<[String; 3], BTreeSet<String>>;

pub(crate) fn on(cluster: &TestCluster, worker: &str) -> Pods {
    let of_worker = format!("spec.nodeName={worker}");
    let pods = cluster.kubectl.get(&["pods", "--all-namespaces", "--field-selector", &of_worker]);
    pods["items"].as_array().unwrap().iter().map(|pod| (key(pod), running(pod))).collect()
}

fn key(pod: &Value) -> [String; 3] {
    ["namespace", "name", "uid"].map(|key| pod["metadata"][key].as_str().unwrap().to_owned())
}

fn running(pod: &Value) -> BTreeSet<String> {
    let all = pod["status"]["containerStatuses"].as_array().into_iter().flatten();
    let ready = all.filter(|container| container["ready"] == true);
    ready.map(|container| container["containerID"].as_str().unwrap().to_owned()).collect()
}
