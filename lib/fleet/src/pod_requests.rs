//! What a pod requests of its node, by the rules of the Kubernetes scheduler.

use serde_json::Value as Json;

use crate::{ResourceAmounts, amounts::PODS};

/// Returns what a pod requests: the containers that run at the same time, or more if an init container needs more, and the overhead of its runtime.
/// Requests of the pod as a whole replace those of its containers.
#[must_use]
pub fn pod_requests(spec: &Json) -> ResourceAmounts {
    let mut running = ResourceAmounts::default();
    for container in items(&spec["containers"]) {
        running.add(&container_requests(container));
    }
    let (mut sidecars, mut starting) = (ResourceAmounts::default(), ResourceAmounts::default());
    for container in items(&spec["initContainers"]) {
        let mut needed = container_requests(container);
        if container["restartPolicy"] == "Always" {
            running.add(&needed);
            sidecars.add(&needed);
            starting.raise(&sidecars);
        } else {
            needed.add(&sidecars);
            starting.raise(&needed);
        }
    }
    running.raise(&starting);
    replace_by_pod_level(&mut running, &spec["resources"]);
    running.add(&ResourceAmounts::needed(&spec["overhead"]));
    running.set(PODS, 1000);
    running
}

fn items(list: &Json) -> impl Iterator<Item = &Json> {
    list.as_array().into_iter().flatten()
}

/// Returns what a container requests. API servers use a limit as the request if there is none.
fn container_requests(container: &Json) -> ResourceAmounts {
    let resources = &container["resources"];
    let mut all = ResourceAmounts::needed(&resources["limits"]);
    for (name, amount) in ResourceAmounts::needed(&resources["requests"]).iter() {
        all.set(name, amount);
    }
    all
}

/// A limit of the pod is a request only if neither the pod nor a container requests the resource.
fn replace_by_pod_level(running: &mut ResourceAmounts, resources: &Json) {
    let has = |running: &ResourceAmounts, name: &str| running.iter().any(|(own, _)| own == name);
    for (name, amount) in ResourceAmounts::needed(&resources["limits"]).iter() {
        if !has(running, name) {
            running.set(name, amount);
        }
    }
    for (name, amount) in ResourceAmounts::needed(&resources["requests"]).iter() {
        running.set(name, amount);
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn cpu(spec: &Json) -> i128 {
        pod_requests(spec).get("cpu")
    }

    fn container(cpu: &str) -> Json {
        json!({ "resources": { "requests": { "cpu": cpu } } })
    }

    #[test]
    fn containers_are_added_and_init_containers_are_not() {
        let two = [container("1"), container("500m")];
        assert_eq!(cpu(&json!({ "containers": two })), 1500);
        assert_eq!(cpu(&json!({ "containers": two, "initContainers": [container("1"), container("1")] })), 1500);
        assert_eq!(cpu(&json!({ "containers": two, "initContainers": [container("4"), container("1")] })), 4000);
    }

    #[test]
    fn a_sidecar_runs_beside_the_containers_and_beside_later_init_containers() {
        let mut sidecar = container("2");
        sidecar["restartPolicy"] = json!("Always");
        assert_eq!(cpu(&json!({ "containers": [container("1")], "initContainers": [sidecar] })), 3000);
        let spec = json!({ "containers": [container("1")], "initContainers": [sidecar, container("3")] });
        assert_eq!(cpu(&spec), 5000);
    }

    #[test]
    fn limits_overhead_and_requests_of_the_pod_count() {
        let limited = json!({ "resources": { "limits": { "cpu": "2", "nvidia.com/gpu": 1 } } });
        let spec = json!({ "containers": [limited], "overhead": { "cpu": "100m" } });
        assert_eq!(cpu(&spec), 2100);
        assert_eq!(pod_requests(&spec).get("nvidia.com/gpu"), 1000);
        assert_eq!(pod_requests(&spec).get("pods"), 1000);
        let whole = json!({ "containers": [container("2")], "resources": { "requests": { "cpu": "3" }, "limits": { "cpu": "9" } } });
        assert_eq!(cpu(&whole), 3000);
    }

    #[test]
    fn a_quantity_that_cannot_be_read_fits_nowhere() {
        assert!(cpu(&json!({ "containers": [container("much")] })) > 1_000_000_000);
    }
}
